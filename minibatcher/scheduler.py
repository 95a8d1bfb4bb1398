"""Le scheduler : à chaque pas, qui calcule, et combien de tokens.

Règles de vLLM V1 (`vllm/v1/core/sched/scheduler.py`, politique fcfs, synchrone). Il n'y a pas de phases : chaque requête a des
tokens connus et des tokens calculés, et le scheduler distribue un budget de tokens pour que les seconds rattrapent les premiers.
Un prompt plus long que le budget avance par morceaux (chunked prefill), à côté des requêtes qui produisent un token par pas.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from minibatcher.errors import ConfigError, InvalidRequestError, UnknownOptionsRefused, require_bool, require_int
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import FinishReason, Request, RequestStatus


@dataclass
class SchedulerConfig(UnknownOptionsRefused):
    """Réglages du scheduler, aux noms de vLLM.

    - `max_num_seqs` : requêtes en cours au plus ;
    - `max_num_batched_tokens` : budget de tokens d'un pas, prefill et decode ensemble ;
    - `max_model_len` : longueur maximale d'une séquence, prompt et réponse ;
    - `enable_chunked_prefill` : si faux, un prompt qui dépasse le budget restant attend le pas suivant.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    enable_chunked_prefill: bool = True

    def __post_init__(self) -> None:
        require_int("max_num_seqs", self.max_num_seqs, 1)
        require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        require_int("max_model_len", self.max_model_len, 2)
        require_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"Sans chunked prefill, un prompt entre en une fois : max_num_batched_tokens ({self.max_num_batched_tokens}) doit "
                f"atteindre max_model_len ({self.max_model_len}). Montez l'un, baissez l'autre, ou gardez le chunked prefill."
            )


@dataclass(slots=True)
class StepPlan:
    """Ce que le scheduler a décidé pour un pas.

    `requests[i]` calcule `num_tokens[i]` tokens, à partir de sa position `num_computed_tokens` ; ses blocs sont
    `block_tables[requests[i].request_id]`. Les deux listes sont parallèles, dans l'ordre de la décision.
    """

    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    admitted: dict[str, int] = field(default_factory=dict)  # requête entrée ou revenue : tokens trouvés en cache
    preempted: list[str] = field(default_factory=list)
    block_tables: dict[str, list[int]] = field(default_factory=dict)  # celles du KVCacheManager, à lire seulement
    num_free_blocks: int = 0

    @property
    def total_num_tokens(self) -> int:
        return sum(self.num_tokens)


@dataclass(slots=True)
class StepOutput:
    """Ce que l'exécuteur rend : une entrée par requête du plan.

    `token_ids[i]` est le token produit, ou `None` si la requête n'a pas encore rattrapé ses tokens connus. `logprobs` vaut `None`
    ou donne, par requête, les logarithmes de probabilité demandés. `errors` : ce qui a échoué, par identifiant de requête.
    """

    token_ids: list[int | None]
    logprobs: list | None = None
    errors: dict[str, str] = field(default_factory=dict)


class Scheduler:
    """Deux files, `waiting` et `running`, et un budget.

    Un pas : `schedule()` décide, l'exécuteur calcule, `update()` range les tokens produits et sort les requêtes finies.
    """

    def __init__(self, config: SchedulerConfig, kv_cache_manager: KVCacheManager) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}  # toutes celles qui ne sont pas finies

    def add_request(self, request: Request) -> None:
        """Met une requête en file. Lève `InvalidRequestError` si elle ne pourrait jamais être servie."""
        self.check_request(request)
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def check_request(self, request: Request) -> None:
        """Vérifie qu'une requête peut être servie, et fixe sa longueur maximale. Lève `InvalidRequestError` sinon."""
        request_id, num_prompt_tokens = request.request_id, request.num_prompt_tokens
        max_model_len = self.config.max_model_len
        capacity = self.kv_cache_manager.num_blocks * self.kv_cache_manager.block_size
        if request_id in self.requests:
            raise InvalidRequestError(f"La requête {request_id!r} est déjà en cours : donnez un autre identifiant.")
        if num_prompt_tokens == 0:
            raise InvalidRequestError(f"La requête {request_id!r} a un prompt vide : donnez au moins un token.")
        if num_prompt_tokens >= max_model_len:
            raise InvalidRequestError(
                f"Le prompt de {request_id!r} compte {num_prompt_tokens} tokens ; max_model_len = {max_model_len} en laisse "
                f"au plus {max_model_len - 1}. Raccourcissez-le ou montez max_model_len."
            )
        # Le dernier token produit n'entre jamais dans le cache : personne ne le relit.
        if request.max_num_tokens is math.inf:
            request.max_num_tokens = min(max_model_len, capacity + 1)
        if request.max_num_tokens > max_model_len:
            raise InvalidRequestError(
                f"{request_id!r} demande {num_prompt_tokens} tokens de prompt et {request.max_num_tokens - num_prompt_tokens} de "
                f"réponse (max_tokens) : plus que max_model_len = {max_model_len}. Baissez max_tokens ou raccourcissez le prompt."
            )
        if request.max_num_tokens - 1 > capacity or num_prompt_tokens >= capacity + 1:
            raise InvalidRequestError(
                f"{request_id!r} a besoin de {request.max_num_tokens - 1} tokens de cache (prompt + max_tokens), or le cache "
                f"entier en contient {capacity}. Baissez max_tokens, raccourcissez le prompt ou agrandissez le cache."
            )

    def schedule(self) -> StepPlan:
        """Décide un pas et réserve ses blocs. Ne fait avancer aucune requête : c'est l'affaire de `update`."""
        plan = StepPlan(block_tables=self.kv_cache_manager.block_tables)
        self._fill(plan)
        plan.num_free_blocks = self.kv_cache_manager.num_free_blocks
        return plan

    def _fill(self, plan: StepPlan) -> None:
        """L'ordre de service, que les autres politiques remplacent (`minibatcher/policies.py`)."""
        budget = self._schedule_running(plan, self.config.max_num_batched_tokens)
        # Un pas qui a dû préempter n'admet personne : la mémoire manque déjà.
        if not plan.preempted:
            self._schedule_waiting(plan, budget)

    def may_enter(self, request: Request) -> bool:
        """Faux si la politique fait attendre la tête de la file, même quand il y a de la place."""
        return True

    def _schedule_running(self, plan: StepPlan, budget: int) -> int:
        """Les requêtes en cours d'abord, les plus anciennes avant les autres ; rend le budget restant."""
        running, allocate = self.running, self.kv_cache_manager.allocate
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            num_new_tokens = len(request.token_ids) - request.num_computed_tokens
            if num_new_tokens > budget:
                num_new_tokens = budget
            while not allocate(request, num_new_tokens):
                # Plus de blocs : la dernière entrée rend les siens et reprendra tout (recompute).
                victim = running.pop()
                self._preempt(victim)
                plan.preempted.append(victim.request_id)
                if victim is request:
                    return budget
            plan.requests.append(request)
            plan.num_tokens.append(num_new_tokens)
            budget -= num_new_tokens
            index += 1
        return budget

    def _schedule_waiting(self, plan: StepPlan, budget: int) -> None:
        """Puis la file, dans l'ordre ; la première qui ne peut pas entrer arrête tout le monde derrière elle."""
        manager = self.kv_cache_manager
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            if not self.may_enter(request):
                return
            computed_blocks = manager.get_computed_blocks(request)
            num_cached_tokens = len(computed_blocks) * manager.block_size
            num_new_tokens = request.num_tokens - num_cached_tokens
            if num_new_tokens > budget:
                if not self.config.enable_chunked_prefill:
                    return
                num_new_tokens = budget
            if not manager.admit(request, num_new_tokens, computed_blocks):
                return
            self.waiting.popleft()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            if request.num_cached_tokens is None:
                request.num_cached_tokens = num_cached_tokens
            plan.requests.append(request)
            plan.num_tokens.append(num_new_tokens)
            plan.admitted[request.request_id] = num_cached_tokens
            budget -= num_new_tokens

    def update(self, plan: StepPlan, output: StepOutput) -> list[Request]:
        """Fait avancer les requêtes du plan ; rend celles qui se terminent, blocs déjà rendus."""
        finished = []
        for request, num_tokens, token_id in zip(plan.requests, plan.num_tokens, output.token_ids, strict=True):
            request.num_computed_tokens += num_tokens
            if token_id is not None:
                reason = request.append(token_id)
                if reason is not None:
                    self._finish(request, reason)
                    finished.append(request)
        if output.logprobs is not None:
            for request, entry in zip(plan.requests, output.logprobs, strict=True):
                if entry is not None:
                    request.logprobs.append(entry)
        for request_id, message in output.errors.items():
            request = self.requests.get(request_id)
            if request is not None:
                request.error = message
                self._finish(request, FinishReason.ERROR)
                finished.append(request)
        if finished:
            self.running = [request for request in self.running if request.status is RequestStatus.RUNNING]
        return finished

    def finish_request(self, request_id: str, reason: FinishReason) -> Request | None:
        """Termine une requête hors d'un pas (annulation, chaîne d'arrêt). Sans effet si elle est déjà finie."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, reason)
        return request

    def undo(self, plan: StepPlan) -> None:
        """Le pas n'a pas abouti (exception, Ctrl-C) : ses requêtes retournent en file et oublient ce qu'il a pu mal écrire."""
        for request in reversed(plan.requests):
            self.running.remove(request)
            self._preempt(request, keep_cached=False)

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def _preempt(self, request: Request, keep_cached: bool = True) -> None:
        self.kv_cache_manager.free(request, keep_cached)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.waiting.appendleft(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.status is RequestStatus.RUNNING:
            # Un calcul raté a pu laisser n'importe quoi dans les blocs : personne ne doit les retrouver.
            self.kv_cache_manager.free(request, keep_cached=reason is not FinishReason.ERROR)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]
