"""Ce que chacun a ressenti, calculé à partir du journal du moteur : le même calcul pour un pas simulé ou réel.

Durées en secondes, sur l'horloge du moteur. Un token est reçu à la fin (`end`) du pas qui l'a produit.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np

from minibatcher.engine import AbandonedStepEvent, ArrivalEvent, EndEvent, Event, StepEvent
from minibatcher.request import FinishReason


@dataclass
class RequestMetrics:
    """Les dates d'une requête. `None` pour ce qui n'est pas arrivé (jamais entrée, annulée avant son premier token…)."""

    request_id: str
    arrival: float
    num_prompt_tokens: int
    first_scheduled: float | None = None
    token_times: list[float] = field(default_factory=list)
    end: float | None = None
    finish_reason: FinishReason | None = None
    num_cached_tokens: int | None = None
    num_preemptions: int = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_times)

    @property
    def queue_time(self) -> float | None:
        """De l'arrivée au premier pas qui la calcule."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token : de l'arrivée au premier token."""
        return self.token_times[0] - self.arrival if self.token_times else None

    @property
    def tpot(self) -> float | None:
        """Time per output token : moyenne entre deux tokens, du premier au dernier ; `None` avec moins de deux tokens."""
        if len(self.token_times) < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (len(self.token_times) - 1)

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies : chaque intervalle entre deux tokens."""
        return [after - before for before, after in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def e2e(self) -> float | None:
        """De l'arrivée à la fin."""
        return None if self.end is None else self.end - self.arrival


def request_metrics(events: Iterable[Event]) -> dict[str, RequestMetrics]:
    """Les dates de chaque requête du journal, par identifiant. Un identifiant réutilisé repart de zéro à sa nouvelle arrivée."""
    requests: dict[str, RequestMetrics] = {}
    for event in events:
        if isinstance(event, ArrivalEvent):
            requests[event.request_id] = RequestMetrics(event.request_id, event.time, event.num_prompt_tokens)
        elif isinstance(event, EndEvent):
            if event.request_id in requests:
                requests[event.request_id].end = event.time
                requests[event.request_id].finish_reason = event.finish_reason
        elif isinstance(event, StepEvent):
            _read_step(event, requests)
    return requests


def _read_step(event: StepEvent, requests: dict[str, RequestMetrics]) -> None:
    for request_id, num_cached_tokens in event.admitted.items():
        request = requests.get(request_id)
        if request is not None and request.first_scheduled is None:
            request.first_scheduled, request.num_cached_tokens = event.start, num_cached_tokens
    for request_id in event.preempted:
        if request_id in requests:
            requests[request_id].num_preemptions += 1
    for request_id in event.sampled:
        if request_id in requests:
            requests[request_id].token_times.append(event.end)
    for request_id, reason in event.finished.items():
        if request_id in requests:
            requests[request_id].end, requests[request_id].finish_reason = event.end, reason


@dataclass
class Distribution:
    """Moyenne et centiles de durées (secondes) ; tout vaut `None` s'il n'y en a aucune."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Distribution":
        kept = np.array([value for value in values if value is not None], dtype=float)
        if not len(kept):
            return cls(None, None, None, None)
        return cls(float(np.mean(kept)), *map(float, np.percentile(kept, (50, 95, 99))))


@dataclass
class Summary:
    """Le bilan d'une charge. Débits par seconde, de la première arrivée au dernier token ou à la dernière fin.

    `goodput` : requêtes par seconde servies dans les temps demandés (`None` si aucun délai n'est demandé).
    """

    num_requests: int
    num_finished: int
    num_output_tokens: int
    num_prompt_tokens: int
    num_preemptions: int
    duration: float
    output_throughput: float
    request_throughput: float
    goodput: float | None
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    queue_time: Distribution

    def to_dict(self) -> dict:
        return asdict(self)


def summarize(requests: Iterable[RequestMetrics], ttft_target: float | None = None, tpot_target: float | None = None) -> Summary:
    """Le bilan de ces requêtes ; `ttft_target`, `tpot_target` (secondes) définissent ce qu'est une requête servie à temps.

    Une requête annulée ou en erreur compte dans `num_requests`, jamais dans `num_finished` ni dans le goodput.
    """
    requests = list(requests)
    served = [r for r in requests if r.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)]
    times = [t for r in requests for t in (r.end, *r.token_times[-1:]) if t is not None]
    duration = max(times) - min(r.arrival for r in requests) if times else 0.0
    num_output_tokens = sum(r.num_output_tokens for r in requests)

    def rate(count: int) -> float:
        return count / duration if duration > 0 else 0.0

    def in_time(r: RequestMetrics) -> bool:
        slow_start = ttft_target is not None and (r.ttft is None or r.ttft > ttft_target)
        slow_pace = tpot_target is not None and r.tpot is not None and r.tpot > tpot_target
        return not slow_start and not slow_pace

    has_target = ttft_target is not None or tpot_target is not None
    return Summary(
        num_requests=len(requests),
        num_finished=len(served),
        num_output_tokens=num_output_tokens,
        num_prompt_tokens=sum(r.num_prompt_tokens for r in requests),
        num_preemptions=sum(r.num_preemptions for r in requests),
        duration=duration,
        output_throughput=rate(num_output_tokens),
        request_throughput=rate(len(served)),
        goodput=rate(sum(map(in_time, served))) if has_target else None,
        ttft=Distribution.of(r.ttft for r in requests),
        tpot=Distribution.of(r.tpot for r in requests),
        itl=Distribution.of(np.concatenate([[], *(np.diff(r.token_times) for r in requests)])),
        e2e=Distribution.of(r.e2e for r in served),
        queue_time=Distribution.of(r.queue_time for r in requests),
    )


@dataclass
class EngineUsage:
    """Ce que le moteur a fait de ses moyens. Parts entre 0 et 1, moyennes sur la durée des pas.

    - `slots` : places du lot occupées ; `blocks` : blocs du cache utilisés ; `budget` : tokens calculés, sur ceux permis ;
    - `recomputed_tokens` : tokens calculés une fois de plus, après une préemption ou un pas abandonné.
    """

    num_steps: int
    slots: float
    blocks: float
    budget: float
    num_computed_tokens: int
    recomputed_tokens: int

    def to_dict(self) -> dict:
        return asdict(self)


def engine_usage(events: Iterable[Event], max_num_seqs: int, max_num_batched_tokens: int, num_blocks: int) -> EngineUsage:
    """L'usage que le journal montre, pour un scheduler de ces limites."""
    rows = []
    position: dict[str, int] = {}  # tokens calculés de chaque requête, et le plus loin qu'elle soit allée
    furthest: dict[str, int] = {}
    recomputed = 0
    for event in events:
        if isinstance(event, ArrivalEvent):
            furthest.pop(event.request_id, None)  # un identifiant réutilisé repart de zéro
        if isinstance(event, AbandonedStepEvent):
            furthest |= {rid: max(position.get(rid, 0), furthest.get(rid, 0)) for rid in event.requeued}
        if not isinstance(event, StepEvent):
            continue
        num_tokens = 0
        position |= event.admitted
        for request_id, count in event.scheduled.items():
            num_tokens += count
            start = position.get(request_id, 0)
            position[request_id] = start + count
            done = furthest.get(request_id)
            if done is not None and done > start:
                recomputed += min(done, start + count) - start
        furthest |= {rid: max(position.get(rid, 0), furthest.get(rid, 0)) for rid in event.preempted}
        rows.append((event.end - event.start, len(event.scheduled), num_blocks - event.num_free_blocks, num_tokens))
    if not rows:
        return EngineUsage(0, 0.0, 0.0, 0.0, 0, 0)
    durations, seqs, blocks, tokens = np.array(rows, dtype=float).T
    weights = durations if durations.sum() > 0 else None

    def share(values: np.ndarray, limit: int) -> float:
        return float(np.average(values, weights=weights)) / limit

    return EngineUsage(
        num_steps=len(rows),
        slots=share(seqs, max_num_seqs),
        blocks=share(blocks, num_blocks),
        budget=share(tokens, max_num_batched_tokens),
        num_computed_tokens=int(tokens.sum()),
        recomputed_tokens=recomputed,
    )
