"""Le style commun des figures : palette lisible par les daltoniens (Okabe et Ito, 2008), fond clair, nombres à la française.

Les figures se construisent sans pyplot : aucune ne reste ouverte, aucune ne s'affiche deux fois, quel que soit le backend.
"""

import functools
import io
import math
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from matplotlib import colors as mcolors
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

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
INK = "#222222"  # textes et traits
MUTED = "#5A5A5A"  # textes secondaires
EMPTY = "#EFEFEF"  # ce qui ne sert à rien, toujours hachuré

P, R = ParamSpec("P"), TypeVar("R")

BAR_HEIGHT = 0.86  # part de sa bande qu'occupe une barre de chronogramme
WIDTH = 9.0  # pouces : la largeur d'une cellule de carnet, à 96 points par pouce
DPI = 144  # une fois et demie l'écran : net sur un écran dense

RC = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # livrée avec matplotlib : la même partout
    "font.size": 10,
    "grid.color": "#E2E2E2",
    "hatch.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def styled(plot: Callable[P, R]) -> Callable[P, R]:
    """Dessine avec ce style-ci, quel que soit celui que la personne a choisi pour ses propres figures."""

    @functools.wraps(plot)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with style.context(["default", RC]):
            return plot(*args, **kwargs)

    return wrapper


def new_figure(height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, Axes]:
    """Une figure de la largeur d'un carnet et de `height` pouces, et ses axes (un tableau s'il y en a plusieurs)."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def set_title(axes: Axes, title: str, subtitle: str = "") -> None:
    """L'idée en gras, les chiffres en dessous ; les longues lignes sont coupées."""
    lines = textwrap.wrap(french_spaces(subtitle), 118)
    axes.set_title(textwrap.fill(french_spaces(title), 88), pad=8 + 14 * len(lines))
    if lines:
        axes.annotate(
            "\n".join(lines), (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points", va="bottom", color=MUTED
        )


def text_on(color: str) -> str:
    """Noir ou blanc : celui des deux qui se lit sur `color`."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in mcolors.to_rgb(color)]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return BLACK if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"  # le contraste avec chacun, selon WCAG 2


def french_number(value: float, digits: int = 0) -> str:
    """Un nombre à la française : espace fine insécable entre les milliers, virgule décimale."""
    if not math.isfinite(value):
        return "—"
    return f"{value:,.{digits}f}".replace(",", "\u202f").replace(".", ",")


def short_number(value: float) -> str:
    """Un nombre à la française, à trois chiffres significatifs au plus, sans zéros inutiles."""
    if not math.isfinite(value) or abs(value) >= 100:
        return french_number(value)
    text = f"{value:.3g}"
    return (f"{value:.1e}" if "e" in text else text).replace(".", ",")


def percent(share: float, digits: int = 0) -> str:
    """Une part de 1 en pour cent."""
    return f"{french_number(100 * share, digits)}\u202f%"


def plural(count: float, noun: str, ending: str = "s") -> str:
    """« 1 slot », « 0 slot vide », « 2 slots vides », « 1 804 pas » (`ending=""`)."""
    words = noun.split() if count < 2 else [word + ending for word in noun.split()]
    return " ".join([french_number(count), *words])


def french_spaces(text: str) -> str:
    """Le même texte, l'espace ordinaire remplacée par une fine insécable devant % ; : ! ? et dans les guillemets."""
    return re.sub(r" ([%;:!?»])", "\u202f\\1", text).replace("« ", "«\u202f")


def enumerate_in_french(items: list[str]) -> str:
    """« A », « A et B », « A, B et C »."""
    return " et ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def french_axis(axis: Axis, share: bool = False) -> None:
    """Écrit les graduations à la française ; `share` : en pour cent."""

    def tick(value: float, _position: int) -> str:
        return percent(value) if share else f"{value:,.10g}".replace(",", "\u202f").replace(".", ",")

    axis.set_major_formatter(FuncFormatter(tick))


@styled
def to_png(figure: Figure, alt: str, dpi: float = DPI) -> bytes:
    """La figure en PNG, son texte alternatif dans les métadonnées (`Description`)."""
    buffer = io.BytesIO()
    tight = None if figure.get_layout_engine() else "tight"  # une figure sans mise en page automatique peut déborder
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Description": alt}, bbox_inches=tight)
    return buffer.getvalue()


def save(figure: Figure, path: Path, alt: str) -> None:
    """Écrit la figure en PNG, comme `to_png`."""
    Path(path).write_bytes(to_png(figure, alt))
