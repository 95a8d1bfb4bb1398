"""Le modèle à slots : comparé à d'autres simulateurs, au vrai scheduler et aux chiffres publiés."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibatcher.errors import ConfigError
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput
from minibatcher.simulation.memory import Contiguous, Paged, _Memory, _Sequence, memory_limited
from minibatcher.simulation.slots import batching_continu, batching_statique, continuous_timeline, static_timeline

random.seed(42)
LESSON_01 = [random.randint(20, 400) for _ in range(64)]
random.seed(42)
LESSON_04 = [random.randint(20, 400) for _ in range(1000)]

lengths_lists = st.lists(st.integers(1, 30), min_size=1, max_size=40)
slots = st.integers(1, 12)


# Sans mémoire.


def test_lesson_01_figures():
    steps, utilization = batching_statique(LESSON_01, 8)
    assert (steps, round(100 * utilization, 2)) == (2837, 57.46)
    steps, utilization = batching_continu(LESSON_01, 8)
    assert (steps, round(100 * utilization, 2)) == (1804, 90.37)


def test_small_example_by_hand():
    assert batching_statique([3, 10, 5, 2], 4) == (10, 0.5)
    assert batching_continu([3, 10, 5, 2, 4, 7, 6], 4) == (11, 37 / 44)
    assert batching_continu([7], 3) == (7, 1 / 3)


def step_by_step(lengths: list[int], num_slots: int, static: bool) -> tuple[int, list[list[int]]]:
    """Le même modèle, un pas à la fois ; rend aussi, pas par pas, les requêtes présentes."""
    waiting, running, present = list(enumerate(lengths)), [], []
    while waiting or running:
        if not (static and running):
            while waiting and len(running) < num_slots:
                running.append(list(waiting.pop(0)))
        present.append(sorted(index for index, _ in running))
        running = [[index, left - 1] for index, left in running if left > 1]
    return len(present), present


@given(lengths_lists, slots)
def test_totals_are_those_of_a_step_by_step_simulation(lengths, num_slots):
    for total, timeline, static in (
        (batching_statique, static_timeline, True),
        (batching_continu, continuous_timeline, False),
    ):
        num_steps, present = step_by_step(lengths, num_slots, static)
        run = timeline(lengths, num_slots)
        assert total(lengths, num_slots) == (num_steps, sum(lengths) / (num_slots * num_steps))
        assert (run.num_steps, run.utilization) == total(lengths, num_slots)
        assert run.occupancy.shape == (num_steps, num_slots)
        assert [sorted(row[row >= 0]) for row in run.occupancy] == present
        for index, length in enumerate(lengths):
            steps, columns = np.nonzero(run.occupancy == index)
            assert len(steps) == length
            assert len(set(columns)) == 1  # elle ne change pas de slot


@given(lengths_lists, slots)
def test_continuous_is_never_slower_than_static(lengths, num_slots):
    static, continuous = batching_statique(lengths, num_slots), batching_continu(lengths, num_slots)
    assert continuous[0] <= static[0]
    assert 0 < static[1] <= continuous[1] <= 1


def test_cost_does_not_depend_on_the_number_of_steps():
    assert batching_statique([10**12, 1], 2) == (10**12, (10**12 + 1) / (2 * 10**12))
    assert batching_continu([10**12, 1], 10**9)[0] == 10**12


def test_numpy_lengths_are_accepted():
    assert batching_continu(np.array(LESSON_01), np.int64(8)) == batching_continu(LESSON_01, 8)
    assert static_timeline(np.array([3, 1]), 2).num_steps == 3


@pytest.mark.parametrize("function", [batching_statique, batching_continu, static_timeline, continuous_timeline])
@pytest.mark.parametrize(
    ("lengths", "num_slots", "said"),
    [
        ([], 8, "vide"),
        ([5, 0], 8, r"\[1\] vaut 0"),
        ([5, 3, -2], 8, r"\[2\] vaut -2"),
        ([5.0], 8, r"\[0\] doit être un entier, et non 5\.0"),
        ([True], 8, r"\[0\] doit être un entier"),
        ("ab", 8, r"\[0\] doit être un entier, et non 'a'"),
        (np.array([1.5]), 8, r"\[0\] doit être un entier, et non 1\.5"),
        (None, 8, "liste d'entiers, et non None"),
        (5, 8, "liste d'entiers, et non 5"),
        ([5], 0, "vaut 0"),
        ([5], -1, "vaut -1"),
        ([5], 2.0, r"entier, et non 2\.0"),
        ([5], None, "entier, et non None"),
    ],
)
def test_bad_lengths_are_refused(function, lengths, num_slots, said):
    with pytest.raises(ConfigError, match=said):
        function(lengths, num_slots)


# Avec mémoire.

allocations = st.one_of(
    st.builds(Paged, st.integers(1, 8)),
    st.sampled_from([Contiguous("max", 64), Contiguous("pow2"), Contiguous("oracle")]),
)
requests = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), min_size=1, max_size=25)


@settings(max_examples=300)
@given(requests, slots, st.integers(64, 200), allocations, st.booleans())
def test_memory_invariants(requests, num_slots, capacity, allocation, restart):
    prompts, lengths = map(list, zip(*requests, strict=True))
    run = memory_limited(lengths, num_slots, capacity, prompt_lengths=prompts, allocation=allocation, restart=restart)

    assert (run.used_tokens <= capacity).all()
    assert (run.useful_tokens <= run.used_tokens).all()
    assert (run.future_tokens >= 0).all()
    assert (run.useful_tokens + run.future_tokens <= run.used_tokens).all()
    assert sum(run.memory_shares().values()) == pytest.approx(1)

    assert run.occupancy.shape == (run.num_steps, num_slots)
    rows = [row[row >= 0] for row in run.occupancy]
    assert all(len(row) == len(set(row)) for row in rows)
    assert [len(row) for row in rows] == run.num_running.tolist()
    assert (run.num_running > 0).all()

    # Aucun token perdu : chacune finit, et tout ce qui a été produit a été demandé, ou jeté puis produit de nouveau.
    produced = np.bincount(np.concatenate(rows), minlength=len(lengths))
    assert run.num_tokens == sum(lengths) == round(run.utilization * num_slots * run.num_steps)
    assert run.tokens_per_step == pytest.approx(sum(lengths) / run.num_steps)
    if restart:
        assert (produced >= lengths).all()
        assert produced.sum() == sum(lengths) + run.dropped_tokens - run.recomputed_tokens.sum()
    else:
        assert produced.tolist() == lengths
        assert run.recomputed_tokens.sum() == run.dropped_tokens
    if run.num_preemptions == 0:
        assert (run.dropped_tokens, run.recomputed_tokens.sum()) == (0, 0)
    if isinstance(allocation, Contiguous):
        assert run.num_preemptions == 0


@given(lengths_lists, slots)
def test_a_large_enough_cache_changes_nothing(lengths, num_slots):
    limited, free = memory_limited(lengths, num_slots, 12 * 30), continuous_timeline(lengths, num_slots)
    assert (limited.num_steps, limited.utilization) == (free.num_steps, free.utilization)
    assert (limited.occupancy == free.occupancy).all()
    assert limited.num_preemptions == 0
    assert not limited.blocked.any()


@settings(max_examples=150)
@given(requests, slots, st.integers(1, 8), st.integers(51, 120))
def test_same_decisions_as_the_real_scheduler(requests, num_slots, block_size, capacity):
    prompts, lengths = map(list, zip(*requests, strict=True))
    num_blocks = -(-capacity // block_size)
    run = memory_limited(
        lengths, num_slots, num_blocks * block_size, prompt_lengths=prompts, allocation=Paged(block_size), restart=False
    )
    # Le moteur ne garde pas la place du token qu'il produit : un token de prompt de plus la remplace exactement.
    manager = KVCacheManager(num_blocks, block_size, enable_prefix_caching=False)
    scheduler = Scheduler(SchedulerConfig(num_slots, max_num_batched_tokens=10_000, max_model_len=1_000), manager)
    for index, (prompt, length) in enumerate(requests):
        scheduler.add_request(Request(str(index), [1] * (prompt + 1), SamplingParams(temperature=0, max_tokens=length)))
    seen, step = set(), 0
    num_preemptions = 0
    while scheduler.has_unfinished_requests:
        plan = scheduler.schedule()
        present = {int(request.request_id) for request in plan.requests}
        recomputed = sum(
            num_tokens - 1
            for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True)
            if request.request_id in plan.admitted and request.request_id in seen
        )
        row = run.occupancy[step]
        assert present == set(row[row >= 0])
        assert recomputed == run.recomputed_tokens[step]
        assert (num_blocks - plan.num_free_blocks) * block_size == run.used_tokens[step]
        seen |= plan.admitted.keys()
        num_preemptions += len(plan.preempted)
        scheduler.update(plan, StepOutput([1] * len(plan.requests)))
        step += 1
    assert (step, num_preemptions) == (run.num_steps, run.num_preemptions)


def test_preemption_by_hand():
    # Six places. Au troisième pas, A et B en voudraient trois chacune, et c'est juste ; au quatrième, B rend les siennes.
    kept = memory_limited([4, 4], 2, 6)
    assert kept.occupancy.tolist() == [[0, 1], [0, 1], [0, 1], [0, -1], [1, -1]]
    assert (kept.num_preemptions, kept.dropped_tokens, kept.recomputed_tokens.tolist()) == (1, 3, [0, 0, 0, 0, 3])
    assert (kept.used_tokens.tolist(), kept.blocked.tolist()) == ([2, 4, 6, 4, 4], [False, False, False, True, False])
    lost = memory_limited([4, 4], 2, 6, restart=True)
    assert lost.occupancy[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (lost.num_preemptions, lost.dropped_tokens, lost.recomputed_tokens.sum()) == (1, 3, 0)


def test_restart_recomputes_the_prompt():
    run = memory_limited([4, 4], 2, 12, prompt_lengths=[3, 3], restart=True)
    assert (run.num_preemptions, run.dropped_tokens, run.recomputed_tokens.sum()) == (1, 6, 3)


def test_the_first_that_does_not_fit_blocks_the_others():
    run = memory_limited([2, 2, 1], 3, 8, prompt_lengths=[4, 4, 0])
    assert run.occupancy[:, 0].tolist() == [0, 0, 1, 1]
    assert run.occupancy[2].tolist() == [1, 2, -1]
    assert run.blocked.tolist() == [True, True, False, False]


@given(st.lists(st.tuples(st.integers(160, 300), st.integers(1, 60)), min_size=1, max_size=12), st.integers(400, 900))
def test_paged_wastes_less_than_one_block_per_sequence(requests, capacity):
    prompts, lengths = map(list, zip(*requests, strict=True))
    run = memory_limited(lengths, 8, capacity, prompt_lengths=prompts, allocation=Paged(16))
    assert (run.used_tokens - run.useful_tokens < 16 * run.num_running).all()
    assert (run.useful_tokens >= 0.9 * run.used_tokens).all()


@given(st.integers(1, 100), st.lists(st.one_of(st.integers(1, 40), st.just(0)), max_size=40))
def test_buddy_addresses(capacity, actions):
    memory, held = _Memory(capacity, Contiguous("oracle")), []
    for number, size in enumerate(actions):
        if size == 0 and held:
            memory.release(held.pop(number % len(held)))
            continue
        sequence = _Sequence(number, 0, size or 1)
        power = 1 << (sequence.output - 1).bit_length()
        taken = {address for other in held for address in range(*other.segment)}
        fits = any(taken.isdisjoint(range(start, start + power)) for start in range(0, capacity - power + 1, power))
        assert memory.reserve(sequence, 1) == fits
        if fits:
            start, end = sequence.segment
            assert (end - start, start % power) == (power, 0)
            assert end <= capacity
            assert taken.isdisjoint(range(start, end))
            held.append(sequence)
        assert memory.used == sum(other.output for other in held)


# Les chiffres annoncés.


def test_lesson_01_load_never_fills_the_cache():
    run = memory_limited(LESSON_01, 64, 20_000)
    assert sum(LESSON_01) == 13_042
    assert run.num_preemptions == 0


def test_lesson_04_naive_version():
    runs = {num_slots: memory_limited(LESSON_04, num_slots, 20_000, restart=True) for num_slots in (100, 150, 200, 512)}
    assert runs[100].useful_tokens.sum() / runs[100].num_running.sum() == pytest.approx(134.5, abs=0.1)
    assert runs[100].num_preemptions == 0
    assert (runs[512].num_preemptions, runs[512].dropped_tokens, runs[512].num_steps) == (40_001, 140_193, 1714)
    # Le coude, puis le plateau : de 100 à 150 slots le débit monte encore d'un quart, de 150 à 512 presque plus.
    throughputs = {num_slots: run.tokens_per_step for num_slots, run in runs.items()}
    assert throughputs[150] > 1.25 * throughputs[100]
    assert all(118 < throughputs[num_slots] < 124 for num_slots in (150, 200, 512))


def test_lesson_04_recompute_version():
    run = memory_limited(LESSON_04, 512, 20_000)
    assert (run.num_preemptions, run.dropped_tokens, run.num_steps) == (4_060, 96_977, 1613)


def test_throughput_turns_down_once_recomputation_is_charged():
    # Llama 3 8B en float16 sur A100 : 16,06 Go et 128 Kio par token à 2 039 Go/s ; 15 GFLOP par token à 150 TFLOP/s.
    costs = {"step": 16.06 / 2039, "kv_token": 131_072 / 2039e9, "recomputed_token": 15e9 / 150e12}
    runs = {num_slots: memory_limited(LESSON_04, num_slots, 20_000) for num_slots in (64, 100, 130, 150, 200, 512)}
    throughput = {num_slots: run.num_tokens / run.duration(**costs) for num_slots, run in runs.items()}
    assert throughput[64] < throughput[100] < throughput[130] > throughput[150] > throughput[200] > throughput[512]
    assert throughput[512] == pytest.approx(0.7 * throughput[130], rel=0.02)
    free = {num_slots: run.num_tokens / run.duration(costs["step"]) for num_slots, run in runs.items()}
    assert free[64] < free[100] < free[130] < free[150] < free[200] < free[512]


def test_duration_counts_each_cost():
    run = memory_limited([4, 4], 2, 6)
    assert run.duration(1.0) == run.num_steps == 5
    assert run.duration(0, sequence=1.0) == 8
    assert run.duration(0, kv_token=1.0) == 2 + 4 + 6 + 4 + 4
    assert run.duration(0, recomputed_token=1.0) == 3
    assert run.duration(1.0, 1.0, 1.0, 1.0) == 5 + 8 + 20 + 3


@pytest.fixture(scope="module")
def paper_runs():
    """La charge et le cache de l'article vLLM : moyennes de ShareGPT (figure 11), 15 700 places (OPT-13B, table 1)."""
    rng = np.random.default_rng(0)
    prompts, outputs = (1 + rng.exponential(mean, 3000).astype(int) for mean in (161, 338))
    kept = np.flatnonzero(prompts + outputs <= 2048)[:1000]
    kinds = {"max": Contiguous("max", 2048), "pow2": Contiguous("pow2"), "oracle": Contiguous("oracle"), "paged": Paged(16)}
    return {
        name: memory_limited(outputs[kept], 256, 15_700, prompt_lengths=prompts[kept], allocation=allocation)
        for name, allocation in kinds.items()
    }


def test_memory_shares_of_the_vllm_paper(paper_runs):
    # Figure 2 : 20,4 %, 26,8 %, 38,2 % et 96,3 % du cache contiennent des tokens.
    useful = {name: run.memory_shares()["useful"] for name, run in paper_runs.items()}
    assert useful["max"] == pytest.approx(0.204, abs=0.02)
    assert useful["pow2"] == pytest.approx(0.268, abs=0.06)
    assert useful["oracle"] == pytest.approx(0.382, abs=0.03)
    assert useful["paged"] == pytest.approx(0.963, abs=0.02)
    shares = paper_runs["max"].memory_shares()
    assert shares["future"] == pytest.approx(0.133, abs=0.02)
    assert shares["internal"] == pytest.approx(0.573, abs=0.02)
    assert shares["free"] == pytest.approx(0.089, abs=0.01)
    assert paper_runs["oracle"].memory_shares()["internal"] == 0
    assert 0.2 < paper_runs["max"].useful_share < 0.4
    assert paper_runs["paged"].useful_share > 0.9


def test_paged_runs_two_to_four_times_more_sequences(paper_runs):
    running = {name: run.num_running[run.blocked].mean() for name, run in paper_runs.items()}
    assert running["max"] == 7
    assert 2 < running["paged"] / running["oracle"] < 4
    assert running["paged"] / running["max"] > 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lengths": []}, "lengths est vide"),
        ({"lengths": [3, 0]}, r"lengths\[1\] vaut 0"),
        ({"lengths": [3, "4"]}, r"lengths\[1\] doit être un entier"),
        ({"num_slots": 0}, "num_slots vaut 0"),
        ({"capacity": 0}, "capacity vaut 0"),
        ({"capacity": 1e3}, "capacity doit être un entier"),
        ({"lengths": [3, 101]}, "La requête 1 .101 tokens.* n'en a que 100"),
        ({"prompt_lengths": [0, 98]}, "La requête 1 .101 tokens.* n'en a que 100"),
        ({"prompt_lengths": [0, -1]}, r"prompt_lengths\[1\] vaut -1"),
        ({"prompt_lengths": [1]}, "lengths a 2 éléments et prompt_lengths 1"),
        ({"allocation": "paged"}, "allocation doit être"),
        ({"allocation": Paged}, "allocation doit être"),
        ({"allocation": Contiguous("max", 65)}, "La requête 0 .3 tokens.* occupe 128 places"),
        ({"allocation": Contiguous("max", 2)}, "La requête 0 .3 tokens.* dépasse max_model_len = 2"),
        ({"allocation": Contiguous("pow2"), "lengths": [65]}, "La requête 0 .65 tokens.* occupe 128 places"),
        ({"restart": "oui"}, "restart doit valoir True ou False"),
    ],
)
def test_bad_memory_settings_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        memory_limited(**{"lengths": [3, 3], "num_slots": 2, "capacity": 100, **arguments})


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Paged(0), "block_size vaut 0"),
        (lambda: Paged("16"), "block_size doit être un entier"),
        (lambda: Contiguous("best"), "politiques connues : max, pow2, oracle"),
        (lambda: Contiguous("max"), "max_model_len doit être un entier, et non None"),
        (lambda: Contiguous("max", 0), "max_model_len vaut 0"),
    ],
)
def test_bad_allocations_are_refused(build, said):
    with pytest.raises(ConfigError, match=said):
        build()
