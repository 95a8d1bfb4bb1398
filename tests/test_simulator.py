"""Le simulateur : mêmes résultats pas à pas ou par sauts, mêmes octets pour la même graine, et ce que la théorie annonce."""

import itertools
import json
import math
import signal
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibatcher.engine import AbandonedStepEvent, ArrivalEvent, StepEvent
from minibatcher.errors import ConfigError, InvalidRequestError
from minibatcher.journal import Journal, JournalError, build_scheduler, write_chrome_trace
from minibatcher.metrics import engine_usage
from minibatcher.policies import POLICIES
from minibatcher.request import FinishReason
from minibatcher.scheduler import Scheduler
from minibatcher.simulation.cost import CostModel, StepLoad
from minibatcher.simulation.disaggregated import simulate_disaggregated
from minibatcher.simulation.scenario import Scenario, grid, sweep
from minibatcher.simulation.sheets import (
    kv_bytes_per_token,
)
from minibatcher.simulation.simulator import SimulationError, simulate
from minibatcher.simulation.workload import WorkloadRequest, poisson_arrivals, synthetic_workload, uniform_lengths

COST = CostModel(overhead=1e-3, weights=8e-3, per_token=1e-4, per_seq=1e-5, per_context_token=1e-7, per_pair=1e-9)


def make_scheduler(num_blocks: int = 200, **settings) -> Scheduler:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 128, **settings}
    return build_scheduler(num_blocks=num_blocks, **settings)


def small_workload(num_requests: int = 40, rate: float = 20.0, seed: int = 0, **options) -> list[WorkloadRequest]:
    return synthetic_workload(
        num_requests,
        uniform_lengths(num_requests, 1, 40, seed),
        uniform_lengths(num_requests, 1, 60, seed + 1),
        poisson_arrivals(num_requests, rate, seed) if math.isfinite(rate) else 0.0,
        seed=seed,
        **options,
    )


def steps(events) -> list[StepEvent]:
    return [event for event in events if isinstance(event, StepEvent)]


@st.composite
def simulations(draw) -> dict:
    block_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    count = draw(st.integers(1, 25))
    lengths = st.lists(st.integers(1, 40), min_size=count, max_size=count)
    prompts, outputs = draw(lengths), draw(lengths)
    arrivals = sorted(draw(st.lists(st.floats(0, 2), min_size=count, max_size=count))) if draw(st.booleans()) else 0.0
    prefix = draw(st.sampled_from([0, 0, 7, 16]))
    workload = synthetic_workload(count, prompts, outputs, arrivals, prefix, draw(st.integers(1, 3)) if prefix else 1)
    policy = draw(st.sampled_from(sorted(POLICIES)))
    return {
        "workload": workload,
        "max_concurrency": draw(st.none() | st.integers(1, 8)),
        "settings": {
            "scheduler_cls": policy,
            "num_blocks": -(-96 // block_size) + draw(st.integers(0, 40)),
            "block_size": block_size,
            "enable_prefix_caching": draw(st.booleans()),
            "max_num_seqs": draw(st.integers(1, 12)),
            "max_num_batched_tokens": draw(st.integers(1, 200)) if policy in ("chunked_prefill", "static") else 96,
            "max_model_len": 96,
        },
    }


def test_jumping_gives_what_stepping_gives():
    """Même journal, même horloge, mêmes blocs dans le même état, et les sauts servent vraiment."""
    seen = Counter()

    @settings(max_examples=400)
    @given(simulations())
    def check(case: dict) -> None:
        results, pools = [], []
        for fast_forward in (False, True):
            scheduler = build_scheduler(**case["settings"])
            results.append(
                simulate(case["workload"], COST, scheduler, max_concurrency=case["max_concurrency"], fast_forward=fast_forward)
            )
            manager = scheduler.kv_cache_manager
            manager.check_integrity([])
            pools.append((list(manager.block_pool.free_queue), manager.block_pool.block_hashes))
        slow, fast = results
        assert fast.events == slow.events
        assert [list(e.scheduled) for e in steps(fast.events)] == [list(e.scheduled) for e in steps(slow.events)]
        assert pools[0] == pools[1], "les blocs ne sont pas rendus dans le même ordre"
        assert fast.to_dict() == slow.to_dict()
        seen["preempted"] += slow.summary().num_preemptions > 0
        seen["cached"] += any(metrics.num_cached_tokens for metrics in slow.requests.values())
        shared = [
            before.scheduled is after.scheduled for before, after in zip(steps(fast.events), steps(fast.events)[1:], strict=False)
        ]
        seen["jumped"] += any(shared)
        requests = {r.request_id: r for r in case["workload"]}
        for request_id, metrics in slow.requests.items():
            assert metrics.num_output_tokens == requests[request_id].num_output_tokens
            assert metrics.finish_reason is FinishReason.STOP
        assert slow.requests.keys() == requests.keys()

    check()
    assert min(seen[name] for name in ("preempted", "cached", "jumped")) >= 40, seen


def test_the_scheduler_never_learns_the_lengths():
    """Deux charges qui ne diffèrent que par la fin des réponses : mêmes décisions jusqu'à la première fin."""
    short = [WorkloadRequest(f"r{i}", 0.0, 10 + i, 5) for i in range(6)]
    long = [replace(request, num_output_tokens=90) for request in short]
    first, second = (simulate(w, COST, make_scheduler(40, max_num_seqs=4)) for w in (short, long))
    for before, after in zip(steps(first.events)[:4], steps(second.events)[:4], strict=True):
        assert before == after
    assert len(steps(first.events)) < len(steps(second.events))


def test_same_seed_same_bytes(tmp_path):
    for name in ("a", "b"):
        workload = small_workload(num_prefix_tokens=20, num_prefixes=2)
        simulate(workload, COST, make_scheduler()).save(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["bilan.json", "journal.jsonl", "trace.json"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_one_request_alone_costs_what_the_model_says():
    result = simulate([WorkloadRequest("a", 0.5, 10, 3)], COST, make_scheduler())
    prefill = COST.duration(StepLoad(10, 1, 10, 55))
    decodes = [COST.duration(StepLoad(1, 1, context, 0)) for context in (11, 12)]
    assert prefill == pytest.approx(1e-3 + 8e-3 + 1e-5 + 10e-7 + 55e-9)
    metrics = result.requests["a"]
    assert metrics.ttft == pytest.approx(prefill)
    assert metrics.itl == pytest.approx(decodes)
    assert metrics.e2e == pytest.approx(prefill + sum(decodes))
    assert metrics.arrival == 0.5


def test_waiting_counts_from_the_arrival_even_during_a_step():
    workload = [WorkloadRequest("a", 0.0, 100, 2), WorkloadRequest("b", 0.001, 5, 1)]
    result = simulate(workload, COST, make_scheduler())
    first = steps(result.events)[0]
    assert first.end > 0.001
    assert result.requests["b"].arrival == 0.001
    assert result.requests["b"].queue_time == pytest.approx(first.end - 0.001)


def test_closed_loop_never_has_more_clients():
    workload = small_workload(60)
    result = simulate(workload, COST, make_scheduler(max_num_seqs=16), max_concurrency=5)
    alive, most = set(), 0
    for event in result.events:
        if isinstance(event, ArrivalEvent):
            alive.add(event.request_id)
        else:
            alive -= event.finished.keys()
        most = max(most, len(alive))
    assert most == 5
    assert len(result.requests) == 60
    arrivals = [event.request_id for event in result.events if isinstance(event, ArrivalEvent)]
    assert arrivals == [request.request_id for request in workload]


def test_arrival_at_the_very_end_of_a_step_joins_the_next():
    """Les sauts s'arrêtent à temps : celle qui arrive quand un pas finit est admise au suivant."""
    first = WorkloadRequest("a", 0.0, 5, 50)
    ends = [event.end for event in steps(simulate([first], COST, make_scheduler()).events)]
    result = simulate([first, WorkloadRequest("b", ends[9], 5, 5)], COST, make_scheduler())
    assert [list(event.admitted) for event in steps(result.events)].index(["b"]) == 10
    assert result.requests["b"].queue_time == 0


def test_idle_engine_jumps_to_the_next_arrival():
    workload = [WorkloadRequest("a", 0.0, 4, 1), WorkloadRequest("b", 100.0, 4, 1)]
    result = simulate(workload, COST, make_scheduler())
    assert [event.start for event in steps(result.events)] == [0.0, 100.0]


def test_usage_and_recomputed_tokens():
    """Deux requêtes, un cache pour une et demie : la seconde est renvoyée, et l'on sait ce qu'elle a refait."""
    workload = [WorkloadRequest("a", 0.0, 8, 20), WorkloadRequest("b", 0.0, 8, 20)]
    result = simulate(
        workload, COST, make_scheduler(10, block_size=4, enable_prefix_caching=False, max_num_seqs=2, max_model_len=40)
    )
    preempted = [event for event in steps(result.events) if event.preempted]
    assert [event.preempted for event in preempted] == [["b"]]
    # b avait calculé son prompt et ses 12 premiers tokens : 10 blocs de 4, moitié chacun, et a veut le onzième.
    assert result.usage.recomputed_tokens == 20
    total = sum(sum(event.scheduled.values()) for event in steps(result.events))
    assert result.usage.num_computed_tokens == total == 2 * (8 + 19) + 20
    assert result.summary().num_preemptions == 1
    durations = np.array([event.duration for event in steps(result.events)])
    busy = np.array([len(event.scheduled) for event in steps(result.events)])
    assert result.usage.slots == pytest.approx((durations * busy).sum() / durations.sum() / 2)
    assert 0 < result.usage.blocks <= 1
    assert 0 < result.usage.budget <= 1


def test_long_prompt_freezes_decodes_unless_chunked():
    """Un prompt de 8 000 tokens au milieu de seize réponses : prefill d'abord les fige, des morceaux de 512 non."""
    chatting = [WorkloadRequest(f"r{i}", 0.0, 32, 200) for i in range(16)]
    workload = [*chatting, WorkloadRequest("long", 0.5, 8000, 10)]
    worst, ttft = {}, {}
    for policy, budget in (("prefill_first", 8192), ("chunked_prefill", 512)):
        scenario = Scenario(model="Llama 3 8B", hardware="A100-80", scheduler_cls=policy, max_num_batched_tokens=budget)
        result = scenario.run(workload)
        worst[policy] = max(max(result.requests[r.request_id].itl) for r in chatting)
        ttft[policy] = result.requests["long"].ttft
    cost = Scenario(model="Llama 3 8B", hardware="A100-80").build_cost_model()
    prefill = cost.duration(StepLoad(8000, 1, 8000, 8000 * 8001 // 2))
    assert worst["prefill_first"] == pytest.approx(prefill + cost.duration(StepLoad(16, 16, 16 * 100, 0)), rel=0.1)
    assert worst["prefill_first"] > 10 * worst["chunked_prefill"]
    assert worst["chunked_prefill"] < 0.1
    assert ttft["chunked_prefill"] < 1.5 * ttft["prefill_first"], "le prix payé par le long prompt reste modéré"


def test_paged_useful_memory_in_the_real_engine():
    """Plus de 90 % du cache pris contient des tokens, avec des blocs de 16 et des longueurs de conversation."""
    workload = synthetic_workload(200, uniform_lengths(200, 80, 240, 0), uniform_lengths(200, 170, 500, 1))
    result = simulate(workload, COST, make_scheduler(2000, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=1024))
    position, used, useful = {}, 0.0, 0.0
    for event in steps(result.events):
        position |= event.admitted
        for request_id, count in event.scheduled.items():
            position[request_id] += count
        used += (2000 - event.num_free_blocks) * 16 * event.duration
        useful += sum(position[rid] for rid in event.scheduled) * event.duration
        for request_id in event.finished:
            del position[request_id]
    assert 0.9 < useful / used <= 1


def test_only_the_same_prefix_is_shared():
    workload = [WorkloadRequest(f"{i}", float(i), 40, 1, prefix_id=prefix, num_prefix_tokens=32) for i, prefix in enumerate("aabb")]
    result = simulate(workload, COST, make_scheduler())
    assert [metrics.num_cached_tokens for metrics in result.requests.values()] == [0, 32, 0, 32]


def test_abandoned_steps_count_as_recomputed_and_reused_names_start_afresh():
    def step(number, scheduled, admitted=(), finished=()):
        return StepEvent(
            step=number,
            start=float(number),
            end=number + 1.0,
            scheduled=scheduled,
            sampled={},
            admitted=dict.fromkeys(admitted, 0),
            preempted=[],
            finished=dict.fromkeys(finished, FinishReason.LENGTH),
            num_free_blocks=10,
            num_running=1,
            num_waiting=0,
        )

    events = [ArrivalEvent(0.0, "a", 10), step(0, {"a": 6}, "a"), AbandonedStepEvent(1.0, 2.0, ["a"]), step(2, {"a": 10}, "a", "a")]
    assert engine_usage(events, 4, 16, 20).recomputed_tokens == 6
    again = [*events, ArrivalEvent(3.0, "a", 10), step(3, {"a": 10}, "a", "a")]
    assert engine_usage(again, 4, 16, 20).recomputed_tokens == 6
    assert engine_usage(events, 4, 16, 20).blocks == 0.5


# Refus.


def test_ctrl_c_stops_the_simulation_between_two_steps():
    """Ctrl-C arrive n'importe quand ; il est levé une fois le scheduler dans un état cohérent."""
    scheduler = make_scheduler()
    finished = []

    def interrupt(count: int) -> None:
        finished.append(count)
        if len(finished) == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        simulate(small_workload(500, math.inf), COST, scheduler, progress=interrupt)
    assert sum(finished) < 500
    scheduler.kv_cache_manager.check_integrity(scheduler.running)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_bad_workloads():
    with pytest.raises(ConfigError, match="vide"):
        simulate([], COST, make_scheduler())
    with pytest.raises(ConfigError, match="identifiant"):
        simulate([WorkloadRequest("a", 0.0, 1, 1)] * 2, COST, make_scheduler())
    big = [WorkloadRequest("a", 0.0, 4, 4), WorkloadRequest("grande", 0.0, 100, 20), WorkloadRequest("c", 0.0, 4, 4)]
    with pytest.raises(InvalidRequestError, match=r"1 requête.*'grande'.*cache"):
        simulate(big, COST, make_scheduler(7))
    with pytest.raises(InvalidRequestError, match=r"'grande'.*max_model_len"):
        simulate(big, COST, make_scheduler(7, max_model_len=64, max_num_batched_tokens=64))
    result = simulate(big, COST, make_scheduler(7), allow_refused=True)
    assert list(result.refused) == ["grande"]
    assert result.requests.keys() == {"a", "c"}
    for value in (0, -1, 2.5):
        with pytest.raises(ConfigError, match="max_concurrency"):
            simulate(big[:1], COST, make_scheduler(), max_concurrency=value)
    scheduler = make_scheduler()
    simulate(big[:1], COST, scheduler)
    busy = make_scheduler()
    busy.requests["x"] = None
    with pytest.raises(ConfigError, match="neuf"):
        simulate(big[:1], COST, busy)


def test_a_scheduler_that_forgets_requests_is_named():
    class Lazy(Scheduler):
        def _fill(self, plan):
            pass

    with pytest.raises(SimulationError, match="Lazy"):
        simulate(small_workload(3), COST, make_scheduler(scheduler_cls=Lazy))


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "1", None, True])
def test_bad_cost_models(value):
    with pytest.raises(ConfigError, match="per_seq"):
        replace(COST, per_seq=value)


def test_bad_scenarios(tmp_path):
    workload = small_workload(3)
    for options, expected in [
        ({"model": "GPT-5"}, "Llama 3 8B"),
        ({"hardware": "TPU"}, "A100-80"),
        ({"hardware": "T4"}, "ne laisse rien au cache"),
        ({"dtype": "fp4"}, "fp4"),
        ({"hardware": "T4", "model": "SmolLM2-135M", "dtype": "bfloat16"}, "bfloat16"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"block_size": 0}, "block_size"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"scheduler_cls": "lifo"}, "prefill_first"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            Scenario(**options).run(workload)
    for target in (0, -1, math.nan, "vite"):
        with pytest.raises(ConfigError, match="ttft_target"):
            Scenario(ttft_target=target)
    with pytest.raises(ConfigError, match="max_num_sequences"):
        Scenario(max_num_sequences=3)
    for content in ("", "{}", "[1]", '{"overhead": 1'):
        path = tmp_path / "cout.json"
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"cout\.json"):
            CostModel.load(path)
    COST.save(path)
    assert CostModel.load(path) == COST


# Balayages.


def test_sweep_gives_the_same_table_for_any_number_of_workers():
    parameters = {"max_num_seqs": [2, 8], "scheduler_cls": ["static", "chunked_prefill"], "num_blocks": [3, 400]}
    scenario = Scenario(model="SmolLM2-135M", hardware="T4", max_model_len=256, ttft_target=0.5)
    workload = small_workload()
    done = []
    tables = [sweep(scenario, workload, parameters, n_jobs, done.append) for n_jobs in (1, 2)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == len(grid(parameters)) == 8
    assert done == [1] * 16
    assert [row["max_num_seqs"] for row in tables[0]] == [2] * 4 + [8] * 4
    for row in tables[0]:
        if row["num_blocks"] == 3:
            assert "cache" in row["error"]
        else:
            assert row["error"] is None
            point = {name: row[name] for name in parameters}
            assert row["output_throughput"] == replace(scenario, **point).run(workload).summary().output_throughput
            assert row["goodput"] is not None
    with pytest.raises(ConfigError, match="max_num_seq'"):
        sweep(scenario, workload, {"max_num_seq": [1]}, 1)
    with pytest.raises(ConfigError, match="Rien à essayer"):
        sweep(scenario, workload, {"max_num_seqs": []}, 1)


# Prefill et decode désagrégés.


def test_disaggregated_protects_the_decodes():
    count = 300
    workload = synthetic_workload(
        count, uniform_lengths(count, 500, 3000, 0), uniform_lengths(count, 50, 200, 1), poisson_arrivals(count, 6.0, 2)
    )
    scenario = Scenario(max_num_seqs=64, max_num_batched_tokens=8192)
    together = scenario.run(workload).summary(tpot_target=0.02)
    apart = simulate_disaggregated(workload, scenario, scenario, link_bandwidth=50e9)
    summary = apart.summary(tpot_target=0.02)
    assert summary.num_finished == together.num_finished == count
    assert summary.num_output_tokens == together.num_output_tokens == sum(r.num_output_tokens for r in workload)
    assert summary.itl.p99 < together.itl.p99 / 2
    # Le deuxième token attend le transfert : son délai est au moins celui du lien.
    token_bytes = kv_bytes_per_token(scenario.model_sheet, "float16")
    for request in workload:
        metrics = apart.requests[request.request_id]
        assert metrics.itl[0] > request.num_prompt_tokens * token_bytes / 50e9
    slow = simulate_disaggregated(workload, scenario, scenario, link_bandwidth=1e9).summary()
    assert slow.tpot.p95 > summary.tpot.p95
    assert slow.ttft == summary.ttft


def test_disaggregated_charges_only_what_was_not_transferred():
    scenario = Scenario()
    cost = scenario.build_cost_model()
    result = simulate_disaggregated([WorkloadRequest("a", 0.0, 1000, 4)], scenario, scenario, link_bandwidth=1e12, link_latency=0.5)
    transfer = 0.5 + 1000 * 131072 / 1e12
    contexts = (1001, 1002, 1003)
    itl = [cost.duration(StepLoad(1, 1, context, 0)) for context in contexts]
    itl[0] += transfer
    assert result.requests["a"].itl == pytest.approx(itl)
    alone = simulate_disaggregated([WorkloadRequest("a", 0.0, 10, 1)], scenario, scenario, link_bandwidth=1e9)
    assert alone.decode == []
    assert alone.requests["a"].finish_reason is FinishReason.STOP


def test_disaggregated_preemption_loses_the_transferred_cache():
    """Un cache de decode trop petit pour deux : la préemptée recalcule son prompt, et paie ce prefill."""
    workload = [WorkloadRequest(name, 0.0, 3000, 100) for name in "ab"]
    roomy = Scenario(max_model_len=4096)
    tight = replace(roomy, num_blocks=385, enable_prefix_caching=False)
    result = simulate_disaggregated(workload, roomy, tight, link_bandwidth=1e12)
    assert result.summary().num_preemptions == 1
    assert result.decode[0].usage.recomputed_tokens > 3000
    prefill = roomy.build_cost_model().duration(StepLoad(3000, 1, 3000, 3000 * 3001 // 2))
    longest = max(event.duration for event in steps(result.decode[0].events))
    assert longest > prefill
    free = simulate_disaggregated(workload, roomy, roomy, link_bandwidth=1e12)
    assert max(event.duration for event in steps(free.decode[0].events)) < prefill / 5


def test_disaggregated_pools():
    workload = small_workload(30)
    scenario = Scenario(model="SmolLM2-135M", hardware="T4")
    result = simulate_disaggregated(workload, scenario, scenario, 1e9, num_prefill=2, num_decode=3)
    assert [len(r.requests) for r in result.prefill] == [15, 15]
    assert len(result.decode) == 3
    assert {rid for r in result.decode for rid in r.requests} == {r.request_id for r in workload if r.num_output_tokens > 1}
    for options, expected in [
        ({"link_bandwidth": 0}, "link_bandwidth"),
        ({"link_bandwidth": math.nan}, "link_bandwidth"),
        ({"link_bandwidth": 1e9, "link_latency": -1}, "link_latency"),
        ({"link_bandwidth": 1e9, "num_prefill": 0}, "num_prefill"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            simulate_disaggregated(workload, scenario, scenario, **options)
    with pytest.raises(ConfigError, match="même modèle"):
        simulate_disaggregated(workload, scenario, replace(scenario, model="Qwen2.5 0.5B"), 1e9)


# Journaux.


def test_journal_round_trip(tmp_path):
    result = simulate(small_workload(num_prefix_tokens=20), COST, make_scheduler(30))
    journal = Journal(result.settings, result.events)
    journal.save(tmp_path / "j.jsonl")
    again = Journal.load(tmp_path / "j.jsonl")
    assert again == journal
    again.save(tmp_path / "k.jsonl")
    assert (tmp_path / "j.jsonl").read_bytes() == (tmp_path / "k.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("line", "content", "expected"),
    [
        (1, "", "ligne 1"),
        (1, '{"type":"step"}', "première ligne"),
        (2, '{"type":"arr', "ligne 2"),
        (2, "3", "ligne 2"),
        (3, '{"type":"bof"}', "'bof' inconnu"),
        (3, '{"type":"end","time":1.0}', "finish_reason"),
        (3, '{"type":"end","time":1.0,"request_id":"a","finish_reason":"fatigue"}', "fatigue"),
    ],
)
def test_bad_journals(tmp_path, line, content, expected):
    path = tmp_path / "j.jsonl"
    result = simulate(small_workload(3), COST, make_scheduler())
    Journal(result.settings, result.events).save(path)
    lines = path.read_text().splitlines()
    lines[line - 1] = content
    path.write_text("\n".join(lines))
    with pytest.raises(JournalError, match=expected):
        Journal.load(path)
    path.write_text("")
    with pytest.raises(JournalError, match="vide"):
        Journal.load(path)
    with pytest.raises(JournalError, match="absent"):
        Journal.load(tmp_path / "absent.jsonl")


def test_chrome_trace(tmp_path):
    """Chaque piste se lit seule : pas de chevauchement, et les tranches d'une requête couvrent sa vie."""
    result = simulate(small_workload(), COST, make_scheduler(9, enable_prefix_caching=False))
    assert result.summary().num_preemptions > 0
    write_chrome_trace(result.events, tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {entry["tid"]: entry["args"]["name"] for entry in entries if entry["name"] == "thread_name"}
    assert names[0] == "pas du moteur"
    assert len(names) == 1 + len(result.requests)
    origin = min(metrics.arrival for metrics in result.requests.values())
    for track, name in names.items():
        spans = sorted((e["ts"], e["dur"], e["name"]) for e in entries if e["ph"] == "X" and e["tid"] == track)
        for (start, duration, _), (following, _, _) in itertools.pairwise(spans):
            assert start + duration <= following + 0.01
        if track:
            metrics = result.requests[name.removeprefix("requête ")]
            assert spans[0][0] == pytest.approx(1e6 * (metrics.arrival - origin), abs=0.01)
            assert spans[-1][0] + spans[-1][1] == pytest.approx(1e6 * (metrics.end - origin), abs=0.01)
            assert [name for _, _, name in spans[:2]] == ["attente", "prefill"]
            assert ("decode" in [name for _, _, name in spans]) == (metrics.num_output_tokens > 1)
            assert sum(name == "préemptée, en attente" for _, _, name in spans) == metrics.num_preemptions
    assert sum(e["ph"] == "X" and e["tid"] == 0 for e in entries) == len(steps(result.events))
