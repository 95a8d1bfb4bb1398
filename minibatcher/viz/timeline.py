"""Le chronogramme : qui occupe quelle place du lot, à chaque pas."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from minibatcher.engine import EndEvent, Event, StepEvent
from minibatcher.viz.style import GREY, REQUEST_COLORS


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


def plot_timeline(events: Iterable[Event], title: str) -> tuple[Figure, str]:
    """Une bande par place, une couleur par requête, hachures pendant le prefill ; rend la figure et son texte alternatif."""
    rows = occupations(events)
    num_slots = max((row.slot for row in rows), default=0) + 1
    num_steps = max((row.last for row in rows), default=0) + 1
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.16 * num_slots))
    axes.set_facecolor("#F4F4F4")
    seen = Counter()
    for row in rows:
        # Deux requêtes qui se suivent dans une place n'ont jamais la même couleur.
        color = REQUEST_COLORS[(row.slot + seen[row.slot]) % len(REQUEST_COLORS)]
        seen[row.slot] += 1
        axes.broken_barh([(row.first, row.last + 1 - row.first)], (row.slot - 0.42, 0.84), facecolor=color)
        if row.prefill_until > row.first:
            axes.broken_barh(
                [(row.first, row.prefill_until - row.first)],
                (row.slot - 0.42, 0.84),
                facecolor=color,
                hatch="////",
                edgecolor="white",
                linewidth=0,
            )
    axes.set(xlabel="pas du moteur", ylabel="place du lot", title=title, xlim=(0, num_steps), ylim=(num_slots - 0.5, -0.5))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(
        handles=[Patch(facecolor=GREY, hatch="////", edgecolor="white", label="prefill"), Patch(facecolor=GREY, label="decode")],
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )
    busy = sum(row.last + 1 - row.first for row in rows) / max(1, num_slots * num_steps)
    alt = (
        f"Chronogramme de {len({row.request_id for row in rows})} requêtes sur {num_slots} places et {num_steps} pas : "
        f"les places sont occupées {busy:.0%} du temps.".replace("%", "\u202f%")
    )
    return figure, alt
