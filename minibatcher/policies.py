"""Les autres politiques, à lire à côté de celle de `Scheduler` : qui passe d'abord quand un prompt arrive ?

Mêmes files, mêmes blocs, même préemption ; seuls changent l'ordre de service et le droit d'entrer.

| nom | qui passe d'abord | un prompt long |
|---|---|---|
| `chunked_prefill` | les requêtes en cours, puis la file (vLLM V1) | avance par morceaux, à côté des decodes |
| `decode_first` | les requêtes en cours, puis la file | entre en une fois, s'il tient dans le budget qui reste |
| `prefill_first` | la file, seule dans son pas (vLLM V0) | entre en une fois ; tous les decodes attendent |
| `static` | le lot en cours, jusqu'à sa plus longue réponse | avance par morceaux, comme le reste du lot |
"""

from dataclasses import replace
from itertools import islice

from minibatcher.errors import ConfigError
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import Request
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepPlan


class StaticScheduler(Scheduler):
    """Lots statiques : un lot entre, et personne d'autre avant que sa plus longue réponse soit finie.

    Le lot est fait des `max_num_seqs` premières requêtes de la file au moment où la précédente fournée est finie. Les places de
    celles qui terminent tôt restent vides. C'est ce que fait un appel à `generate` de transformers avec plusieurs prompts.
    """

    def __init__(self, config: SchedulerConfig, kv_cache_manager: KVCacheManager) -> None:
        super().__init__(config, kv_cache_manager)
        self._batch: set[Request] = set()

    def _fill(self, plan: StepPlan) -> None:
        # Une requête du lot que le manque de blocs a renvoyée en file en fait toujours partie : elle est en tête, et revient.
        if not self.running and not (self.waiting and self.waiting[0] in self._batch):
            self._batch = set(islice(self.waiting, self.config.max_num_seqs))
        super()._fill(plan)

    def may_enter(self, request: Request) -> bool:
        return request in self._batch


class DecodeFirstScheduler(Scheduler):
    """Les decodes d'abord, les prompts entiers ensuite : V1 sans chunked prefill.

    Un prompt plus long que le budget qui reste attend, et tout le monde derrière lui.
    """

    def __init__(self, config: SchedulerConfig, kv_cache_manager: KVCacheManager) -> None:
        super().__init__(replace(config, enable_chunked_prefill=False), kv_cache_manager)


class PrefillFirstScheduler(Scheduler):
    """Les prompts d'abord, seuls dans leur pas : le réglage par défaut de vLLM V0 (`vllm/core/scheduler.py`).

    Le premier token vient vite, mais chaque arrivée suspend tous les decodes le temps d'un pas.
    """

    def __init__(self, config: SchedulerConfig, kv_cache_manager: KVCacheManager) -> None:
        super().__init__(replace(config, enable_chunked_prefill=False), kv_cache_manager)

    def _fill(self, plan: StepPlan) -> None:
        self._schedule_waiting(plan, self.config.max_num_batched_tokens)
        if not plan.requests:
            self._schedule_running(plan, self.config.max_num_batched_tokens)


POLICIES: dict[str, type[Scheduler]] = {
    "chunked_prefill": Scheduler,
    "decode_first": DecodeFirstScheduler,
    "prefill_first": PrefillFirstScheduler,
    "static": StaticScheduler,
}


def get_scheduler_cls(scheduler_cls: str | type[Scheduler]) -> type[Scheduler]:
    """La classe d'une politique connue par son nom, ou la classe donnée elle-même. `ConfigError` si le nom est inconnu."""
    if isinstance(scheduler_cls, str) and scheduler_cls in POLICIES:
        return POLICIES[scheduler_cls]
    if isinstance(scheduler_cls, type) and issubclass(scheduler_cls, Scheduler):
        return scheduler_cls
    raise ConfigError(f"scheduler_cls {scheduler_cls!r} inconnu. Donnez une classe de scheduler, ou : {', '.join(POLICIES)}.")
