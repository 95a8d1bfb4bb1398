"""La cellule `%%exercice ex01` : elle enregistre ce qui est écrit, l'exécute dans le carnet, puis le vérifie.

Le fichier est `mes_exercices/ex01_….py`, dans le dossier du carnet (`MINIBATCHER_EXERCICES` en désigne un autre) : celui que
`minibatcher check ex01` et la notation liront. Une réponse à faire, fausse ou mal écrite n'arrête pas « Tout exécuter ».
"""

import ast
import contextlib
import linecache
import os
import tempfile
from pathlib import Path
from types import FunctionType

from minibatcher.course.check import TIME_LIMIT, load_exercise, run_checks
from minibatcher.course.contract import Exercise
from minibatcher.course.guard import Guard, Outcome, Snapshot
from minibatcher.course.learner import Learner
from minibatcher.course.places import ExerciseError, submissions_folder

NAME = "exercice"
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # ce que lire un texte quelconque peut lever


def register(shell) -> None:
    """Ajoute `%%exercice` à ce shell IPython."""

    def exercice(line: str, cell: str) -> None:
        """`%%exercice ex01` : enregistre la cellule dans mes_exercices/, l'exécute, puis vérifie la réponse."""
        run_exercise_cell(shell, line, cell)

    shell.register_magic_function(exercice, magic_kind="cell", magic_name=NAME)


def unregister(shell) -> None:
    """Retire `%%exercice` de ce shell."""
    shell.magics_manager.magics["cell"].pop(NAME, None)


def run_exercise_cell(shell, line: str, cell: str) -> None:
    """Ce que fait la cellule. Lève `UsageError` (une phrase, sans trace) si l'exercice n'existe pas."""
    from IPython.core.error import UsageError
    from IPython.display import display

    try:
        exercise = load_exercise(line.strip())
    except ExerciseError as problem:
        raise UsageError(f"%%{NAME} : {problem}") from None
    # Cette première ligne tient la place de %%exercice : les numéros de ligne sont ceux que la cellule affiche.
    text = f"# {exercise.id} : enregistré par la cellule %%{NAME} du carnet\n{cell.rstrip()}\n"
    print(save(exercise, text))
    outcome = _execute(shell, exercise, text)
    report = run_checks(exercise.id, text)
    if outcome.error is not None and not report.load_error:
        learner = Learner(exercise.file)
        learner.lines = text.splitlines()
        print("Dans le carnet, cette cellule s'est arrêtée.", *learner.explain(outcome.error, _guard()))
    display(report)


def save(exercise: Exercise, text: str) -> str:
    """Enregistre la réponse, sauf si elle est vide et qu'une autre existe déjà ; rend la phrase qui le dit."""
    path = submissions_folder() / exercise.file
    try:
        stored = path.read_bytes() if path.exists() else None
        if stored == text.encode():
            return f"Enregistré dans {path}."
        if stored is not None and _is_blank(text, exercise) and not _is_blank(stored.decode("utf-8", "replace"), exercise):
            return f"{path} contient déjà une réponse : cette cellule, encore vide, ne la remplace pas."
        _write(path, text)
    except OSError as problem:
        return f"Impossible d'enregistrer {path} ({problem.strerror or problem}). La vérification continue, mais rien n'est gardé."
    return f"Enregistré dans {path}."


def _write(path: Path, text: str) -> None:
    """D'un seul coup : une coupure ne laisse jamais un fichier à moitié écrit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(text.encode())
        os.chmod(draft, 0o644)  # mkstemp ne donne le fichier qu'à son propriétaire
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _is_blank(text: str, exercise: Exercise) -> bool:
    """Aucune fonction demandée n'est écrite."""
    try:
        tree = ast.parse(text)
    except _UNREADABLE:
        return False  # un essai, même mal écrit
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return not (defined & set(exercise.functions)) - _unwritten(tree)


def _unwritten(tree: ast.Module) -> set[str]:
    """Les fonctions dont le corps n'est encore que `raise NotImplementedError(…)`."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {function.name for function in functions if all(map(_says_nothing, function.body))}


def _says_nothing(step: ast.stmt) -> bool:
    return isinstance(step, ast.Raise | ast.Pass) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))


def _execute(shell, exercise: Exercise, text: str) -> Outcome:
    """Exécute la cellule dans le carnet, et affiche sa dernière expression comme le ferait une cellule ordinaire."""
    try:
        tree = ast.parse(text, exercise.file)
        *steps, last = tree.body or [None]
        if not isinstance(last, ast.Expr):
            steps, last = tree.body, None
        codes = [compile(ast.Module(steps, []), exercise.file, "exec", dont_inherit=True)]
        codes += [compile(ast.Interactive([last]), exercise.file, "single", dont_inherit=True)] if last else []
    except _UNREADABLE:
        return Outcome()  # le compte rendu le dira
    # Les traces des cellules suivantes montreront ces lignes.
    linecache.cache[exercise.file] = (len(text), None, text.splitlines(keepends=True), exercise.file)
    # Une fonction du paquet déjà importée reste, tant que celle de la personne n'est pas écrite : la suite du carnet s'en sert.
    kept = {name: shell.user_ns[name] for name in _unwritten(tree) if _from_package(shell.user_ns.get(name))}
    outcome = Outcome()
    for code in codes:
        if outcome.error is None:
            outcome = _guard().run(exec, code, shell.user_ns)
    shell.user_ns.update(kept)
    return outcome


def _from_package(value: object) -> bool:
    return isinstance(value, FunctionType) and str(value.__module__).startswith("minibatcher.")


def _guard() -> Guard:
    return Guard(TIME_LIMIT, Snapshot(), None)
