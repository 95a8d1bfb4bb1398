"""Ce que les tests du cœur partagent : un exécuteur qui modélise la mémoire, et la réponse attendue sans aucun moteur.

L'exécuteur range à chaque emplacement du cache l'empreinte de tout le préfixe dont K et V de cette position dépendent, puis relit
le cache à travers les tables. Une empreinte périmée, une écriture perdue, un bloc partagé écrasé ou jamais écrit se voit aussitôt.
"""

from collections.abc import Callable
from zlib import crc32

from minibatcher.engine import EngineCore
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput, StepPlan

VOCAB_SIZE = 4


class Crash(Exception):
    """La panne que l'exécuteur simule."""


def prefix_digest(parent: int, token_id: int) -> int:
    """Empreinte d'un préfixe : elle dépend de tous ses tokens et de leur ordre."""
    return hash((parent, token_id))


def next_token(digest: int) -> int:
    """Le « modèle » : le token suivant ne dépend que de la séquence entière."""
    return digest % VOCAB_SIZE


def expected_output(request: Request, max_model_len: int, capacity: int) -> tuple[list[int], FinishReason]:
    """La réponse de la requête servie seule, sans moteur, et la raison de sa fin."""
    params, digest, tokens = request.sampling_params, 0, []
    for token_id in request.prompt_token_ids:
        digest = prefix_digest(digest, token_id)
    limit = params.max_tokens or max(1, min(max_model_len, capacity + 1) - request.num_prompt_tokens)
    eos = [] if params.ignore_eos or request.eos_token_id is None else [request.eos_token_id]
    while True:
        tokens.append(next_token(digest))
        digest = prefix_digest(digest, tokens[-1])
        if tokens[-1] in [*params.stop_token_ids, *eos] and len(tokens) >= params.min_tokens:
            return tokens, FinishReason.STOP
        if len(tokens) == limit:
            return tokens, FinishReason.LENGTH


class MemoryExecutor:
    """Écrit tous les emplacements du lot, puis vérifie ce que chaque requête relit : son préfixe, rien d'autre.

    - `crash` : le prochain pas écrit n'importe quoi, puis lève `Crash` ;
    - `failing` : rang (dans le plan) d'une requête qui échoue au prochain pas ; elle écrit n'importe quoi, et celles qui la lisent
      dans ce même pas échouent avec elle, comme un NaN se propage ;
    - `on_plan` : appelée avec chaque plan, avant l'exécution ;
    - `steps` : par pas, `(numéro de requête, position de départ, tokens calculés, token produit)`.
    """

    def __init__(self, manager: KVCacheManager, on_plan: Callable[[StepPlan], None] | None = None) -> None:
        self.manager = manager
        self.on_plan = on_plan
        self.crash = False
        self.failing: int | None = None
        self.steps: list[list[tuple[str, int, int, int | None]]] = []
        self.num_free_blocks: list[int] = []
        self.slots: dict[int, object] = {}
        self._digests: dict[Request, list[int]] = {}

    def _prefixes(self, request: Request) -> list[int]:
        digests = self._digests.setdefault(request, [])
        for token_id in request.token_ids[len(digests) :]:
            digests.append(prefix_digest(digests[-1] if digests else 0, token_id))
        return digests

    def execute(self, plan: StepPlan) -> StepOutput:
        if self.on_plan is not None:
            self.on_plan(plan)
        crash, failing, self.crash, self.failing = self.crash, self.failing, False, None
        failed = None if failing is None or not plan.requests else plan.requests[failing % len(plan.requests)]
        size, garbage, reads = self.manager.block_size, object(), []
        for request, count in zip(plan.requests, plan.num_tokens, strict=True):
            table, prefixes, start = plan.block_tables[request.request_id], self._prefixes(request), request.num_computed_tokens
            places = [table[p // size] * size + p % size for p in range(start + count)]
            reads.append(places)
            for position in range(start, start + count):
                self.slots[places[position]] = garbage if crash or request is failed else prefixes[position]
        if crash:
            raise Crash
        output, step = StepOutput([]), []
        for request, count, places in zip(plan.requests, plan.num_tokens, reads, strict=True):
            prefixes, read = self._prefixes(request), [self.slots.get(place) for place in places]
            token_id = None
            if garbage in read:
                assert request is failed or request.request_id in plan.admitted, f"{request.request_id} partage un bloc privé"
                output.errors[request.request_id] = "panne simulée"
            else:
                wrong = [p for p, digest in enumerate(read) if digest != prefixes[p]]
                assert not wrong, f"{request.request_id} lit aux positions {wrong} un autre contenu que le sien"
                if len(read) == request.num_tokens:
                    token_id = next_token(read[-1])
            output.token_ids.append(token_id)
            step.append((request.request_id, request.num_computed_tokens, count, token_id))
        self.steps.append(step)
        self.num_free_blocks.append(self.manager.num_blocks - len({b for table in plan.block_tables.values() for b in table}))
        return output


def make_engine(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 64,
    enable_chunked_prefill: bool = True,
    enable_prefix_caching: bool = True,
) -> EngineCore:
    """Un moteur dont l'exécuteur est un `MemoryExecutor` et dont l'horloge avance d'une seconde par lecture."""
    manager = KVCacheManager(num_blocks, block_size, enable_prefix_caching)
    config = SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_model_len, enable_chunked_prefill)
    ticks = iter(range(10**9))
    return EngineCore(Scheduler(config, manager), MemoryExecutor(manager), clock=lambda: float(next(ticks)))


def make_request(request_id: str, prompt: int | list[int], max_tokens: int | None = 4, **params) -> Request:
    """Une requête greedy ; un prompt donné par sa longueur est fait de tokens propres à son identifiant."""
    if isinstance(prompt, int):
        first = 1000 * crc32(request_id.encode())
        prompt = list(range(first, first + prompt))
    return Request(request_id, prompt, SamplingParams(temperature=0, max_tokens=max_tokens, **params))


def run_to_end(engine: EngineCore, max_steps: int = 1000) -> list[Request]:
    """Avance jusqu'à ce que tout soit fini, en vérifiant le tas à chaque pas ; rend les requêtes finies, dans l'ordre."""
    finished = []
    for _ in range(max_steps):
        if not engine.has_unfinished_requests:
            return finished
        finished += engine.step()
        check_blocks(engine)
    raise AssertionError(f"rien n'est fini après {max_steps} pas")


def check_blocks(engine: EngineCore) -> None:
    """Le tas de blocs est cohérent, et vide si plus rien n'est en cours."""
    scheduler = engine.scheduler
    scheduler.kv_cache_manager.check_integrity(scheduler.running)
    if not scheduler.has_unfinished_requests:
        assert scheduler.kv_cache_manager.num_free_blocks == scheduler.kv_cache_manager.num_blocks


def check_output(engine: EngineCore, *requests: Request) -> None:
    """Chaque requête a répondu comme si elle avait été seule."""
    manager = engine.scheduler.kv_cache_manager
    for request in requests:
        expected = expected_output(request, engine.scheduler.config.max_model_len, manager.num_blocks * manager.block_size)
        assert (request.output_token_ids, request.finish_reason) == expected, request
