"""Ce qui rend une courbe lisible : marques, repères, noms au bout des traits, sans que rien n'en couvre un autre."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from minibatcher.viz.style import INK, MUTED, french_axis, french_spaces

# Chaque courbe se reconnaît aussi sans couleur : à ses marques, ou à son trait s'il y a trop de points.
MARKERS = "osD^vP"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
MAX_MARKERS = 30
PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9}
LINE = 0.085  # hauteur d'une ligne de texte, en part des axes


def pen(index: int, num_points: int) -> dict:
    if num_points <= MAX_MARKERS:
        return {"marker": MARKERS[index % len(MARKERS)], "markersize": 5}
    return {"linestyle": DASHES[index % len(DASHES)]}


def french_axes(axes: Axes, x: np.ndarray, logx: bool, logy: bool, share: bool) -> None:
    if logx:
        # Les abscisses mesurées elles-mêmes, tant qu'elles se lisent.
        if len(x) <= 14:
            axes.set_xticks(x)
        else:
            axes.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
    elif np.all(x == np.round(x)):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    if logy:
        axes.yaxis.set_minor_formatter(NullFormatter())
    french_axis(axes.xaxis)
    french_axis(axes.yaxis, share)


def _fraction(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Un point, en fraction des axes, quelle que soit leur échelle."""
    return tuple((axes.transScale + axes.transLimits).transform((x, y)))


def mark_verticals(axes: Axes, verticals: Mapping[str, float]) -> None:
    """Un trait par repère ; son texte dans une bande réservée en haut, une ligne par repère pour qu'aucun n'en couvre un autre."""
    if not verticals:
        return
    band = LINE * len(verticals)
    to_axes = axes.transScale + axes.transLimits
    top = to_axes.inverted().transform((0, 1 / (1 - band)))[1]
    axes.set(xlim=axes.get_xlim(), ylim=(axes.get_ylim()[0], top))
    for row, (text, value) in enumerate(verticals.items()):
        axes.axvline(value, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.3)
        left = _fraction(axes, value, top)[0] < 0.6
        axes.annotate(
            french_spaces(text),
            (value, 1 - LINE * row),
            (5 if left else -5, -3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="left" if left else "right",
            va="top",
            color=INK,
            fontsize=9,
            bbox=PLATE,
        )


def mark_point(axes: Axes, text: str, x: float, y: float) -> None:
    across, up = _fraction(axes, x, y)
    axes.plot(
        [x], [y], marker="o", markersize=11, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.8, linestyle="none"
    )
    # Vers l'intérieur de la figure, et plutôt dessous : au-dessus d'un coude passe la courbe.
    offset = (14 if across < 0.6 else -14, -26 if up > 0.3 else 26)
    axes.annotate(
        french_spaces(text),
        (x, y),
        offset,
        textcoords="offset points",
        ha="left" if across < 0.6 else "right",
        va="center",
        bbox=PLATE,
        arrowprops={"arrowstyle": "-", "color": INK, "shrinkB": 6},
    )


def label_ends(axes: Axes, ends: list[tuple[str, float, Artist]]) -> None:
    """Le nom de chaque courbe à sa droite, à la hauteur de son dernier point, sans que deux noms se touchent.

    `ends` : nom, dernière ordonnée, et le trait dont on rappelle l'allure.
    """
    placed = sorted(([_fraction(axes, axes.get_xlim()[1], y)[1], name, artist] for name, y, artist in ends), key=lambda end: end[0])
    for lower, upper in pairwise(placed):
        upper[0] = max(upper[0], lower[0] + LINE)
    placed[-1][0] = min(placed[-1][0], 1.0)
    for upper, lower in pairwise(placed[::-1]):
        lower[0] = min(lower[0], upper[0] - LINE)
    for height, name, artist in placed:
        line = isinstance(artist, Line2D)
        look = {"color": artist.get_color() if line else artist.get_edgecolor(), "linestyle": artist.get_linestyle()}
        if line:
            look |= {"marker": artist.get_marker(), "markersize": 5, "markevery": [0]}
        axes.plot([1.012, 1.045], [height] * 2, transform=axes.transAxes, clip_on=False, **look)
        axes.annotate(french_spaces(name), (1.055, height), xycoords="axes fraction", va="center", fontsize=9)
