"""Faire tourner une charge sous l'horloge virtuelle, et dire ce que chacun a ressenti."""

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from zlib import crc32

from minibatcher.engine import EngineCore, Event
from minibatcher.errors import ConfigError, InvalidRequestError, MinibatcherError, require_int
from minibatcher.interruption import Uninterrupted
from minibatcher.journal import Journal, scheduler_settings, write_chrome_trace
from minibatcher.metrics import EngineUsage, RequestMetrics, Summary, engine_usage, request_metrics, summarize
from minibatcher.request import Request, SamplingParams
from minibatcher.scheduler import Scheduler
from minibatcher.simulation.cost import CostModel
from minibatcher.simulation.executor import SimulatedExecutor, SimulatedRequest, VirtualClock
from minibatcher.simulation.fast_forward import skip_identical_steps
from minibatcher.simulation.workload import WorkloadRequest

STEPS_BETWEEN_INTERRUPTIONS = 200


class SimulationError(MinibatcherError, RuntimeError):
    """La simulation ne peut pas aboutir."""


@dataclass
class SimulationResult:
    """Ce qui s'est passé.

    - `settings` : les réglages du scheduler ; `events` : le journal, comme celui d'un vrai moteur ;
    - `refused` : pour chaque requête que le moteur a refusée, la raison.
    """

    settings: dict
    events: list[Event]
    refused: dict[str, str] = field(default_factory=dict)

    @cached_property
    def requests(self) -> dict[str, RequestMetrics]:
        """Les dates de chaque requête servie."""
        return request_metrics(self.events)

    @cached_property
    def usage(self) -> EngineUsage:
        """Places, blocs et budget utilisés ; tokens recalculés."""
        names = ("max_num_seqs", "max_num_batched_tokens", "num_blocks")
        return engine_usage(self.events, *(self.settings[name] for name in names))

    def summary(self, ttft_target: float | None = None, tpot_target: float | None = None) -> Summary:
        """Le bilan ; les délais visés (secondes) définissent le goodput."""
        return summarize(self.requests.values(), ttft_target, tpot_target)

    def to_dict(self, ttft_target: float | None = None, tpot_target: float | None = None) -> dict:
        """Tout le bilan, prêt pour JSON."""
        return {
            "settings": self.settings,
            "summary": self.summary(ttft_target, tpot_target).to_dict(),
            "usage": self.usage.to_dict(),
            "refused": self.refused,
        }

    def save(self, folder: str | Path, ttft_target: float | None = None, tpot_target: float | None = None) -> None:
        """Écrit `bilan.json`, le journal `journal.jsonl` et `trace.json`, à ouvrir dans Perfetto (ui.perfetto.dev)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        report = json.dumps(self.to_dict(ttft_target, tpot_target), ensure_ascii=False, indent=1)
        (folder / "bilan.json").write_text(report + "\n", encoding="utf-8")
        Journal(self.settings, self.events).save(folder / "journal.jsonl")
        write_chrome_trace(self.events, folder / "trace.json")


def simulate(
    workload: Sequence[WorkloadRequest],
    cost_model: CostModel,
    scheduler: Scheduler,
    *,
    max_concurrency: int | None = None,
    allow_refused: bool = False,
    fast_forward: bool = True,
    progress: Callable[[int], object] | None = None,
    executor_cls: type[SimulatedExecutor] = SimulatedExecutor,
) -> SimulationResult:
    """Sert la charge avec un scheduler neuf ; les longueurs des réponses lui restent cachées.

    - `max_concurrency` : boucle fermée. Autant de clients, qui envoient chacun leur requête suivante dès que la précédente est
      finie ; les dates d'arrivée sont ignorées ;
    - `allow_refused` : une requête que le moteur refuse est notée dans `refused` et les autres continuent ; sinon elle lève
      `InvalidRequestError`, avant tout calcul ;
    - `fast_forward` : sauter les suites de pas identiques (même résultat, plus vite) ;
    - `progress` : appelée avec le nombre de requêtes qui viennent de finir.

    Une requête arrivée pendant un pas attend sa fin, mais son attente compte depuis son arrivée. Lève aussi `ConfigError` (charge
    vide) et `SimulationError` (le scheduler n'avance plus).
    """
    if not workload:
        raise ConfigError("La charge est vide : il n'y a rien à simuler.")
    if max_concurrency is not None:
        require_int("max_concurrency", max_concurrency, 1)
    if scheduler.requests:
        raise ConfigError("Ce scheduler a déjà des requêtes en cours : donnez-en un neuf.")
    _check(workload, scheduler, refuse=not allow_refused)
    clock = VirtualClock()
    executor = executor_cls(cost_model.duration, clock)
    engine = EngineCore(scheduler, executor, clock, log_prompts=False)
    refused: dict[str, str] = {}

    def submit(number: int, arrival: float) -> bool:
        # L'attente compte depuis l'arrivée, même si le moteur était alors au milieu d'un pas.
        now, clock.now = clock.now, arrival
        try:
            _check(workload[number : number + 1], scheduler, refuse=allow_refused)
            engine.add_request(_simulated(workload[number], number))
        except InvalidRequestError as problem:
            refused[workload[number].request_id] = str(problem)
        finally:
            clock.now = now
        return workload[number].request_id not in refused

    closed_loop = max_concurrency is not None
    order = range(len(workload)) if closed_loop else sorted(range(len(workload)), key=lambda number: workload[number].arrival)
    queue = deque(order)
    free_clients = max_concurrency or 0

    def advance() -> None:
        """Les arrivées, puis un pas, ou une suite de pas identiques."""
        nonlocal free_clients
        while queue and free_clients:
            free_clients -= submit(queue.popleft(), clock.now)
        if not closed_loop:
            if queue and not engine.has_unfinished_requests:
                clock.now = max(clock.now, workload[queue[0]].arrival)
            while queue and workload[queue[0]].arrival <= clock.now:
                number = queue.popleft()
                submit(number, workload[number].arrival)
        until = workload[queue[0]].arrival if queue and not closed_loop else math.inf
        if not engine.has_unfinished_requests or (fast_forward and skip_identical_steps(engine, executor, until)):
            return
        finished = engine.step()
        if not engine.events[-1].scheduled:
            raise SimulationError(
                f"Le scheduler {type(scheduler).__name__} n'a donné aucun token à calculer, alors que "
                f"{len(scheduler.requests)} requêtes ne sont pas finies : il ne les servira jamais."
            )
        free_clients += len(finished) if closed_loop else 0
        if progress is not None and finished:
            progress(len(finished))

    while queue or engine.has_unfinished_requests:
        with Uninterrupted():  # se garder d'un Ctrl-C à chaque pas coûterait plus cher que le pas
            for _ in range(STEPS_BETWEEN_INTERRUPTIONS):
                if queue or engine.has_unfinished_requests:
                    advance()
    return SimulationResult(scheduler_settings(scheduler), engine.events, refused)


def _check(workload: Sequence[WorkloadRequest], scheduler: Scheduler, refuse: bool) -> None:
    """Les mêmes refus que pour un client qui demanderait, par max_tokens, la longueur de sa réponse."""
    if len({request.request_id for request in workload}) != len(workload):
        raise ConfigError("Deux requêtes de la charge ont le même identifiant : donnez-en un différent à chacune.")
    problems = []
    for request in workload if refuse else ():
        params = SamplingParams(temperature=0, max_tokens=request.num_output_tokens)
        try:
            scheduler.check_request(Request(request.request_id, [0] * request.num_prompt_tokens, params))
        except InvalidRequestError as problem:
            problems.append(str(problem))
    if problems and len(workload) == 1:
        raise InvalidRequestError(problems[0])
    if problems:
        raise InvalidRequestError(
            f"{len(problems)} requête(s) sur {len(workload)} ne peuvent pas être servies. La première : {problems[0]} "
            "Pour continuer sans elles : allow_refused (--allow-refused)."
        )


def _simulated(request: WorkloadRequest, number: int) -> SimulatedRequest:
    """La requête du moteur. Sans vrais tokens, on en prend qui ne sont qu'à elle, ou à ceux qui partagent son préfixe."""
    own = -1 - number
    if request.prompt_token_ids is not None:
        prompt = request.prompt_token_ids
    else:
        shared = 2**40 + crc32(str(request.prefix_id).encode())
        prompt = [shared] * request.num_prefix_tokens + [own] * (request.num_prompt_tokens - request.num_prefix_tokens)
    return SimulatedRequest(request.request_id, prompt, request.num_output_tokens, own)
