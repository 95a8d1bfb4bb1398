"""Ce que vit le moteur au fil du temps : requêtes en cours et en file, cache utilisé."""

from collections.abc import Iterable

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from minibatcher.engine import Event, StepEvent
from minibatcher.viz.curves import draw_steps
from minibatcher.viz.marks import label_ends
from minibatcher.viz.style import (
    BLUE,
    GREEN,
    ORANGE,
    french_axis,
    french_number,
    new_figure,
    percent,
    plural,
    set_title,
    short_number,
    styled,
)


@styled
def plot_queue(
    events: Iterable[Event], num_blocks: int | None = None, title: str = "En cours, en file, et le cache"
) -> tuple[Figure, str]:
    """Requêtes en cours et en file, puis cache utilisé, au fil du temps du moteur (secondes) ; rend la figure et son texte.

    `num_blocks` : taille du cache en blocs, pour en montrer la part utilisée ; sans elle, le nombre de blocs libres.
    """
    steps = [event for event in events if isinstance(event, StepEvent)]
    if not steps:
        raise ValueError("Le journal ne contient aucun pas\u202f: il n'y a rien à dessiner.")
    edges = np.array([event.start for event in steps] + [steps[-1].end]) - steps[0].start
    # `num_running` ne compte plus celles qui finissent à ce pas, et qui y ont pourtant pris part.
    running = np.array([event.num_running + len(event.finished) for event in steps])
    waiting = np.array([event.num_waiting for event in steps])
    free = np.array([event.num_free_blocks for event in steps])
    figure, (above, below) = new_figure(4.6, rows=2, sharex=True, height_ratios=(3, 2))
    draw_steps(above, running, edges, BLUE)
    draw_steps(above, waiting, edges, ORANGE, linestyle="--")
    cache = free if num_blocks is None else 1 - free / num_blocks
    draw_steps(below, cache, edges, GREEN, fill=True)
    for axes in (above, below):
        axes.grid(True)
        axes.set_xlim(edges[0], edges[-1])
        french_axis(axes.yaxis)
    above.set(ylabel="requêtes", ylim=(0, None))
    above.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    below.set(xlabel="secondes", ylabel="blocs libres" if num_blocks is None else "cache utilisé", ylim=(0, None))
    french_axis(below.xaxis)
    if num_blocks is not None:
        below.set_ylim(0, 1.02)
        french_axis(below.yaxis, share=True)
    label_ends(above, [("en cours", running[-1], above.patches[0]), ("en file", waiting[-1], above.patches[1])])
    num_preemptions = sum(len(event.preempted) for event in steps)
    preempted = plural(num_preemptions, "préemption")
    set_title(above, title, f"{plural(len(steps), 'pas', '')} en {_duration(edges[-1])}, {preempted}")
    if num_blocks is not None:
        cached = f"cache utilisé à {percent(cache.max())} au plus fort"
    else:
        cached = f"{plural(free.min(), 'bloc libre')} au moins"
    peak = f"{plural(running.max(), 'requête')} en cours et {french_number(waiting.max())} en file au plus"
    return figure, f"{title}. {plural(len(steps), 'pas', '')} en {_duration(edges[-1])}\u202f: {peak}, {cached}, {preempted}."


def _duration(seconds: float) -> str:
    return f"{short_number(1000 * seconds)} ms" if seconds < 1 else f"{short_number(seconds)} s"
