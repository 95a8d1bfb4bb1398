"""Le style commun des figures : palette lisible par les daltoniens (Okabe et Ito, 2008), texte alternatif obligatoire."""

import math
from pathlib import Path

from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#F0E442",
    "#000000",
)
REQUEST_COLORS = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE)
GREY = "#BBBBBB"


def french_number(value: float, digits: int = 0) -> str:
    """Un nombre à la française : espace fine insécable entre les milliers, virgule décimale."""
    if not math.isfinite(value):
        return "—"
    return f"{value:,.{digits}f}".replace(",", "\u202f").replace(".", ",")


def save(figure: Figure, path: Path, alt: str) -> None:
    """Écrit la figure en PNG, son texte alternatif dans les métadonnées (`Description`)."""
    figure.savefig(path, dpi=150, metadata={"Description": alt}, bbox_inches="tight")
