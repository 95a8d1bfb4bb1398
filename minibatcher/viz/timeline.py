"""Le chronogramme : qui occupe quelle place du lot, à chaque pas."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from minibatcher.engine import EndEvent, Event, StepEvent
from minibatcher.simulation.slots import fill_occupancy
from minibatcher.viz.colors import neighbors, request_colors
from minibatcher.viz.style import (
    BAR_HEIGHT,
    EMPTY,
    GREY,
    INK,
    WIDTH,
    french_axis,
    french_number,
    new_figure,
    percent,
    plural,
    set_title,
    styled,
    text_on,
)

PREEMPTION = {"marker": "X", "color": "white", "markeredgecolor": INK, "linestyle": "none", "clip_on": False}


@dataclass
class Occupation:
    """Une requête dans une place, du pas `first` au pas `last` inclus.

    `prefill_until` : premier pas où elle ne calcule plus qu'un token.
    """

    request_id: str
    slot: int
    first: int
    last: int
    prefill_until: int


def occupations(events: Iterable[Event]) -> list[Occupation]:
    """Attribue à chaque requête admise la première place libre, jusqu'à sa fin ou sa préemption. Les pas sont comptés depuis 0."""
    seated: dict[str, Occupation] = {}
    done: list[Occupation] = []
    step = 0

    def leave(request_id: str, last: int) -> None:
        occupation = seated.pop(request_id, None)
        if occupation is not None:
            occupation.last = last
            done.append(occupation)

    for event in events:
        if isinstance(event, EndEvent):
            leave(event.request_id, step - 1)
        if not isinstance(event, StepEvent):
            continue
        for request_id in event.preempted:
            leave(request_id, step - 1)
        for request_id in event.admitted:
            taken = {occupation.slot for occupation in seated.values()}
            slot = next(i for i in range(len(taken) + 1) if i not in taken)
            seated[request_id] = Occupation(request_id, slot, step, step, step)
        for request_id, num_tokens in event.scheduled.items():
            if num_tokens > 1 and request_id in seated:
                seated[request_id].prefill_until = step + 1
        for request_id in event.finished:
            leave(request_id, step)
        step += 1
    for request_id in list(seated):
        leave(request_id, step - 1)
    return sorted(done, key=lambda o: (o.slot, o.first))


@styled
def plot_timeline(events: Iterable[Event], title: str, until: int | None = None) -> tuple[Figure, str]:
    """Une bande par place, une couleur par requête, hachures pendant le prefill ; rend la figure et son texte alternatif.

    `until` : ne dessiner que les `until` premiers pas, sur le même axe.
    """
    rows = occupations(events)
    num_slots = max((row.slot for row in rows), default=0) + 1
    num_steps = max((row.last for row in rows), default=0) + 1
    until = num_steps if until is None else min(until, num_steps)
    colors = _colors(rows, num_slots, num_steps)
    band = min(0.34, max(0.12, 2.6 / num_slots))  # pouces
    figure, axes = new_figure(1.35 + band * num_slots)
    axes.set_facecolor(EMPTY)
    points = ((WIDTH - 0.8) * 72 / num_steps, 72 * band)
    names = _short_names(row.request_id for row in rows)
    for row, color in zip(rows, colors, strict=True):
        _draw_row(axes, row, names[row.request_id], color, until, points)
    preempted = [row for row in rows if any(other.request_id == row.request_id and other.first > row.first for other in rows)]
    shown = [row for row in preempted if row.last < until]
    if shown:  # une courbe vide fausserait la mise en page
        axes.plot([row.last + 1 for row in shown], [row.slot for row in shown], **PREEMPTION, markersize=min(9, 40 * band))
    if until < num_steps:
        axes.add_patch(Rectangle((until, -0.5), num_steps - until, num_slots, facecolor="white", linewidth=0))
        axes.axvline(until, color=INK, linewidth=1.5)
    axes.set(xlabel="pas du moteur", ylabel="place du lot", xlim=(0, num_steps), ylim=(num_slots - 0.5, -0.5))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    french_axis(axes.xaxis)
    handles = [
        Patch(facecolor=GREY, hatch="////", edgecolor="white", linewidth=0, label="prefill"),
        Patch(facecolor=GREY, label="decode"),
        Patch(facecolor=EMPTY, edgecolor=GREY, label="place vide"),
        *([Line2D([], [], **PREEMPTION, markersize=8, label="préemption")] if preempted else []),
    ]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.2, columnspacing=1.5)
    busy = sum(max(0, min(row.last + 1, until) - row.first) for row in rows) / max(1, num_slots * until)
    progress = f"après {french_number(until)} pas sur {french_number(num_steps)}" if until < num_steps else ""
    subtitle = f"{progress.capitalize() or plural(num_steps, 'pas', '')}, places occupées {percent(busy)} du temps"
    set_title(axes, title, subtitle if until else progress.capitalize())
    num_requests = plural(len({row.request_id for row in rows}), "requête")
    where = f"{num_requests} sur {plural(num_slots, 'place')} et {plural(num_steps, 'pas', '')}"
    told = f"{progress}, " if progress else ""
    alt = f"Chronogramme de {where}\u202f: {told}les places sont occupées {percent(busy)} du temps"
    return figure, f"{alt}, {plural(len(shown), 'préemption')}." if preempted else f"{alt}."


def _colors(rows: list[Occupation], num_slots: int, num_steps: int) -> list[str]:
    """La couleur de chaque séjour : ceux qui se touchent diffèrent, et une requête préemptée garde la sienne."""
    numbers = {request_id: i for i, request_id in enumerate(dict.fromkeys(row.request_id for row in sorted(rows, key=_entry)))}
    stays = [(numbers[row.request_id], row.slot, row.first, row.last + 1) for row in rows]
    chosen = request_colors(len(numbers), neighbors(fill_occupancy(stays, num_steps, num_slots)))
    return [chosen[numbers[row.request_id]] for row in rows]


def _entry(row: Occupation) -> tuple[int, int]:
    return row.first, row.slot


def _short_names(request_ids: Iterable[str]) -> dict[str, str]:
    """Le nom affiché de chaque requête : sans le mot qui les commence toutes, s'il reste quelque chose."""
    request_ids = list(request_ids)
    words = {re.match(r"\D*", request_id).group() for request_id in request_ids}
    word = words.pop() if len(words) == 1 else ""
    return {request_id: request_id.removeprefix(word) or request_id for request_id in request_ids}


def _draw_row(axes: Axes, row: Occupation, name: str, color: str, until: int, points: tuple[float, float]) -> None:
    """Un séjour, jusqu'au pas `until` ; `points` : largeur d'un pas et hauteur d'une place, en points."""
    end, top = min(row.last + 1, until), row.slot - BAR_HEIGHT / 2
    if end <= row.first:
        return
    prefill = max(row.first, min(row.prefill_until, end))
    for start, stop, hatch in ((row.first, prefill, "////"), (prefill, end, None)):
        if stop > start:
            box = Rectangle((start, top), stop - start, BAR_HEIGHT, facecolor=color, hatch=hatch, edgecolor="white", linewidth=0)
            axes.add_patch(box)
    if row.first > 0:
        axes.vlines(row.first, top, top + BAR_HEIGHT, color="white", linewidth=1)
    font_size = min(10.0, 0.6 * points[1])
    if font_size >= 6 and (end - prefill) * points[0] >= 0.68 * font_size * len(name) + 3:
        middle = (prefill + end) / 2
        look = {"ha": "center", "va": "center_baseline", "fontsize": font_size, "fontweight": "bold"}
        axes.text(middle, row.slot, name, color=text_on(color), **look)
