"""La distribution des latences : combien de requêtes attendent, et combien de temps."""

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from minibatcher.metrics import RequestMetrics
from minibatcher.viz.marks import DASHES
from minibatcher.viz.style import (
    GREY,
    INK,
    REQUEST_COLORS,
    VERMILION,
    french_axis,
    new_figure,
    percent,
    short_number,
    styled,
)

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
QUANTILE_MARKERS = {"p50": "o", "p95": "^", "p99": "D"}
LATENCIES = {"ttft": "TTFT, attente du premier token", "tpot": "TPOT, temps entre deux tokens"}


@styled
def plot_latencies(
    requests: Iterable[RequestMetrics] | Mapping[str, Iterable[RequestMetrics]],
    targets: Mapping[str, float] | None = None,
    title: str = "Combien attendent, et combien de temps",
    logx: bool = False,
) -> tuple[Figure, str]:
    """Part des requêtes servies en moins de tant, TTFT et TPOT ; p50, p95 et p99 marqués ; rend la figure et son texte alternatif.

    - `requests` : les mesures d'une charge (`request_metrics(...).values()`), ou celles de plusieurs, par nom ;
    - `targets` : délais visés, en secondes, sous les clés `"ttft"` et `"tpot"` ; `logx` : durées en échelle logarithmique.
    """
    loads = dict(requests) if isinstance(requests, Mapping) else {"": requests}
    loads = {name: list(load) for name, load in loads.items()}
    targets = targets or {}
    figure, panels = new_figure(4.0 + 0.22 * len(loads), columns=2, sharey=True)
    said = []
    for axes, (latency, heading) in zip(panels, LATENCIES.items(), strict=True):
        samples = {name: _known(getattr(request, latency) for request in load) for name, load in loads.items()}
        said.append(f"{heading}\u202f: {_draw_distributions(axes, samples, targets.get(latency), logx)}")
        axes.set_title(heading, fontsize=10.5)
    panels[0].set_ylabel("part des requêtes")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    handles = [
        Line2D([], [], marker=marker, color=GREY, markeredgecolor=INK, linestyle="none", label=quantile)
        for quantile, marker in QUANTILE_MARKERS.items()
    ]
    figure.legend(handles=handles, loc="upper right", ncols=3, bbox_to_anchor=(1, 1), handletextpad=0.1, borderaxespad=0.3)
    return figure, f"{title}. {' '.join(said)}"


def _known(values: Iterable[float | None]) -> np.ndarray:
    return np.array(sorted(value for value in values if value is not None), dtype=float)


def _draw_distributions(axes: Axes, samples: Mapping[str, np.ndarray], target: float | None, logx: bool) -> str:
    """Une courbe de répartition par charge, `samples` en secondes ; rend ce qu'elles disent."""
    longest = max((float(sample[-1]) for sample in samples.values() if len(sample)), default=0.0)
    scale, unit = (1000, "ms") if longest < 1 else (1, "s")
    said = []
    for i, (name, sample) in enumerate(samples.items()):
        prefix = f"{name}\u202f: " if name else ""
        if not len(sample):
            said.append(f"{prefix}aucune mesure.")
            continue
        marks = {quantile: scale * float(np.percentile(sample, 100 * share)) for quantile, share in QUANTILES.items()}
        text = prefix + ", ".join(f"{quantile} {short_number(value)}" for quantile, value in marks.items()) + f" {unit}"
        color = REQUEST_COLORS[i % len(REQUEST_COLORS)]
        axes.ecdf(scale * sample, color=color, linestyle=DASHES[i % len(DASHES)], label=text)
        for quantile, value in marks.items():
            axes.plot([value], [QUANTILES[quantile]], QUANTILE_MARKERS[quantile], color=color, markeredgecolor=INK, markersize=7)
        kept = f", {percent(float((sample <= target).mean()))} à temps" if target is not None else ""
        said.append(f"{text}{kept}.")
    axes.grid(True)
    if logx:
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, None)
    axes.set(xlabel=unit, ylim=(0, 1.03), yticks=[0, 0.25, 0.5, 0.75, 0.95])
    french_axis(axes.xaxis)
    french_axis(axes.yaxis, share=True)
    if target is not None:
        goal = f"objectif\u202f: {short_number(scale * target)} {unit}"
        axes.axvline(scale * target, color=VERMILION, linestyle=(0, (1, 1)), label=goal)
        axes.set_xlim(right=max(axes.get_xlim()[1], 1.05 * scale * target))
        said.append(f"{goal.capitalize()}.")
    if axes.lines:
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), borderaxespad=0)
    return " ".join(said)
