"""Rejouer le journal d'un vrai moteur à travers l'exécuteur simulé : mêmes arrivées, mêmes durées, mêmes réponses.

Si les décisions sont les mêmes à chaque pas, le simulateur dit vrai : c'est le même scheduler, et rien d'autre ne décide.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from minibatcher.engine import AbandonedStepEvent, ArrivalEvent, CacheResetEvent, EndEvent, EngineCore, Event, StepEvent
from minibatcher.errors import ConfigError
from minibatcher.journal import Journal, build_scheduler
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.scheduler import StepOutput, StepPlan
from minibatcher.simulation.executor import SimulatedExecutor, VirtualClock

# Ce qu'un pas décide, et ce qui en découle : tout, sauf l'heure.
DECISIONS = ("scheduled", "sampled", "admitted", "preempted", "finished", "num_free_blocks", "num_running", "num_waiting")


@dataclass
class Replay:
    """Le journal rejoué. `difference` : le premier pas qui n'est pas identique, en clair ; `None` si tous le sont."""

    events: list[Event]
    difference: str | None = None


class _Abandoned(Exception):
    """Ce pas n'avait pas abouti."""


class _RecordedRequest(Request):
    """Une requête qui donnera les réponses du journal, l'une après l'autre."""

    __slots__ = ("answers",)
    final_num_tokens = float("inf")  # c'est le journal qui dit quand elle finit

    @property
    def answer_token(self) -> int | None:
        return self.answers[self.num_output_tokens] if self.num_output_tokens < len(self.answers) else None


class _RecordedExecutor(SimulatedExecutor):
    """Donne à chaque pas la durée et les échecs du journal."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(lambda load: self.recorded.duration, clock)
        self.recorded: Event | None = None

    def execute(self, plan: StepPlan) -> StepOutput:
        if isinstance(self.recorded, AbandonedStepEvent):
            self.clock.now = self.recorded.end
            raise _Abandoned
        output = super().execute(plan)
        for request_id, reason in self.recorded.finished.items():
            if reason is FinishReason.ERROR:
                output.errors[request_id] = "échec rejoué"
        return output


def replay(journal: Journal, ordered: bool = True) -> Replay:
    """Rejoue le journal et s'arrête à la première différence. Lève `ConfigError` s'il ne contient pas les tokens des prompts.

    `ordered=False` : sans comparer l'ordre des requêtes à l'intérieur d'un pas, pour un journal qui ne le dit pas.
    """
    scheduler = build_scheduler(**journal.settings)
    clock = VirtualClock()
    executor = _RecordedExecutor(clock)
    engine = EngineCore(scheduler, executor, clock)
    requests = _recorded_requests(journal.events)
    for event in journal.events:
        executor.recorded = event
        if isinstance(event, ArrivalEvent):
            clock.now = event.time
            engine.add_request(next(requests))
        elif isinstance(event, EndEvent):
            clock.now = event.time
            engine.finish(event.request_id, event.finish_reason)
        elif isinstance(event, CacheResetEvent):
            clock.now = event.time
            engine.reset_prefix_cache()
        else:
            clock.now = event.start
            with suppress(_Abandoned):
                engine.step()
            difference = _compare(event, engine.events[-1], ordered)
            if difference:
                return Replay(engine.events, difference)
    return Replay(engine.events)


def _recorded_requests(events: list[Event]) -> Iterator[_RecordedRequest]:
    """Les requêtes du journal, dans l'ordre de leurs arrivées, avec leurs réponses et la façon dont elles finissent."""
    arrivals: list[tuple[ArrivalEvent, list[int], list[FinishReason]]] = []
    latest: dict[str, tuple[ArrivalEvent, list[int], list[FinishReason]]] = {}
    for event in events:
        if isinstance(event, ArrivalEvent):
            if event.prompt_token_ids is None:
                raise ConfigError(
                    "Ce journal ne contient pas les tokens des prompts : il ne peut pas être rejoué. Enregistrez-le avec "
                    "EngineCore(log_prompts=True), le défaut."
                )
            latest[event.request_id] = (event, [], [])
            arrivals.append(latest[event.request_id])
        elif isinstance(event, StepEvent):
            for request_id, token_id in event.sampled.items():
                latest[request_id][1].append(token_id)
            for request_id, reason in event.finished.items():
                latest[request_id][2].append(reason)
    for arrival, answers, reasons in arrivals:
        params = SamplingParams(temperature=0, max_tokens=None)
        if reasons == [FinishReason.LENGTH]:
            params.max_tokens = len(answers)
        elif reasons == [FinishReason.STOP]:
            params.stop_token_ids, params.min_tokens = answers[-1:], len(answers)
        request = _RecordedRequest(arrival.request_id, arrival.prompt_token_ids, params)
        request.answers = answers
        yield request


def _compare(recorded: Event, replayed: Event, ordered: bool) -> str | None:
    if isinstance(recorded, AbandonedStepEvent):
        if replayed.requeued == recorded.requeued:
            return None
        return f"pas abandonné à {recorded.start} s : {replayed.requeued} retournent en file, et non {recorded.requeued}"
    for name in DECISIONS:
        expected, got = getattr(recorded, name), getattr(replayed, name)
        if isinstance(expected, (dict, list)):
            order = list if ordered else sorted
            same = order(got) == order(expected) and (got == expected or isinstance(expected, list))
        else:
            same = got == expected
        if not same:
            return f"pas {recorded.step}, {name} : {got} au lieu de {expected}"
    return None
