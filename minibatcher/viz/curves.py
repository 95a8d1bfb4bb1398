"""Des courbes : plusieurs grandeurs selon une autre, ou une seule au fil du temps."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from minibatcher.viz.marks import french_axes, label_ends, mark_point, mark_verticals, pen
from minibatcher.viz.style import (
    BLUE,
    INK,
    REQUEST_COLORS,
    french_axis,
    new_figure,
    percent,
    set_title,
    short_number,
    styled,
)

PLATEAU = 0.95  # part du maximum à partir de laquelle une courbe est dite arrivée


@styled
def plot_curves(
    x: ArrayLike,
    series: Mapping[str, ArrayLike],
    xlabel: str,
    ylabel: str,
    title: str,
    *,
    subtitle: str = "",
    verticals: Mapping[str, float] | None = None,
    points: Mapping[str, tuple[float, float]] | None = None,
    logx: bool = False,
    logy: bool = False,
    share: bool = False,
    alt: str | None = None,
) -> tuple[Figure, str]:
    """Plusieurs courbes sur les mêmes abscisses ; rend la figure et son texte alternatif.

    - `x` : `[n]` ; `series` : nom de la courbe → ordonnées `[n]` (`nan` : pas de point) ;
    - `verticals` : texte → abscisse d'un trait de repère ; `points` : texte → point à désigner, un coude par exemple ;
    - `logx`, `logy` : axes logarithmiques ; `share` : ordonnées entre 0 et 1, écrites en pour cent ;
    - `alt` : le texte alternatif, à la place de celui qui se déduit des valeurs.
    """
    x = np.asarray(x, dtype=float)
    curves = {name: np.asarray(values, dtype=float) for name, values in series.items()}
    figure, axes = new_figure(4.0)
    axes.grid(True)
    lines = []
    for i, (name, y) in enumerate(curves.items()):
        lines += axes.plot(x, y, label=name, color=REQUEST_COLORS[i % len(REQUEST_COLORS)], **pen(i, len(x)))
    if logx:
        axes.set_xscale("log", base=2)
    if logy:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    french_axes(axes, x, logx, logy, share)
    mark_verticals(axes, verticals or {})
    for text, (px, py) in (points or {}).items():
        mark_point(axes, text, px, py)
    if len(curves) > 1:
        lasts = (y[np.isfinite(y)] for y in curves.values())
        label_ends(axes, [(name, y[-1] if len(y) else 0.0, line) for name, y, line in zip(curves, lasts, lines, strict=True)])
    set_title(axes, title, subtitle)
    return figure, alt or f"{title}. " + _findings(x, curves, xlabel, ylabel, share, verticals or {}, points or {})


@styled
def plot_over_time(
    values: ArrayLike,
    xlabel: str = "pas",
    ylabel: str = "",
    title: str = "",
    *,
    x: ArrayLike | None = None,
    mean: float | None = None,
    share: bool = False,
    alt: str | None = None,
) -> tuple[Figure, str]:
    """Une grandeur au fil du temps, et sa moyenne si elle est donnée ; rend la figure et son texte alternatif.

    - `values` : `[n]`, chacune valable jusqu'à la suivante ; `x` : leurs dates `[n]`, ou les bords `[n + 1]` (défaut : 0, 1, 2…) ;
    - `share` : valeurs entre 0 et 1, écrites en pour cent ; `alt` : comme pour `plot_curves`.
    """
    values = np.asarray(values, dtype=float)
    edges = np.arange(len(values) + 1.0) if x is None else np.asarray(x, dtype=float)
    if len(edges) == len(values):
        edges = np.append(edges, edges[-1] + (edges[-1] - edges[-2] if len(edges) > 1 else 1.0))
    figure, axes = new_figure(3.2)
    axes.grid(True)
    draw_steps(axes, values, edges, BLUE, fill=True)
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(edges[0], edges[-1]), ylim=(0, 1.02) if share else (min(0, values.min()), None))
    french_axis(axes.xaxis)
    french_axis(axes.yaxis, share)
    said = [f"de {_said(values.min(), share)} à {_said(values.max(), share)}"]
    if mean is not None:
        axes.axhline(mean, color=INK, linestyle="--", linewidth=1.5)
        where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(f"moyenne\n{_said(mean, share)}", (1, mean), (6, 0), va="center", **where)
        said.append(f"moyenne {_said(mean, share)}")
    set_title(axes, title)
    heading = f"{title}. " if title else ""
    return figure, alt or f"{heading}En abscisse, {xlabel}\u202f; en ordonnée, {ylabel or title}\u202f: {', '.join(said)}."


def draw_steps(axes: Axes, values: np.ndarray, edges: np.ndarray, color: str, fill: bool = False, **look) -> None:
    """Une fonction en escalier : `values[i]` entre `edges[i]` et `edges[i + 1]`."""
    if fill:
        axes.stairs(values, edges, fill=True, color=color, alpha=0.25, linewidth=0)
    axes.stairs(values, edges, color=color, baseline=None, linewidth=1.8, **look)


def _said(value: float, share: bool = False) -> str:
    if share:
        return percent(value)
    return short_number(value)


def _findings(x, curves, xlabel, ylabel, share, verticals, points) -> str:
    """Ce que disent les courbes : départ, arrivée, maximum, et où il est presque atteint."""
    said = [f"En abscisse, {xlabel}\u202f; en ordonnée, {ylabel}."]
    for name, y in curves.items():
        known = np.isfinite(y)
        if not known.any():
            said.append(f"{name}\u202f: aucun point.")
            continue
        xs, ys = x[known], y[known]
        best = int(np.argmax(ys))
        text = f"{name}\u202f: de {_said(ys[0], share)} (pour {_said(xs[0])}) à {_said(ys[-1], share)} (pour {_said(xs[-1])})"
        if 0 < best < len(ys) - 1:
            text += f", maximum {_said(ys[best], share)} pour {_said(xs[best])}"
        near = int(np.argmax(ys >= PLATEAU * ys[best])) if ys[best] > 0 else best
        if 0 < near < min(best, len(ys) - 2):
            text += f", à {percent(PLATEAU)} du maximum dès {_said(xs[near])}"
        said.append(text + ".")
    said += [f"Repère «\u202f{text}\u202f» à {_said(value)}." for text, value in verticals.items()]
    for text, (px, py) in points.items():
        said.append(f"Point «\u202f{text}\u202f»\u202f: {_said(px)} en abscisse, {_said(py, share)} en ordonnée.")
    return " ".join(said)
