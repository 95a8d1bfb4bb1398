"""La réponse d'une personne : la charger comme un module neuf, et dire où elle s'est trompée, avec son numéro de ligne à elle."""

import re
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType

from minibatcher.course.compare import ANSWER_MODULE, type_name
from minibatcher.course.guard import Guard, TimeLimit
from minibatcher.course.places import ExerciseError, read_source

# Les fautes les plus courantes ; les autres gardent la phrase de Python.
_SYNTAX = (
    (r"expected ':'", "il manque « : » à la fin"),
    (r"expected an indented block.*", "un bloc décalé vers la droite était attendu"),
    (r"unexpected indent", "cette ligne est trop à droite"),
    (r"unindent does not match.*", "le retrait ne correspond à aucun bloc"),
    (r"inconsistent use of tabs.*", "tabulations et espaces sont mélangés"),
    (r"'(.)' was never closed", r"« \1 » n'est jamais refermé"),
    (r"unmatched '(.)'", r"« \1 » n'a pas été ouvert"),
    (r"unterminated .*string literal.*", "une chaîne n'est pas refermée"),
    (r"'return' outside function", "return est hors d'une fonction : son retrait est-il bon ?"),
    (r"invalid syntax\. Perhaps you forgot a comma\?", "il manque peut-être une virgule"),
    (r"invalid syntax\. Maybe you meant '(.+)' or '(.+)' instead of '(.+)'\?", r"« \1 » ou « \2 », plutôt que « \3 » ?"),
    (r"cannot assign to .* here\. Maybe you meant '==' instead of '='\?", "« == » compare, « = » donne une valeur"),
    (r"invalid syntax", "Python ne comprend pas cette ligne"),
)


class LoadError(ExerciseError):
    """La réponse ne se charge pas ; le message le dit à la personne. `todo` : elle n'est pas encore écrite."""

    def __init__(self, message: str, todo: bool = False) -> None:
        super().__init__(message)
        self.todo = todo


def explain_syntax(error: SyntaxError | ValueError) -> str:
    """La phrase qui dit une faute de syntaxe : sa ligne, et la ligne elle-même."""
    if not isinstance(error, SyntaxError) or error.lineno is None:
        return f"Ce texte n'est pas du Python : {error}."
    message = str(error.msg)
    for pattern, french in _SYNTAX:
        if match := re.fullmatch(pattern, message):
            message = match.expand(french)
            break
    text = (error.text or "").strip()
    if text.startswith(("!", "%")):
        message = "une commande IPython n'est pas du Python, et la réponse doit se lire comme un fichier"
    return f"Erreur de syntaxe, ligne {error.lineno} : {message}" + (f"\n    {text}" if text else ".")


class Learner:
    """Une réponse chargée. `module` : le module de la personne ; `name` : le nom sous lequel il est dans `sys.modules`."""

    def __init__(self, file: str) -> None:
        self.file, self.name = file, ANSWER_MODULE + Path(file).stem
        self.module, self.filename, self.lines = ModuleType(self.name), file, []

    def load(self, answer: str | Path | ModuleType, guard: Guard) -> None:
        """Exécute la réponse dans un module neuf, ou prend le module donné. Lève `LoadError` si cela échoue."""
        if isinstance(answer, ModuleType):
            self.module, self.filename = answer, getattr(answer, "__file__", None) or self.file
            return
        source = self._read(answer)
        self.lines = source.splitlines()
        self.module.__file__ = self.filename
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # la cellule les a déjà montrés
                code = compile(source, self.filename, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise LoadError(explain_syntax(error)) from None
        except (RecursionError, MemoryError):
            raise LoadError("Ce programme est trop imbriqué pour que Python le lise.") from None
        sys.modules[self.name] = self.module  # les dataclasses l'y cherchent
        outcome = guard.run(exec, code, vars(self.module))
        if outcome.error is not None:
            explanation, line = self.explain(outcome.error, guard)
            if isinstance(outcome.error, NotImplementedError):
                raise LoadError(f"Pas encore écrite : le fichier appelle une fonction encore vide.\n    {line}", todo=True)
            raise LoadError(f"La réponse ne se charge pas. {explanation}" + (f"\n    {line}" if line else ""))

    def _read(self, answer: str | Path) -> str:
        if isinstance(answer, str) and ("\n" in answer or not answer.endswith(".py")):
            return answer
        self.filename = str(answer)
        try:
            return read_source(Path(answer))
        except ExerciseError as problem:
            raise LoadError(str(problem)) from None

    def explain(self, error: BaseException, guard: Guard) -> tuple[str, str]:
        """La phrase qui dit cette exception, et la ligne de la personne (« ligne 3 : return a / b »), ou une chaîne vide."""
        trace = BaseException.__traceback__.__get__(error)  # l'attribut de la personne pourrait être n'importe quoi
        frames = [frame for frame in traceback.extract_tb(trace) if frame.filename == self.filename]
        line = ""
        if frames:
            number = frames[-1].lineno or 0
            text = self.lines[number - 1].strip() if 0 < number <= len(self.lines) else frames[-1].line or ""
            line = f"ligne {number} : {text}"
        if isinstance(error, TimeLimit):
            return "Le calcul n'a pas fini à temps et a été coupé : une boucle ne s'arrête peut-être jamais.", line
        if isinstance(error, SystemExit):
            return "La réponse arrête Python (SystemExit) : retirez cet appel à exit ou quit.", line
        outcome = guard.run(str, error)
        message = outcome.value[:300] if type(outcome.value) is str else ""
        sentence = f"{type_name(error)} : {message}" if message else type_name(error)
        if isinstance(error, NameError):
            sentence += ". La réponse est vérifiée seule : ce qu'une autre cellule définit ou importe n'existe pas ici"
        return sentence.rstrip(".") + ".", line
