"""Les invariants du moteur, vérifiés après chaque pas de 2 000 charges tirées au hasard.

L'exécuteur (`MemoryExecutor`) modélise la mémoire physique : ce qu'une requête relit à travers sa table doit être son préfixe.
"""

import math
from collections import Counter
from dataclasses import dataclass

from helpers import VOCAB_SIZE, Crash, MemoryExecutor, expected_output
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibatcher.engine import AbandonedStepEvent, ArrivalEvent, EndEvent, EngineCore, StepEvent
from minibatcher.errors import InvalidRequestError
from minibatcher.journal import Journal, scheduler_settings
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import FinishReason, Request, RequestStatus, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepPlan
from minibatcher.simulation.replay import replay

NUM_WORKLOADS = 2000
# Ce qui doit vraiment arriver au fil de ces charges, sinon elles ne prouvent rien.
EVENTS = [
    *("refused", "preempted", "cached", "shared", "chunk", "no blocks", "not chunked", "crash", "reset"),
    *(("abort", status) for status in RequestStatus),
    *FinishReason,
]


@dataclass
class Workload:
    num_blocks: int
    block_size: int
    enable_prefix_caching: bool
    config: SchedulerConfig
    requests: list[tuple[int, list[int], SamplingParams, int | None]]  # pas d'arrivée, prompt, params, token de fin
    faults: list[tuple[int, str, int]]  # pas, « abort », « error », « crash » ou « reset », rang de la victime


def tokens(min_size: int = 0, max_size: int = 0) -> st.SearchStrategy[list[int]]:
    return st.binary(min_size=min_size, max_size=max_size).map(lambda data: [byte % VOCAB_SIZE for byte in data])


@st.composite
def workloads(draw) -> Workload:
    """De petites charges où tout arrive : blocs de 1 à 32, mémoire juste suffisante, prompts qui commencent pareil."""
    block_size = draw(st.integers(1, 4) | st.integers(1, 32))
    capacity = draw(st.integers(24, 48) | st.integers(12, 160))
    max_model_len = draw(st.integers(30, 48) | st.integers(2, 64))
    chunked = draw(st.sampled_from([True, True, False]))
    budgets = st.integers(1, 96) | st.integers(1, 12) if chunked else st.just(max_model_len) | st.integers(max_model_len, 96)
    config = SchedulerConfig(draw(st.integers(3, 12) | st.integers(1, 12)), draw(budgets), max_model_len, chunked)
    base = draw(tokens(16, 16))
    requests = []
    for number in range(draw(st.integers(6, 12) | st.integers(1, 12))):
        prompt = base[: draw(st.integers(0, 16))] + draw(tokens(1, 6) | tokens(0, 6))
        stop = draw(st.sampled_from([None, None, None, "stop_token_ids", "eos", "ignore_eos"]))
        max_tokens = draw(st.integers(1, 16) | st.none()) if number % 4 == 3 else draw(st.integers(1, 16))
        params = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, max_tokens)) if stop and max_tokens else 0,
            stop_token_ids=[1] if stop == "stop_token_ids" else None,
            ignore_eos=stop == "ignore_eos",
        )
        eos = 2 if stop in ("eos", "ignore_eos") else None
        requests.append((draw(st.just(0) | st.integers(0, 12)), prompt, params, eos))
    kinds = st.sampled_from(["abort", "abort", "error", "crash", "reset"])
    faults = draw(st.lists(st.tuples(st.integers(0, 8) | st.integers(0, 30), kinds, st.integers(0, 11)), max_size=5))
    requests.sort(key=lambda arrival: arrival[0])
    return Workload(-(-capacity // block_size), block_size, draw(st.booleans()), config, requests, faults)


class Run:
    """Une charge servie d'un bout à l'autre, vérifiée à chaque pas. `seen` compte ce qui est arrivé."""

    def __init__(self, workload: Workload, seen: Counter) -> None:
        self.workload, self.seen = workload, seen
        self.manager = KVCacheManager(workload.num_blocks, workload.block_size, workload.enable_prefix_caching)
        self.capacity = workload.num_blocks * workload.block_size
        self.scheduler = Scheduler(workload.config, self.manager)
        self.executor = MemoryExecutor(self.manager, on_plan=self.check_plan)
        ticks = iter(range(10**9))
        self.engine = EngineCore(self.scheduler, self.executor, clock=lambda: next(ticks))
        self.accepted: list[Request] = []
        self.finished: list[str] = []
        self.crashes = 0

    def run(self) -> None:
        arrivals, step, busy_steps = self.workload.requests[::-1], 0, 0
        while arrivals or self.engine.has_unfinished_requests:
            while arrivals and arrivals[-1][0] <= step:
                self.submit(Request(f"r{len(arrivals)}", *arrivals.pop()[1:]))
            for when, kind, rank in self.workload.faults:
                if when == step:
                    self.prepare_fault(kind, rank)
            busy_steps += self.engine.has_unfinished_requests
            # Tant qu'il reste du travail, la tête de `running` avance d'au moins un token par pas et n'est jamais préemptée :
            # elle ne peut perdre le sien que dans un pas qui plante.
            lengths = [request.max_num_tokens for request in self.accepted]
            assert busy_steps <= sum(lengths) + self.crashes * (1 + max(lengths, default=0)), "le moteur n'avance pas"
            self.step()
            self.check_requests()
            step += 1
        self.check_end()

    def submit(self, request: Request) -> None:
        longest = min(self.workload.config.max_model_len, self.capacity + 1)
        length = request.num_prompt_tokens + (request.sampling_params.max_tokens or 1)
        try:
            self.engine.add_request(request)
        except InvalidRequestError:
            self.seen["refused"] += 1
            assert request.num_prompt_tokens == 0 or length > longest
        else:
            assert request.num_prompt_tokens > 0
            assert length <= longest
            self.accepted.append(request)

    def prepare_fault(self, kind: str, rank: int) -> None:
        if kind == "abort":
            if self.accepted:
                candidates = [r for r in self.accepted if r.status is RequestStatus.PREEMPTED] or self.accepted
                request = candidates[rank % len(candidates)]
                self.seen["abort", request.status] += 1
                if not request.is_finished:
                    self.finished.append(request.request_id)
                self.engine.abort([request.request_id, "inconnue"])
        elif kind == "error":
            self.executor.failing = rank
        elif kind == "reset":
            self.seen["reset"] += 1
            self.engine.reset_prefix_cache()
        elif self.engine.has_unfinished_requests:
            self.executor.crash = True

    def step(self) -> None:
        """Un pas ; l'ordre de « running puis waiting » ne change jamais, sauf si le pas plante."""
        running, waiting = [[r.request_id for r in queue] for queue in (self.scheduler.running, self.scheduler.waiting)]
        num_events = len(self.engine.events)
        try:
            finished = self.engine.step()
        except Crash:
            self.crashes += 1
            self.seen["crash"] += 1
            now_running, now_waiting = [[r.request_id for r in queue] for queue in (self.scheduler.running, self.scheduler.waiting)]
            planned = {request.request_id for request in self.plan.requests}
            assert now_running == [rid for rid in running if rid not in planned and rid not in self.plan.preempted]
            assert now_waiting == [rid for rid in running + waiting if rid not in now_running]
            assert len(self.engine.events) == num_events + 1
            event = self.engine.events[-1]
            assert isinstance(event, AbandonedStepEvent)
            assert set(event.requeued) == planned | set(self.plan.preempted)
            return
        done = [request.request_id for request in finished]
        self.finished += done
        now_running, now_waiting = [[r.request_id for r in queue] for queue in (self.scheduler.running, self.scheduler.waiting)]
        assert now_running + now_waiting == [rid for rid in running + waiting if rid not in done]

        # Le journal dit ce qui s'est passé, et rien d'autre.
        event, executed = self.engine.events[-1], self.executor.steps[-1]
        entered = {rid: start for rid, start, _, _ in executed if rid in waiting}
        assert len(self.engine.events) == num_events + 1
        assert isinstance(event, StepEvent)
        assert event.step == len(self.executor.steps) - 1
        assert event.start < event.end
        assert list(event.scheduled.items()) == [(rid, count) for rid, _, count, _ in executed]
        assert event.sampled == {rid: token_id for rid, _, _, token_id in executed if token_id is not None}
        assert list(event.admitted.items()) == list(entered.items())
        assert event.preempted == [rid for rid in running if rid in now_waiting][::-1]
        assert event.finished == {request.request_id: request.finish_reason for request in finished}
        assert event.num_free_blocks == self.executor.num_free_blocks[-1]
        assert (event.num_running, event.num_waiting) == (len(now_running), len(now_waiting))

        self.seen["preempted"] += len(event.preempted)
        self.seen["cached"] += sum(map(bool, event.admitted.values()))

    def check_plan(self, plan: StepPlan) -> None:
        """Appelé entre la décision et l'exécution : le plan respecte les limites et n'oublie personne sans raison."""
        self.plan, config, scheduler, manager = plan, self.workload.config, self.scheduler, self.manager
        left = config.max_num_batched_tokens
        assert len({r.request_id for r in plan.requests}) == len(plan.requests) == len(plan.num_tokens)
        for request, count in zip(plan.requests, plan.num_tokens, strict=True):
            needed = request.num_tokens - request.num_computed_tokens
            assert 1 <= count == min(needed, left), "le budget ne va pas à la première requête du plan"
            left -= count
            self.seen["chunk"] += count < needed
        assert left >= 0
        assert len(scheduler.running) <= config.max_num_seqs
        assert not (plan.preempted and plan.admitted), "un pas qui préempte n'admet personne"
        assert bool(plan.requests) == scheduler.has_unfinished_requests, "du travail attend, et le pas est vide"
        assert left == 0 or plan.requests == scheduler.running, "une requête en cours n'avance pas, alors qu'il reste du budget"
        manager.check_integrity(scheduler.running)
        self.seen["shared"] += max(manager.block_pool.ref_counts) > 1
        if plan.admitted:
            last = plan.requests[-1]
            missing = manager.num_blocks_for(last.num_tokens) - len(manager.block_tables[last.request_id])
            assert missing <= manager.num_free_blocks, "une requête est entrée sans place pour toute sa séquence"
        if left and scheduler.waiting and not plan.preempted and len(scheduler.running) < config.max_num_seqs:
            head = scheduler.waiting[0]
            needed = head.num_tokens - len(manager.get_computed_blocks(head)) * manager.block_size
            no_blocks = manager.num_blocks_for(head.num_tokens) > manager.num_free_blocks
            assert no_blocks or (needed > left and not config.enable_chunked_prefill), "la file attend sans raison"
            self.seen["no blocks"] += no_blocks
            self.seen["not chunked"] += not no_blocks

    def check_requests(self) -> None:
        """Aucune requête perdue : chacune est dans une seule file, ou finie une seule fois avec une raison."""
        scheduler = self.scheduler
        self.manager.check_integrity(scheduler.running)
        assert max(Counter(self.finished).values(), default=1) == 1
        places = Counter(r.request_id for r in [*scheduler.running, *scheduler.waiting]) + Counter(self.finished)
        assert places == Counter(r.request_id for r in self.accepted)
        for request in self.accepted:
            assert request.is_finished == (request.finish_reason is not None) == (request.request_id in self.finished)
            assert (request.status is RequestStatus.RUNNING) == (request in scheduler.running)

    def check_end(self) -> None:
        assert self.manager.num_free_blocks == self.manager.num_blocks
        assert {r.request_id for r in self.accepted} == set(self.finished)
        for request in self.accepted:
            self.seen[request.finish_reason] += 1
            output, reason = expected_output(request, self.workload.config.max_model_len, self.capacity)
            if request.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                output = output[: request.num_output_tokens]
            else:
                assert request.finish_reason is reason
            assert request.output_token_ids == output, "la réponse n'est pas celle de la requête servie seule"
        self.replay_events()
        replayed = replay(Journal(scheduler_settings(self.scheduler), self.engine.events))
        assert replayed.difference is None

    def replay_events(self) -> None:
        """Relu seul, le journal redonne l'histoire de chaque requête : tokens calculés, tokens produits, fin."""
        known, computed, outputs, ends, now = {}, {}, Counter(), {}, -math.inf
        for event in self.engine.events:
            start = event.start if isinstance(event, (StepEvent, AbandonedStepEvent)) else event.time
            assert start > now
            if isinstance(event, ArrivalEvent):
                known[event.request_id], now = event.num_prompt_tokens, start
            elif isinstance(event, EndEvent):
                assert event.request_id not in ends
                ends[event.request_id], now = event.finish_reason, start
            elif isinstance(event, AbandonedStepEvent):
                for request_id in event.requeued:
                    computed.pop(request_id, None)
                now = event.end
            elif isinstance(event, StepEvent):
                for request_id in event.preempted:
                    del computed[request_id]
                computed |= event.admitted
                for request_id, count in event.scheduled.items():
                    computed[request_id] += count
                    caught_up = computed[request_id] == known[request_id]
                    failed = event.finished.get(request_id) is FinishReason.ERROR
                    assert (request_id in event.sampled) == (caught_up and not failed)
                    known[request_id] += request_id in event.sampled
                outputs.update(event.sampled.keys())
                assert not ends.keys() & event.scheduled.keys()
                ends, now = ends | event.finished, event.end
        assert ends == {request.request_id: request.finish_reason for request in self.accepted}
        assert outputs == Counter({request.request_id: request.num_output_tokens for request in self.accepted})


def test_invariants_on_random_workloads():
    """2 000 charges, et la preuve que tout ce qui peut mal tourner y est vraiment arrivé."""
    seen = Counter()

    @settings(max_examples=NUM_WORKLOADS, suppress_health_check=list(HealthCheck))
    @given(workloads())
    def check(workload: Workload) -> None:
        seen["workloads"] += 1
        Run(workload, seen).run()

    check()
    assert seen["workloads"] == NUM_WORKLOADS
    rare = {key: seen[key] for key in EVENTS if seen[key] < 40}
    assert not rare, f"ces charges n'exercent presque pas : {rare}"
