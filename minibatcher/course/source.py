"""Lire la source d'un carnet (py:percent) : ses cellules, avec la ligne où chacune commence."""

import re
from dataclasses import dataclass
from pathlib import Path

from minibatcher.errors import MinibatcherError

TAGS = ("mise-en-place", "cite", "exercice", "mesure", "raises-exception")
_MARKER = re.compile(r"^#\s*%%(?:\s|$)")


class BuildError(MinibatcherError, ValueError):
    """Une source de carnet, ou ce qu'elle cite, ne permet pas de construire le carnet."""


@dataclass(frozen=True)
class Cell:
    """Une cellule de la source : son genre (« markdown » ou « code »), ses étiquettes, son texte, et la ligne de ce texte."""

    kind: str
    tags: tuple[str, ...]
    text: str
    line: int
    path: Path

    def error(self, message: str, offset: int = 0) -> BuildError:
        """L'erreur qui nomme le fichier et la ligne (celle du texte, plus `offset`)."""
        return BuildError(f"{self.path.name}, ligne {self.line + offset} : {message}")

    @property
    def is_prose(self) -> bool:
        """Du texte écrit par l'auteur, et non du code cité."""
        return self.kind == "markdown" and "cite" not in self.tags


def read_source(path: Path) -> list[Cell]:
    """Les cellules de `path`, dans l'ordre. Lève `BuildError` si le fichier est illisible ou porte une étiquette inconnue."""
    import jupytext

    try:
        text = path.read_text(encoding="utf-8")
        notebook = jupytext.reads(text, fmt="py:percent")
    except (OSError, ValueError) as problem:
        raise BuildError(f"{path.name} : source illisible ({problem}).") from None
    lines = text.split("\n")
    markers = [number for number, line in enumerate(lines, start=1) if _MARKER.match(line)]
    if len(markers) != len(notebook.cells):
        raise BuildError(f"{path.name} : tout le texte doit suivre une ligne « # %% » (après l'en-tête « # --- », s'il y en a un).")
    cells = []
    for marker, end, cell in zip(markers, [*markers[1:], len(lines) + 1], notebook.cells, strict=True):
        first = next((number for number in range(marker + 1, end) if lines[number - 1].strip()), marker)
        tags = tuple(cell.metadata.get("tags", ()))
        parsed = Cell(cell.cell_type, tags, cell.source, first, path)
        for tag in tags:
            if tag not in TAGS:
                raise parsed.error(f"étiquette inconnue « {tag} ». Étiquettes possibles : {', '.join(TAGS)}.", marker - first)
        cells.append(parsed)
    return cells
