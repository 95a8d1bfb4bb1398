"""Le moteur : schedule → execute → update, et le journal de ce qui s'est passé.

Le scheduler décide, un exécuteur exécute. L'exécuteur est fourni : le modèle réel (`minibatcher.model`) ou tout objet qui a la
même méthode. La boucle, elle, ne change pas.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from minibatcher.interruption import Uninterrupted
from minibatcher.request import FinishReason, Request
from minibatcher.scheduler import Scheduler, StepOutput, StepPlan


class Executor(Protocol):
    """Ce que le moteur attend d'un exécuteur."""

    def execute(self, plan: StepPlan) -> StepOutput:
        """Calcule le pas : écrit K et V des tokens prévus, rend un token par requête qui a rattrapé ses tokens connus."""
        ...


@dataclass(slots=True)
class ArrivalEvent:
    """Une requête a été acceptée. `time` en secondes, sur l'horloge du moteur.

    `prompt_token_ids` : ses tokens, si le moteur les garde ; sans eux, le cache de préfixe ne peut pas être rejoué.
    """

    time: float
    request_id: str
    num_prompt_tokens: int
    prompt_token_ids: list[int] | None = None


@dataclass(slots=True)
class StepEvent:
    """Un pas. Durées en secondes, tailles en tokens ou en blocs.

    - `scheduled` : tokens calculés, par requête ; `sampled` : token reçu (à l'instant `end`), par requête qui en a reçu un ;
    - `admitted` : tokens trouvés en cache, par requête entrée ou revenue ; `preempted` : requêtes renvoyées en file ;
    - `finished` : raison de fin, par requête ; `num_free_blocks` : après la décision, avant les fins du pas.
    """

    step: int
    start: float
    end: float
    scheduled: dict[str, int]
    sampled: dict[str, int]
    admitted: dict[str, int]
    preempted: list[str]
    finished: dict[str, FinishReason]
    num_free_blocks: int
    num_running: int
    num_waiting: int

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(slots=True)
class EndEvent:
    """Une requête s'est terminée entre deux pas : annulation ou chaîne d'arrêt."""

    time: float
    request_id: str
    finish_reason: FinishReason


@dataclass(slots=True)
class AbandonedStepEvent:
    """Un pas qui n'a pas abouti (exception, Ctrl-C) : décidé, puis défait. `requeued` : les requêtes qu'il a renvoyées en file."""

    start: float
    end: float
    requeued: list[str]


@dataclass(slots=True)
class CacheResetEvent:
    """Le cache de préfixe a été vidé."""

    time: float


Event = ArrivalEvent | StepEvent | EndEvent | AbandonedStepEvent | CacheResetEvent


@dataclass
class EngineCore:
    """Un scheduler, un exécuteur, une horloge (secondes), et `events`, le journal dans l'ordre du temps.

    Le journal dit tout ce qu'il faut pour rejouer les décisions (`minibatcher.simulation.replay`), tokens compris ;
    `log_prompts=False` n'y garde que la longueur des prompts.
    """

    scheduler: Scheduler
    executor: Executor
    clock: Callable[[], float] = time.perf_counter
    events: list[Event] = field(default_factory=list)
    num_steps: int = 0
    log_prompts: bool = True

    def add_request(self, request: Request) -> None:
        """Soumet une requête ; lève `InvalidRequestError` si elle ne peut pas être servie."""
        self.scheduler.add_request(request)
        prompt_token_ids = request.prompt_token_ids if self.log_prompts else None
        self.events.append(ArrivalEvent(self.clock(), request.request_id, request.num_prompt_tokens, prompt_token_ids))

    def step(self) -> list[Request]:
        """Un pas ; rend les requêtes qui viennent de finir.

        Si l'exécution est interrompue (Ctrl-C, exception), ses requêtes retournent en file et le moteur reste utilisable.
        """
        scheduler = self.scheduler
        start = self.clock()
        plan = StepPlan()
        try:
            with Uninterrupted():
                plan = scheduler.schedule()
            output = self.executor.execute(plan)
        except BaseException:
            with Uninterrupted():
                scheduler.undo(plan)
                requeued = [*plan.preempted, *(request.request_id for request in plan.requests)]
                self.events.append(AbandonedStepEvent(start, self.clock(), requeued))
            raise
        with Uninterrupted():
            finished = scheduler.update(plan, output)
            self._log_step(start, plan, output, finished)
        return finished

    def _log_step(self, start: float, plan: StepPlan, output: StepOutput, finished: list[Request]) -> None:
        scheduler = self.scheduler
        request_ids = [request.request_id for request in plan.requests]
        self.events.append(
            StepEvent(
                step=self.num_steps,
                start=start,
                end=self.clock(),
                scheduled=dict(zip(request_ids, plan.num_tokens, strict=True)),
                sampled={
                    rid: token_id for rid, token_id in zip(request_ids, output.token_ids, strict=True) if token_id is not None
                },
                admitted=plan.admitted,
                preempted=plan.preempted,
                finished={request.request_id: request.finish_reason for request in finished},
                num_free_blocks=plan.num_free_blocks,
                num_running=len(scheduler.running),
                num_waiting=len(scheduler.waiting),
            )
        )
        self.num_steps += 1

    def finish(self, request_id: str, reason: FinishReason) -> Request | None:
        """Termine une requête entre deux pas ; `None` si elle était déjà finie."""
        request = self.scheduler.finish_request(request_id, reason)
        if request is not None:
            self.events.append(EndEvent(self.clock(), request_id, reason))
        return request

    def abort(self, request_ids: Iterable[str]) -> None:
        """Annule des requêtes et rend leurs blocs."""
        for request_id in list(request_ids):
            self.finish(request_id, FinishReason.ABORT)

    def reset_prefix_cache(self) -> None:
        """Oublie tous les préfixes en cache."""
        self.scheduler.kv_cache_manager.reset_prefix_cache()
        self.events.append(CacheResetEvent(self.clock()))

    @property
    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests
