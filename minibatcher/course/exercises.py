"""Les exercices à compléter, générés depuis les solutions.

Dans `solutions/exNN_nom.py`, une région est ce qui est entre deux commentaires :

    # début solution : Un lot dure autant que sa plus longue séquence.
    ...
    # fin solution

- dans une fonction, `exercises/exNN_nom.py` la remplace par `raise NotImplementedError("Un lot dure autant que…")` : l'indice est
  obligatoire, sur une ligne, sans guillemet droit ;
- au bord gauche (fonction auxiliaire, import), elle disparaît : pas d'indice.

Tout le reste est repris tel quel. `python -m minibatcher.course.exercises` régénère tout ; avec `--check`, n'écrit rien et échoue
(code 1) si un exercice n'est plus à jour ou laisse voir une ligne de la solution.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minibatcher.course.places import ExerciseError, blanks_folder, exercise_ids, read_source, solutions_folder

_MARKER = re.compile(r"^(?P<indent>[ \t]*)#\s*(?P<kind>début|fin)\s+solution\b\s*(?::\s*(?P<hint>.*?))?\s*$")
_MISSPELLED = re.compile(r"#\s*(?:debut|début|fin)\s+(?:de\s+)?(?:la\s+)?solution", re.IGNORECASE)
_LINE_LENGTH = 132
_TELLING = 12  # en deçà, une ligne (`else:`, `return x`) ne dit rien de la solution
HEADER = """\
# Exercice {id}, généré depuis solutions/{name} : ce fichier est réécrit quand la solution change.
# Répondez dans une copie, mes_exercices/{name}, puis vérifiez-la : minibatcher check {id}
"""


@dataclass(frozen=True)
class Region:
    """Une région de solution : lignes `start` et `end` des deux marqueurs (la première du fichier est la ligne 1)."""

    start: int
    end: int
    indent: str
    hint: str


def find_regions(source: str, name: str = "la solution") -> list[Region]:
    """Les régions marquées, dans l'ordre. Lève `ExerciseError`, avec la ligne, si un marqueur est seul, imbriqué ou mal écrit."""
    regions: list[Region] = []
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(source.splitlines(), start=1):
        marker = _MARKER.match(line)
        where = f"{name}, ligne {number}"
        if marker is None:
            if _MISSPELLED.search(line):
                raise ExerciseError(f"{where} : marqueur mal écrit. Écrivez « # début solution : indice » ou « # fin solution ».")
        elif marker["kind"] == "début":
            if opened:
                raise ExerciseError(f"{where} : une région s'ouvre alors que celle de la ligne {opened[0]} n'est pas refermée.")
            opened = (number, marker["indent"], _checked_hint(where, marker["indent"], marker["hint"] or ""))
        else:
            if opened is None:
                raise ExerciseError(f"{where} : « fin solution » sans « début solution ».")
            if marker["indent"] != opened[1]:
                raise ExerciseError(f"{where} : « fin solution » n'est pas au même retrait que son début, ligne {opened[0]}.")
            if marker["hint"]:
                raise ExerciseError(f"{where} : l'indice s'écrit à « début solution », pas à la fin.")
            regions.append(Region(opened[0], number, *opened[1:]))
            opened = None
    if opened:
        raise ExerciseError(f"{name}, ligne {opened[0]} : cette région n'est pas refermée. Ajoutez « # fin solution ».")
    if not regions:
        raise ExerciseError(f"{name} : aucune région marquée, l'exercice donnerait toute la solution.")
    return regions


def _checked_hint(where: str, indent: str, hint: str) -> str:
    if bool(indent) != bool(hint):
        rule = "dans une fonction, l'indice est obligatoire" if indent else "une région au bord gauche disparaît, sans indice"
        raise ExerciseError(f"{where} : {rule}.")
    if '"' in hint or "\\" in hint:
        raise ExerciseError(f'{where} : ni " ni \\ dans un indice ; les guillemets sont « ».')
    if len(_blank(indent, hint)) > _LINE_LENGTH:
        raise ExerciseError(f"{where} : indice trop long, la ligne générée dépasserait {_LINE_LENGTH} caractères.")
    return hint


def _blank(indent: str, hint: str) -> str:
    return f'{indent}raise NotImplementedError("{hint}")'


def generate(source: str, name: str) -> str:
    """Le texte de l'exercice `name` (« ex01_batching.py ») d'après celui de sa solution. Lève `ExerciseError`."""
    lines = source.splitlines()
    kept: list[str] = []
    position = 0
    for region in find_regions(source, f"solutions/{name}"):
        kept += lines[position : region.start - 1]
        position = region.end
        if region.hint:
            kept.append(_blank(region.indent, region.hint))
        else:  # sans elle, les lignes vides qui l'entouraient s'ajouteraient
            while kept and not kept[-1].strip() and position < len(lines) and not lines[position].strip():
                position += 1
    kept += lines[position:]
    text = HEADER.format(id=name.partition("_")[0], name=name) + "\n".join(kept).rstrip() + "\n"
    _compile(text, f"exercises/{name}")
    return text


def _compile(text: str, name: str) -> None:
    try:
        compile(text, name, "exec")
    except SyntaxError as problem:
        raise ExerciseError(f"{name}, ligne {problem.lineno} : sans ses régions, la solution n'est plus du Python.") from None


def leaked_lines(source: str, text: str, name: str = "la solution") -> list[str]:
    """Les lignes de la solution `source` que `text` (un exercice, un carnet) laisse voir."""
    lines = source.splitlines()
    answers = [line.strip() for region in find_regions(source, name) for line in lines[region.start : region.end - 1]]
    telling = [answer for answer in answers if len(answer) >= _TELLING and not answer.startswith("#")]
    return [answer for answer in dict.fromkeys(telling) if answer in text]


def solutions() -> Iterator[Path]:
    """Les fichiers de solutions, dans l'ordre. Lève `ExerciseError` si un exercice n'en a pas exactement une."""
    for exercise_id in exercise_ids():
        found = sorted(solutions_folder().glob(f"{exercise_id}_*.py"))
        if len(found) != 1:
            raise ExerciseError(f"{exercise_id} : il faut une seule solution solutions/{exercise_id}_….py, et non {len(found)}.")
        yield found[0]


def blank_source(exercise_id: str) -> str:
    """L'exercice à compléter, tel qu'il est distribué. Lève `ExerciseError` s'il n'existe pas."""
    found = sorted(blanks_folder().glob(f"{exercise_id}_*.py"))
    if not found:
        raise ExerciseError(f"Pas d'exercice {exercise_id!r} dans {blanks_folder()}. Exercices : {', '.join(exercise_ids())}.")
    return read_source(found[0])


def cell_source(exercise_id: str) -> str:
    """Ce que contient la cellule du carnet après `%%exercice` : l'exercice sans l'en-tête ni la docstring du fichier."""
    text = blank_source(exercise_id)
    text = re.sub(r"\A(?:#.*\n|\s*\n)*", "", text)
    return re.sub(r'\A""".*?"""\s*', "", text, flags=re.DOTALL)


def problems() -> list[str]:
    """Ce qui ne va pas dans `exercises/` : une phrase par fichier pas à jour, en trop, ou qui montre la solution."""
    found = []
    expected = set()
    for solution in solutions():
        target = blanks_folder() / solution.name
        expected.add(target.name)
        source = read_source(solution)
        stored = read_source(target) if target.exists() else ""
        if stored != generate(source, solution.name):
            found.append(f"exercises/{target.name} n'est pas à jour. Lancez : python -m minibatcher.course.exercises")
        for line in leaked_lines(source, stored, f"solutions/{solution.name}"):
            found.append(f"exercises/{target.name} laisse voir une ligne de la solution : {line}")
    extra = sorted({path.name for path in blanks_folder().glob("*.py")} - expected)
    return found + [f"exercises/{name} n'a pas de solution : supprimez-le ou écrivez-la." for name in extra]


def write_all() -> list[Path]:
    """Régénère les exercices ; rend ceux qui ont changé. Lève `ExerciseError` plutôt que d'écrire une ligne de la solution."""
    changed = []
    for solution in solutions():
        source = read_source(solution)
        text = generate(source, solution.name)
        if leaks := leaked_lines(source, text, f"solutions/{solution.name}"):
            raise ExerciseError(f"solutions/{solution.name} montre, hors des régions, une ligne de la solution : {leaks[0]}")
        target = blanks_folder() / solution.name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8", newline="\n")
            changed.append(target)
    return changed


def main(argv: list[str] | None = None) -> int:
    """Régénère (0), ou contrôle avec `--check` (0, ou 1 si quelque chose ne va pas) ; 2 pour une solution mal écrite."""
    parser = argparse.ArgumentParser(prog="python -m minibatcher.course.exercises", description="Régénère exercises/.")
    parser.add_argument("--check", action="store_true", help="n'écrit rien ; échoue si un exercice n'est pas à jour")
    args = parser.parse_args(argv)
    try:
        if args.check:
            found = problems()
            print("\n".join(found) or "Les exercices sont à jour.", file=sys.stderr if found else sys.stdout)
            return 1 if found else 0
        changed = write_all()
        print("\n".join(f"écrit : exercises/{path.name}" for path in changed) or "Les exercices étaient à jour.")
        return 0
    except ExerciseError as problem:
        print(f"exercices : {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
