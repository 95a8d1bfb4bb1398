"""Le chronogramme du modèle à slots : une bande par slot, une couleur par requête, et le vide hachuré."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from minibatcher.simulation.slots import SlotRun, Stay, continuous_timeline, static_timeline
from minibatcher.viz.colors import neighbors, request_colors
from minibatcher.viz.style import (
    BAR_HEIGHT,
    EMPTY,
    GREY,
    INK,
    MUTED,
    WIDTH,
    enumerate_in_french,
    french_axis,
    french_number,
    new_figure,
    percent,
    plural,
    set_title,
    styled,
    text_on,
)

EMPTY_LABEL = "vide"
MAX_EMPTY_LABELS = 12  # au-delà, le mot se répète trop : une légende le dit une fois


@styled
def plot_slots(
    run: SlotRun, title: str = "Qui occupe quel slot", labels: Sequence[str] | None = None, until: int | None = None
) -> tuple[Figure, str]:
    """Le chronogramme de `run` ; rend la figure et son texte alternatif.

    - `labels` : le nom de chaque requête, dans l'ordre (par défaut, des lettres jusqu'à 26 requêtes, puis leur numéro) ;
    - `until` : ne dessiner que les `until` premiers pas, sur le même axe.
    """
    names = request_labels([run], labels)
    figure, axes = new_figure(1.35 + _panel_height(run))
    colors = request_colors(len(names), neighbors(run.occupancy))
    _draw(axes, run, names, colors, run.num_steps, until, _few_gaps([run]))
    set_title(axes, title, summary(run, until))
    axes.set_xlabel("pas")
    _legend(axes, [run], until)
    return figure, f"{title}. {describe_run(run, names, until)}"


@styled
def plot_static_vs_continuous(
    lengths: Iterable[int], num_slots: int, labels: Sequence[str] | None = None, until: int | None = None
) -> tuple[Figure, str]:
    """Les mêmes requêtes en batching statique puis continu, sur le même axe des pas. Arguments : `plot_slots`.

    `lengths` : tokens à produire par requête. Une requête garde sa couleur d'un chronogramme à l'autre.
    """
    lengths = list(lengths)
    static, continuous = static_timeline(lengths, num_slots), continuous_timeline(lengths, num_slots)
    names = request_labels([static, continuous], labels)
    colors = request_colors(len(names), neighbors(static.occupancy) | neighbors(continuous.occupancy))
    figure, panels = new_figure(2.1 + 2 * _panel_height(static), rows=2, sharex=True)
    num_steps = max(static.num_steps, continuous.num_steps)
    say_empty = _few_gaps([static, continuous])
    for axes, run, title in zip(panels, (static, continuous), ("Batching statique", "Batching continu"), strict=True):
        _draw(axes, run, names, colors, num_steps, until, say_empty)
        set_title(axes, title, summary(run, until))
    panels[1].set_xlabel("pas")
    _mark_gain(panels[1], continuous.num_steps, num_steps, until)
    _legend(panels[0], [static, continuous], until)
    alt = (
        f"Deux chronogrammes sur le même axe des pas. Batching statique\u202f: {describe_run(static, names, until)} "
        f"Batching continu\u202f: {describe_run(continuous, names, until)}"
    )
    if until is None:
        gain = static.num_steps - continuous.num_steps
        alt += f" Le continu gagne {french_number(gain)} pas, soit {percent(gain / static.num_steps)} du temps."
    return figure, alt


def request_labels(runs: Sequence[SlotRun], labels: Sequence[str] | None = None) -> list[str]:
    """Un nom par requête : ceux donnés, sinon A, B, C… jusqu'à 26 requêtes, sinon leur numéro. Lève `ValueError`."""
    num_requests = max(int(run.occupancy.max()) for run in runs) + 1
    if labels is not None:
        if len(labels) < num_requests:
            raise ValueError(f"labels a {len(labels)} noms pour {num_requests} requêtes\u202f: donnez-en un par requête.")
        return [str(label) for label in labels]
    return [chr(ord("A") + i) if num_requests <= 26 else str(i) for i in range(num_requests)]


def stays_of(occupancy: np.ndarray, until: int | None = None) -> list[Stay]:
    """Les séjours que montre `occupancy`, coupés à `until` pas : `(requête, slot, premier pas, premier pas après)`.

    Les vides y sont aussi, sous le numéro -1. Triés par slot, puis par pas.
    """
    shown = occupancy[:until]
    stays: list[Stay] = []
    for slot, column in enumerate(shown.T):
        changes = np.flatnonzero(np.diff(column)) + 1
        bounds = [0, *changes.tolist(), len(column)]
        stays += [(int(column[start]), slot, start, end) for start, end in pairwise(bounds) if end > start]
    return stays


def summary(run: SlotRun, until: int | None = None) -> str:
    """« 10 pas, 20 emplacements utiles sur 40 : 50 % », ou où l'on en est après `until` pas."""
    shown = run.occupancy[:until]
    useful, total = int((shown >= 0).sum()), shown.size
    counts = f"{plural(useful, 'emplacement utile')} sur {french_number(total)}\u202f: {percent(useful / max(total, 1))}"
    if until is None:
        return f"{plural(run.num_steps, 'pas', '')}, {counts}"
    progress = f"Après {french_number(min(until, run.num_steps))} pas sur {french_number(run.num_steps)}"
    return f"{progress}, {counts}" if total else progress


def describe_run(run: SlotRun, names: Sequence[str], until: int | None = None) -> str:
    """Le texte alternatif d'un chronogramme : ses chiffres et, s'il est petit, le contenu de chaque slot."""
    stays = stays_of(run.occupancy, until)
    num_slots = run.occupancy.shape[1]
    told = summary(run, until)
    text = f"{plural(num_slots, 'slot')}, {told[0].lower()}{told[1:]}."
    if len(stays) > 24:
        empty = [end - start for request, _, start, end in stays if request < 0]
        return f"{text} Plus long vide\u202f: {french_number(max(empty, default=0))} pas."
    for slot in range(num_slots):
        content = [
            f"{names[request] if request >= 0 else EMPTY_LABEL} de {french_number(start)} à {french_number(end)}"
            for request, s, start, end in stays
            if s == slot
        ]
        text += f" Slot {slot}\u202f: {enumerate_in_french(content)}." if content else ""
    return text


def _panel_height(run: SlotRun) -> float:
    num_slots = run.occupancy.shape[1]
    return min(0.42 * num_slots, max(2.4, min(0.14 * num_slots, 4.5)))


def _few_gaps(runs: Sequence[SlotRun]) -> bool:
    return sum(request < 0 for run in runs for request, *_ in stays_of(run.occupancy)) <= MAX_EMPTY_LABELS


def _draw(
    axes: Axes, run: SlotRun, names: Sequence[str], colors: Sequence[str], num_steps: int, until: int | None, say_empty: bool
) -> None:
    """Une bande par slot ; `say_empty` : écrire « vide » dans les vides qui en ont la place."""
    num_slots = run.occupancy.shape[1]
    points_per_step = (WIDTH - 0.8) * 72 / num_steps
    font_size = min(11.0, 0.62 * 72 * _panel_height(run) / num_slots)
    for request, slot, start, end in stays_of(run.occupancy, until):
        empty = request < 0
        look = {"facecolor": EMPTY, "hatch": "////", "edgecolor": GREY} if empty else {"facecolor": colors[request]}
        box = Rectangle((start, slot - BAR_HEIGHT / 2), end - start, BAR_HEIGHT, linewidth=0, **look)
        axes.add_patch(box)
        label = EMPTY_LABEL if empty else names[request]
        fits = font_size >= 5.5 and (end - start) * points_per_step >= 0.68 * font_size * len(label) + 3
        if fits and (say_empty or not empty):
            plate = {"facecolor": EMPTY, "edgecolor": "none", "boxstyle": "round,pad=0.15"} if empty else None
            color = MUTED if empty else text_on(colors[request])
            axes.text(
                (start + end) / 2,
                slot,
                label,
                ha="center",
                va="center_baseline",
                color=color,
                fontsize=font_size - empty,
                fontweight="normal" if empty else "bold",
                bbox=plate,
            )
        if not empty and start > 0:
            # Un trait blanc sépare deux requêtes qui se suivent, même si leurs couleurs se ressemblent.
            axes.vlines(start, slot - BAR_HEIGHT / 2, slot + BAR_HEIGHT / 2, color="white", linewidth=1.2)
    if until is not None and until < num_steps:
        axes.axvline(until, color=INK, linewidth=1.5)
    axes.set(xlim=(0, num_steps), ylim=(num_slots - 0.5, -0.5), ylabel="slot")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20 if num_steps <= 20 else 10))
    french_axis(axes.xaxis)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _mark_gain(axes: Axes, end: int, num_steps: int, until: int | None) -> None:
    """La double flèche des pas gagnés, si elle a la place d'être lue."""
    text = f"{french_number(num_steps - end)} pas\ngagnés"
    if until is not None or (num_steps - end) / num_steps < 0.1:
        return
    middle = sum(axes.get_ylim()) / 2
    axes.annotate("", (end, middle), (num_steps, middle), arrowprops={"arrowstyle": "<->", "color": INK, "linewidth": 1.5})
    plate = {"facecolor": "white", "edgecolor": "none", "pad": 2}
    axes.text((end + num_steps) / 2, middle, text, ha="center", va="center", fontweight="bold", bbox=plate)


def _legend(axes: Axes, runs: Sequence[SlotRun], until: int | None) -> None:
    """Dit ce que sont les hachures, là où le mot « vide » manque ; pas à pas, toujours : rien ne doit sauter d'un pas à l'autre."""
    if until is None and (_few_gaps(runs) or all((run.occupancy >= 0).all() for run in runs)):
        return
    sample = Patch(facecolor=EMPTY, hatch="////", edgecolor=GREY, linewidth=0, label="slot vide")
    axes.legend(handles=[sample], loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
