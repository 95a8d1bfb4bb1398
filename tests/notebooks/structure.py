"""La forme d'un carnet : ce qu'il doit contenir, et son rythme."""

import re
from dataclasses import dataclass
from statistics import median

from minibatcher.course.lessons import Lesson
from minibatcher.course.source import Cell
from minibatcher.course.typography import mask

MAX_WORDS, MAX_CODE_LINES, MAX_CODE_WIDTH, MIN_PREDICTIONS = 2000, 25, 132, 4
_PREDICTION = re.compile(r"^> \*\*Prédisez", re.MULTILINE)


@dataclass(frozen=True)
class Rhythm:
    """Les chiffres d'un carnet : cellules, mots, lignes de la cellule de code médiane et de la plus longue, prédictions."""

    cells: int
    words: int
    median_code: float
    longest_code: int
    predictions: int

    def row(self) -> str:
        """Une ligne de tableau ; « ! » après un chiffre hors du rythme visé par le programme."""

        def shown(value: float, low: float, high: float, width: int) -> str:
            return f"{value:g}{'' if low <= value <= high else ' !'}".rjust(width)

        return "".join(
            (
                shown(self.cells, 35, 60, 10),
                shown(self.words, 0, MAX_WORDS, 8),
                shown(self.median_code, 5, 8, 10),
                shown(self.longest_code, 0, MAX_CODE_LINES, 10),
                shown(self.predictions, MIN_PREDICTIONS, 99, 12),
            )
        )


HEADER = (
    "carnet".ljust(26)
    + "cellules".rjust(10)
    + "mots".rjust(8)
    + "médiane".rjust(10)
    + "maximum".rjust(10)
    + "prédictions".rjust(12)
)


def code_lines(cell: Cell) -> int:
    """Lignes non vides."""
    return sum(bool(line.strip()) for line in cell.text.split("\n"))


def authored_code(cells: list[Cell]) -> list[Cell]:
    """Les cellules de code écrites pour ce carnet : ni la mise en place, ni l'exercice."""
    return [cell for cell in cells if cell.kind == "code" and not {"mise-en-place", "exercice"} & set(cell.tags)]


def num_words(cells: list[Cell]) -> int:
    """Mots de la prose, sans le code, les formules ni les adresses."""
    return sum(len(re.findall(r"[^\W_]+(?:['-][^\W_]+)*", mask(cell.text, " "))) for cell in cells if cell.is_prose)


def rhythm(cells: list[Cell], notebook) -> Rhythm:
    """Les chiffres de ce carnet (`cells` : sa source ; `notebook` : ce qu'elle donne)."""
    sizes = [code_lines(cell) for cell in authored_code(cells)] or [0]
    predictions = sum(len(_PREDICTION.findall(cell.text)) for cell in cells if cell.is_prose)
    return Rhythm(len(notebook.cells), num_words(cells), median(sizes), max(sizes), predictions)


def structure_problems(lesson: Lesson, cells: list[Cell]) -> list[str]:
    """Ce qui manque ou dépasse dans ce carnet, avec la ligne de la source. Liste vide : rien."""
    return [*_opening(lesson, cells), *_closing(lesson, cells), *_predictions(cells), *_code(cells), *_exercise(lesson, cells)]


def _at(cell: Cell, message: str, offset: int = 0) -> str:
    return str(cell.error(message, offset))


def _opening(lesson: Lesson, cells: list[Cell]) -> list[str]:
    found = []
    opening = next(iter(cells), None)
    if opening is None or not opening.is_prose or not re.match(r"# \S", opening.text):
        return [f"{lesson.id} : la première cellule doit être du texte et commencer par « # {lesson.title} »"]
    title = opening.text.split("\n", 1)[0].removeprefix("# ").strip()
    if not title.endswith(lesson.title):
        found.append(_at(opening, f"titre « {title} » ; lessons.py dit « {lesson.title} »"))
    if "Dans ce carnet" not in opening.text:
        found.append(_at(opening, "il manque l'ouverture « Dans ce carnet »"))
    code = [cell for cell in cells if cell.kind == "code"]
    if sum("mise-en-place" in cell.tags for cell in cells) != 1 or "mise-en-place" not in code[0].tags:
        found.append(_at(opening, 'il faut une cellule « # %% tags=["mise-en-place"] », une seule, avant tout autre code'))
    return found


def _closing(lesson: Lesson, cells: list[Cell]) -> list[str]:
    if not cells:
        return []
    titles = [line for cell in cells[-6:] if cell.is_prose for line in cell.text.split("\n") if line.startswith("#")]
    expected = ["À retenir", *(["Ce que nous avons construit"] if lesson.introduces else [])]
    missing = [name for name in expected if not any(name in title for title in titles)]
    return [_at(cells[-1], f"il manque, dans les six dernières cellules, le titre « {name} »") for name in missing]


def _predictions(cells: list[Cell]) -> list[str]:
    asked = [(rank, cell) for rank, cell in enumerate(cells) if cell.is_prose for _ in _PREDICTION.findall(cell.text)]
    found = []
    if len(asked) < MIN_PREDICTIONS and cells:
        found.append(_at(cells[0], f"{len(asked)} « > **Prédisez… » ; il en faut {MIN_PREDICTIONS}"))
    unchecked = [cell for rank, cell in asked if not any(each.kind == "code" for each in cells[rank + 1 : rank + 4])]
    return found + [
        _at(cell, "« Prédisez » sans vérification : aucune des trois cellules suivantes n'est du code") for cell in unchecked
    ]


def _code(cells: list[Cell]) -> list[str]:
    found = []
    for cell in authored_code(cells):
        lines = cell.text.split("\n")
        if not 1 <= code_lines(cell) <= MAX_CODE_LINES:
            found.append(_at(cell, f"cellule de {code_lines(cell)} lignes de code ; il en faut de 1 à {MAX_CODE_LINES}"))
        for offset, line in enumerate(lines):
            if len(line) > MAX_CODE_WIDTH:
                found.append(_at(cell, f"ligne de {len(line)} caractères ; {MAX_CODE_WIDTH} au plus", offset))
            if re.match(r"\s*!.*&\s*$", line):
                found.append(_at(cell, "commande laissée en arrière-plan par « & » : personne ne verrait son échec", offset))
    if (words := num_words(cells)) > MAX_WORDS:
        found.append(_at(cells[0], f"{words} mots ; {MAX_WORDS} au plus"))
    return found


def _exercise(lesson: Lesson, cells: list[Cell]) -> list[str]:
    count = sum("exercice" in cell.tags for cell in cells)
    wanted = 1 if lesson.exercise else 0
    return [] if count == wanted else [_at(cells[0], f"{count} cellule d'exercice ; lessons.py en annonce {wanted}")]


def leftovers(notebook: dict) -> list[str]:
    """Ce qu'une exécution a laissé dans le fichier .ipynb (son JSON) : sorties, numéros d'exécution, état de widgets."""
    found = ["état de widgets dans les métadonnées"] if "widgets" in notebook.get("metadata", {}) else []
    for rank, cell in enumerate(notebook["cells"], start=1):
        if cell.get("outputs"):
            found.append(f"cellule {rank} : sorties enregistrées")
        if cell.get("execution_count") is not None:
            found.append(f"cellule {rank} : numéro d'exécution enregistré")
    return found
