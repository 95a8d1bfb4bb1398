"""Le modèle de coût : ses unités, ses fiches, et l'ajustement sur un journal dont on connaît la vérité."""

import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibatcher.engine import ArrivalEvent, StepEvent
from minibatcher.errors import ConfigError
from minibatcher.journal import build_scheduler
from minibatcher.simulation.cost import CostModel, StepLoad, calibrate, step_loads
from minibatcher.simulation.hardware import get_hardware
from minibatcher.simulation.sheets import get_model
from minibatcher.simulation.simulator import simulate
from minibatcher.simulation.workload import poisson_arrivals, synthetic_workload, uniform_lengths

TRUTH = CostModel(overhead=4e-3, weights=12e-3, per_token=2e-4, per_seq=1.5e-4, per_context_token=1.5e-6, per_pair=3e-7)


def load_of(*spans: tuple[int, int]) -> StepLoad:
    load = StepLoad()
    for span in spans:
        load.add(*span)
    return load


def journal(seed: int = 0, num_requests: int = 120):
    workload = synthetic_workload(
        num_requests,
        uniform_lengths(num_requests, 5, 600, seed),
        uniform_lengths(num_requests, 5, 150, seed + 1),
        poisson_arrivals(num_requests, 3.0, seed),
    )
    scheduler = build_scheduler(num_blocks=2000, max_num_seqs=32, max_num_batched_tokens=512, max_model_len=1024)
    return simulate(workload, TRUTH, scheduler).events


def test_load_counts_what_attention_reads():
    assert load_of((0, 1)) == StepLoad(1, 1, 1, 0)
    assert load_of((9, 1), (0, 3)) == StepLoad(4, 2, 13, 6)
    # Un morceau de 2 tokens après 5 : le premier en regarde 6, le second 7.
    assert load_of((5, 2)) == StepLoad(2, 1, 7, 13)


@given(st.integers(0, 60), st.integers(2, 60), st.integers(1, 59))
@settings(max_examples=60)
def test_a_prompt_cut_in_two_has_the_same_pairs(start, count, cut):
    cut = 1 + cut % (count - 1)
    pairs = sum(start + i + 1 for i in range(count))
    assert load_of((start, count)).pairs == pairs
    halves = [(start, cut), (start + cut, count - cut)]
    assert sum(load_of(half).pairs if half[1] > 1 else half[0] + 1 for half in halves) == pairs


def test_duration_is_the_sum_written_in_the_contract():
    assert TRUTH.duration(StepLoad()) == 0.0
    alone = TRUTH.duration(load_of((99, 1)))
    assert alone == pytest.approx(4e-3 + 12e-3 + 1.5e-4 + 100 * 1.5e-6)
    # Tant que la lecture des poids domine, une requête de plus ne coûte que son attention et ses logits.
    assert TRUTH.duration(load_of(*[(99, 1)] * 60)) - alone == pytest.approx(59 * (1.5e-4 + 1.5e-4))
    prefill = TRUTH.duration(load_of((0, 1000)))
    assert prefill == pytest.approx(4e-3 + 0.2 + 1.5e-4 + 1.5e-3 + 1000 * 1001 / 2 * 3e-7)


def test_sheets_give_the_known_orders_of_magnitude():
    """8 milliards de poids en float16, relus à 3,35 To/s : environ 5 ms par pas sur H100 (programme, leçon 01)."""
    cost = CostModel.from_sheets(get_model("Llama 3 8B"), get_hardware("H100"), bandwidth_efficiency=1.0, compute_efficiency=1.0)
    assert cost.weights == pytest.approx(4.8e-3, rel=0.02)
    assert cost.per_token / cost.weights < 0.05, "un seul utilisateur occupe moins de 5 % du calcul"
    assert cost.per_context_token == pytest.approx(131072 / 3.35e12)
    slower = CostModel.from_sheets(get_model("Llama 3 8B"), get_hardware("H100"))
    assert slower.weights == pytest.approx(cost.weights / 0.8)
    assert slower.per_token == pytest.approx(cost.per_token / 0.6)
    fp8 = CostModel.from_sheets(get_model("Llama 3 8B"), get_hardware("H100"), kv_cache_dtype="fp8")
    assert fp8.per_context_token == pytest.approx(slower.per_context_token / 2)
    assert fp8.weights == slower.weights
    for options in ({"bandwidth_efficiency": 0}, {"compute_efficiency": 1.5}, {"compute_efficiency": "1"}, {"overhead": -1}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            CostModel.from_sheets(get_model("Llama 3 8B"), get_hardware("H100"), **options)


def test_step_loads_are_those_the_simulator_charged():
    for load, duration in step_loads(journal()):
        assert TRUTH.duration(load) == pytest.approx(duration)


def test_calibration_finds_the_truth():
    calibration = calibrate(journal())
    for name, value in asdict(calibration.cost_model).items():
        if name not in ("overhead", "weights"):
            assert value == pytest.approx(asdict(TRUTH)[name], rel=0.02), name
    # Frais fixes et lecture des poids ne se distinguent que par l'endroit du coude : leur somme, elle, est sûre.
    found = calibration.cost_model
    assert found.overhead + found.weights == pytest.approx(TRUTH.overhead + TRUTH.weights, rel=0.02)
    assert calibration.p95_error < 0.01
    assert calibration.num_fitted == pytest.approx(3 * calibration.num_unseen, abs=3)


def test_calibration_survives_noise_and_tells_it():
    """10 % de bruit et quelques pas dix fois trop longs : l'erreur annoncée est celle du bruit, les prédictions restent justes."""
    rng = random.Random(0)
    events = []
    for event in journal(1):
        if isinstance(event, StepEvent):
            factor = 10 if rng.random() < 0.01 else rng.gauss(1, 0.1)
            event = replace(event, end=event.start + event.duration * factor)
        events.append(event)
    calibration = calibrate(events)
    assert 0.04 < calibration.median_error < 0.12
    for load in (load_of(*[(200, 1)] * 16), load_of((0, 500)), load_of((400, 100), *[(50, 1)] * 8)):
        assert calibration.cost_model.duration(load) == pytest.approx(TRUTH.duration(load), rel=0.1)


def test_a_cost_that_does_not_exist_is_found_to_be_zero():
    """Sans frais par requête, et avec du bruit, les moindres carrés en trouveraient de négatifs : ils sont retirés, eux seuls."""
    rng = random.Random(3)
    truth = replace(TRUTH, per_seq=0.0, overhead=0.0)
    events = [
        replace(event, end=event.start + truth.duration(load) * rng.gauss(1, 0.03)) if isinstance(event, StepEvent) else event
        for event, load in _with_loads(journal(5))
    ]
    found = calibrate(events).cost_model
    assert found.per_seq < 2e-5
    assert found.per_context_token == pytest.approx(TRUTH.per_context_token, rel=0.1)
    assert found.per_pair == pytest.approx(TRUTH.per_pair, rel=0.1)
    assert found.per_token == pytest.approx(TRUTH.per_token, rel=0.1)


def _with_loads(events):
    loads = iter(load for load, _ in step_loads(events))
    return [(event, next(loads) if isinstance(event, StepEvent) else None) for event in events]


def test_unseen_steps_are_really_unseen():
    """Abîmer les seuls pas mis de côté ne change pas l'ajustement ; seule l'erreur annoncée monte."""
    events = journal(2)
    spoiled, number = [], 0
    for event in events:
        if isinstance(event, StepEvent):
            number += 1
            if number % 4 == 0:
                event = replace(event, end=event.start + 2 * event.duration)
        spoiled.append(event)
    before, after = calibrate(events), calibrate(spoiled)
    assert after.cost_model == before.cost_model
    assert after.median_error == pytest.approx(0.5, abs=0.02)
    assert after.total_error == pytest.approx(-0.5, abs=0.02)
    assert before.median_error < 0.01


def test_calibration_needs_a_real_journal():
    with pytest.raises(ConfigError, match="20"):
        calibrate([])
    with pytest.raises(ConfigError, match="20"):
        calibrate([ArrivalEvent(0.0, "a", 3), *[event for event in journal() if isinstance(event, StepEvent)][:1]])
    for share in (0, 1, -0.5, 0.6):
        with pytest.raises(ConfigError, match="unseen_share"):
            calibrate(journal(), share)
