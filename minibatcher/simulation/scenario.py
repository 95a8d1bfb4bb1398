"""Un scénario : un modèle, une machine, des réglages. De quoi simuler une charge, et comparer des réglages deux à deux."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

from minibatcher.errors import ConfigError, MinibatcherError, UnknownOptionsRefused, require_int
from minibatcher.journal import build_scheduler
from minibatcher.scheduler import Scheduler
from minibatcher.simulation.cost import CostModel
from minibatcher.simulation.hardware import Hardware, get_hardware
from minibatcher.simulation.sheets import (
    ModelSheet,
    get_model,
    kv_bytes_per_token,
    kv_cache_bytes,
)
from minibatcher.simulation.simulator import SimulationResult, simulate
from minibatcher.simulation.workload import WorkloadRequest


@dataclass(frozen=True)
class Scenario(UnknownOptionsRefused):
    """De quoi simuler, aux noms de vLLM.

    - `model`, `hardware` : une fiche, ou son nom (`minibatcher.simulation.sheets`) ;
    - `dtype`, `kv_cache_dtype` (`"auto"` : celui des poids), `gpu_memory_utilization` : ils fixent la taille du cache ;
      `num_blocks` la donne directement ;
    - `max_num_seqs`, `max_num_batched_tokens`, `max_model_len` (`None` : ce que le modèle connaît), `block_size`,
      `enable_prefix_caching`, `enable_chunked_prefill`, `scheduler_cls` : comme pour `LLM` ;
    - `max_concurrency` : boucle fermée, avec autant de clients (`None` : les dates d'arrivée de la charge) ;
    - `cost_model` : un modèle de coût calibré, qui remplace celui des fiches ;
    - `ttft_target`, `tpot_target` : délais visés, en secondes, pour le goodput.
    """

    model: str | ModelSheet = "Llama 3 8B"
    hardware: str | Hardware = "A100-80"
    dtype: str = "float16"
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    num_blocks: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduler_cls: str | type[Scheduler] = "chunked_prefill"
    max_concurrency: int | None = None
    cost_model: CostModel | None = None
    ttft_target: float | None = None
    tpot_target: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_target", "tpot_target"):
            target = getattr(self, name)
            if target is not None and (isinstance(target, bool) or not isinstance(target, (int, float)) or not target > 0):
                raise ConfigError(f"{name} vaut {target!r} : donnez une durée en secondes, plus grande que 0.")

    @property
    def model_sheet(self) -> ModelSheet:
        return self.model if isinstance(self.model, ModelSheet) else get_model(self.model)

    @property
    def hardware_sheet(self) -> Hardware:
        return self.hardware if isinstance(self.hardware, Hardware) else get_hardware(self.hardware)

    @property
    def context_length(self) -> int:
        """`max_model_len`, ou ce que le modèle connaît si rien n'est dit."""
        return self.model_sheet.max_position_embeddings if self.max_model_len is None else self.max_model_len

    def build_cost_model(self) -> CostModel:
        """Le modèle de coût donné, ou celui des fiches."""
        if self.cost_model is not None:
            return self.cost_model
        return CostModel.from_sheets(self.model_sheet, self.hardware_sheet, self.dtype, self.cache_dtype)

    @property
    def cache_dtype(self) -> str:
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    def build_scheduler(self) -> Scheduler:
        """Un scheduler neuf. Lève `ConfigError` si un réglage est impossible ou si les poids ne tiennent pas."""
        model = self.model_sheet
        num_blocks = self.num_blocks
        if num_blocks is None:
            require_int("block_size", self.block_size, 1)
            memory = kv_cache_bytes(model, self.hardware_sheet, self.dtype, self.gpu_memory_utilization)
            num_blocks = memory // (kv_bytes_per_token(model, self.cache_dtype) * self.block_size)
        return build_scheduler(
            scheduler_cls=self.scheduler_cls,
            num_blocks=num_blocks,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.context_length,
            enable_chunked_prefill=self.enable_chunked_prefill,
        )

    def run(self, workload: Sequence[WorkloadRequest], **options) -> SimulationResult:
        """Simule la charge ; `options` : celles de `simulate` (`allow_refused`, `progress`…)."""
        return simulate(workload, self.build_cost_model(), self.build_scheduler(), max_concurrency=self.max_concurrency, **options)


# Les colonnes d'un balayage : ce que l'on compare d'abord. Durées en secondes.
def _columns(scenario: Scenario, result: SimulationResult) -> dict:
    summary, usage = result.summary(scenario.ttft_target, scenario.tpot_target), result.usage
    row = {
        "output_throughput": summary.output_throughput,
        "request_throughput": summary.request_throughput,
        "goodput": summary.goodput,
        "duration": summary.duration,
    }
    for name in ("ttft", "tpot", "itl", "e2e", "queue_time"):
        distribution = getattr(summary, name)
        row |= {f"{name}_{q}": getattr(distribution, q) for q in ("p50", "p95", "p99")}
    row |= {
        "num_preemptions": summary.num_preemptions,
        "recomputed_tokens": usage.recomputed_tokens,
        "slots": usage.slots,
        "blocks": usage.blocks,
        "budget": usage.budget,
        "num_refused": len(result.refused),
    }
    return row


def grid(parameters: dict[str, Iterable]) -> list[dict]:
    """Toutes les combinaisons, la dernière clé variant le plus vite. Lève `ConfigError` si une liste est vide."""
    values = {name: list(choices) for name, choices in parameters.items()}
    for name, choices in values.items():
        if not choices:
            raise ConfigError(f"Rien à essayer pour {name} : donnez au moins une valeur.")
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def sweep(
    scenario: Scenario,
    workload: Sequence[WorkloadRequest],
    parameters: dict[str, Iterable],
    n_jobs: int = -1,
    progress: Callable[[int], object] | None = None,
    allow_refused: bool = False,
) -> list[dict]:
    """Simule le scénario pour chaque combinaison de `parameters` (champs de `Scenario`) ; rend une ligne par combinaison.

    Une combinaison impossible (cache trop petit…) donne une ligne dont `error` dit pourquoi ; les autres continuent. `n_jobs` :
    processus en parallèle (-1 : un par cœur) ; le résultat n'en dépend pas. C'est joblib qui répartit : `joblib.parallel_config`
    change de moteur, Ray compris, pour qui dispose de plusieurs machines.
    """
    from joblib import Parallel, delayed

    known = {f.name for f in fields(Scenario)}
    unknown = [name for name in parameters if name not in known]
    if unknown:
        raise ConfigError(f"Paramètre inconnu : {', '.join(map(repr, unknown))}. Au choix : {', '.join(sorted(known))}.")
    if n_jobs == 0:
        raise ConfigError("n_jobs vaut 0 : donnez un nombre de processus, ou -1 pour un par cœur.")
    points = grid(parameters)
    rows = []
    jobs = (delayed(_run_point)(scenario, workload, point, allow_refused) for point in points)
    for row in Parallel(n_jobs=n_jobs, return_as="generator")(jobs):
        rows.append(row)
        if progress is not None:
            progress(1)
    return rows


def _run_point(scenario: Scenario, workload: Sequence[WorkloadRequest], point: dict, allow_refused: bool) -> dict:
    shown = {name: getattr(value, "name", None) or getattr(value, "__name__", None) or value for name, value in point.items()}
    try:
        scenario = replace(scenario, **point)
        return {**shown, **_columns(scenario, scenario.run(workload, allow_refused=allow_refused)), "error": None}
    except MinibatcherError as problem:
        return {**shown, "error": str(problem)}
