"""Avancer pas à pas dans un ordonnancement : bouton de lecture, curseur, pas précédent, pas suivant."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from minibatcher.engine import Event, StepEvent
from minibatcher.simulation.slots import SlotRun, continuous_timeline, static_timeline
from minibatcher.viz.interactive import Interactive, View
from minibatcher.viz.narration import tell_slots, tell_step
from minibatcher.viz.slots import plot_static_vs_continuous, request_labels
from minibatcher.viz.style import french_number
from minibatcher.viz.timeline import plot_timeline

MAX_SINGLE_STEPS = 60  # au-delà, les boutons vont de changement en changement : les pas un à un seraient trop nombreux
PLAY_FRAMES = 100  # images d'une lecture complète, au plus
INTERVAL_MS = 900  # entre deux images : le temps de lire la phrase, et de dessiner


def slot_player(lengths: Iterable[int], num_slots: int, labels: Sequence[str] | None = None) -> Interactive:
    """Le batching statique et le continu, pas à pas, sur les mêmes requêtes.

    `lengths` : tokens à produire par requête ; `labels` : leurs noms (par défaut, comme `plot_slots`). Lève `ConfigError`.
    """
    lengths = list(lengths)
    static, continuous = static_timeline(lengths, num_slots), continuous_timeline(lengths, num_slots)
    names = request_labels([static, continuous], labels)
    num_steps = max(static.num_steps, continuous.num_steps)

    def draw(step: int) -> View:
        figure, alt = plot_static_vs_continuous(lengths, num_slots, labels, until=step if step < num_steps else None)
        told = [f"{name}\u202f: {tell_slots(run, step, names)}" for name, run in (("Statique", static), ("Continu", continuous))]
        return View(figure, alt, [_when(step), *told])

    stops = sorted({0, num_steps, *_changes(static), *_changes(continuous)})
    return _player(draw, num_steps, stops)


def schedule_player(events: Iterable[Event], title: str = "Le lot, pas à pas") -> Interactive:
    """Le journal d'un moteur, simulé ou réel, pas à pas. Lève `ValueError` s'il ne contient aucun pas."""
    events = list(events)
    steps = [event for event in events if isinstance(event, StepEvent)]
    if not steps:
        raise ValueError("Le journal ne contient aucun pas\u202f: il n'y a rien à rejouer.")

    def draw(step: int) -> View:
        figure, alt = plot_timeline(events, title, until=step)
        told = tell_step(steps[step - 1]) if step else "Rien n'est encore calculé."
        return View(figure, alt, [_when(step), told])

    stops = [i + 1 for i, event in enumerate(steps) if event.admitted or event.preempted or event.finished]
    return _player(draw, len(steps), sorted({0, len(steps), *stops}))


def _player(draw: Callable[[int], View], num_steps: int, stops: list[int]) -> Interactive:
    """Un `Interactive` dont le seul réglage est `step`, nombre de pas faits ; `stops` : ceux où quelque chose change."""
    by_step = num_steps <= MAX_SINGLE_STEPS
    stops = list(range(num_steps + 1)) if by_step else stops
    what = "pas" if by_step else "changement"

    def build(widgets) -> tuple[dict, list, list]:
        stride = -(-num_steps // PLAY_FRAMES)
        play = widgets.Play(value=0, min=0, max=num_steps, step=stride, interval=INTERVAL_MS, show_repeat=False)
        slider = widgets.IntSlider(
            value=0,
            min=0,
            max=num_steps,
            description="pas faits",
            continuous_update=False,
            style={"description_width": "initial"},
            layout=widgets.Layout(width="420px"),
        )
        before = widgets.Button(description=f"◀ {what} précédent", layout=widgets.Layout(width="auto"))
        after = widgets.Button(description=f"{what} suivant ▶", layout=widgets.Layout(width="auto"))
        # Le lien vit dans la page : la lecture reste fluide même si le noyau dessine lentement.
        link = widgets.jslink((play, "value"), (slider, "value"))

        def step_back(_button: object) -> None:
            slider.value = stops[max(0, bisect_left(stops, slider.value) - 1)]

        def step_forward(_button: object) -> None:
            slider.value = stops[min(len(stops) - 1, bisect_right(stops, slider.value))]

        before.on_click(step_back)
        after.on_click(step_forward)
        row = widgets.HBox([play, before, after, slider], layout=widgets.Layout(flex_flow="row wrap"))
        return {"step": slider}, [row], [link]

    return Interactive(draw, {"step": 0}, build, fixed={"step": num_steps})


def _when(step: int) -> str:
    return f"Après {french_number(step)} pas." if step else "Avant le premier pas."


def _changes(run: SlotRun) -> list[int]:
    """Les pas où un slot change de main."""
    return (np.flatnonzero((run.occupancy[1:] != run.occupancy[:-1]).any(axis=1)) + 1).tolist()
