"""Prefill et decode désagrégés : des machines qui lisent les prompts, d'autres qui écrivent les réponses.

Composé de ce qui existe : deux groupes de moteurs, et entre eux le temps de transférer K et V (DistServe, OSDI 2024 ; Splitwise,
ISCA 2024). Le groupe de prefill rend le premier token ; la requête arrive ensuite au groupe de decode avec son cache déjà rempli.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minibatcher.errors import ConfigError, require_int
from minibatcher.metrics import RequestMetrics, Summary, summarize
from minibatcher.request import FinishReason
from minibatcher.scheduler import StepPlan
from minibatcher.simulation.cost import StepLoad
from minibatcher.simulation.executor import SimulatedExecutor
from minibatcher.simulation.scenario import Scenario
from minibatcher.simulation.sheets import (
    kv_bytes_per_token,
)
from minibatcher.simulation.simulator import SimulationResult
from minibatcher.simulation.workload import WorkloadRequest


class TransferredExecutor(SimulatedExecutor):
    """L'exécuteur du groupe de decode : le cache du prompt est arrivé avec la requête, elle n'a que son dernier token à calculer.

    Une requête préemptée a perdu ce cache : elle recalcule tout, et le paie.
    """

    def load(self, plan: StepPlan) -> StepLoad:
        load = StepLoad()
        for request, count in zip(plan.requests, plan.num_tokens, strict=True):
            to_compute = count if request.num_preemptions else 1
            load.add(request.num_computed_tokens + count - to_compute, to_compute)
        return load


@dataclass
class DisaggregatedResult:
    """Les dates de chaque requête, d'un bout à l'autre, et le journal de chaque moteur."""

    requests: dict[str, RequestMetrics]
    prefill: list[SimulationResult]
    decode: list[SimulationResult]

    def summary(self, ttft_target: float | None = None, tpot_target: float | None = None) -> Summary:
        """Le bilan ; les délais visés (secondes) définissent le goodput."""
        return summarize(self.requests.values(), ttft_target, tpot_target)


def simulate_disaggregated(
    workload: Sequence[WorkloadRequest],
    prefill: Scenario,
    decode: Scenario,
    link_bandwidth: float,
    link_latency: float = 0.0,
    num_prefill: int = 1,
    num_decode: int = 1,
) -> DisaggregatedResult:
    """Sert la charge avec `num_prefill` moteurs `prefill` et `num_decode` moteurs `decode`, à tour de rôle.

    Le cache d'un prompt passe d'un groupe à l'autre en `link_latency` secondes plus ses octets divisés par `link_bandwidth` (octets
    par seconde) ; deux transferts ne se gênent pas. Le budget du groupe de decode doit laisser entrer un prompt entier, puisqu'il
    n'y est pas calculé : il est monté à `max_num_seqs × max_model_len`. Lève `ConfigError`.
    """
    require_int("num_prefill", num_prefill, 1)
    require_int("num_decode", num_decode, 1)
    if not link_bandwidth > 0:
        raise ConfigError(f"link_bandwidth vaut {link_bandwidth!r} : donnez des octets par seconde, plus que 0.")
    if not 0 <= link_latency < float("inf"):
        raise ConfigError(f"link_latency vaut {link_latency!r} : donnez des secondes, 0 ou plus.")
    if prefill.model_sheet != decode.model_sheet or prefill.cache_dtype != decode.cache_dtype:
        raise ConfigError(
            "Les deux groupes doivent servir le même modèle, avec le même kv_cache_dtype : l'un lit le cache de l'autre."
        )
    if prefill.max_concurrency or decode.max_concurrency:
        raise ConfigError("max_concurrency n'a pas de sens ici : donnez à la charge des dates d'arrivée.")
    by_id = {request.request_id: request for request in workload}
    first_tokens = [replace(request, num_output_tokens=1) for request in sorted(workload, key=lambda request: request.arrival)]
    prefills = [prefill.run(first_tokens[index::num_prefill]) for index in range(min(num_prefill, len(first_tokens)))]
    requests = {request_id: metrics for result in prefills for request_id, metrics in result.requests.items()}

    token_bytes = kv_bytes_per_token(prefill.model_sheet, prefill.cache_dtype)
    handed_over = []
    for request_id, metrics in requests.items():
        request = by_id[request_id]
        if request.num_output_tokens > 1:
            transfer = link_latency + request.num_prompt_tokens * token_bytes / link_bandwidth
            handed_over.append(
                replace(
                    request,
                    arrival=metrics.end + transfer,
                    num_prompt_tokens=request.num_prompt_tokens + 1,
                    num_output_tokens=request.num_output_tokens - 1,
                    prompt=None,
                    prompt_token_ids=None,
                )
            )
    handed_over.sort(key=lambda request: request.arrival)
    decode = replace(decode, max_num_batched_tokens=decode.max_num_seqs * decode.context_length)
    decodes = [
        decode.run(handed_over[index::num_decode], executor_cls=TransferredExecutor)
        for index in range(min(num_decode, len(handed_over)))
    ]
    for result in decodes:
        for request_id, metrics in result.requests.items():
            whole = requests[request_id]
            whole.token_times += metrics.token_times
            whole.end, whole.finish_reason = metrics.end, metrics.finish_reason
            whole.num_preemptions += metrics.num_preemptions
    for request_id, metrics in requests.items():
        if by_id[request_id].num_output_tokens == 1:
            metrics.finish_reason = FinishReason.STOP
    return DisaggregatedResult(requests, prefills, decodes)
