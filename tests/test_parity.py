"""Un seul scheduler pour deux mondes : le journal du vrai moteur, rejoué par l'exécuteur simulé, redonne les mêmes décisions."""

import copy

import pytest

from minibatcher.bench.run import run_calibration, run_workload
from minibatcher.engine import ArrivalEvent, StepEvent
from minibatcher.errors import ConfigError, InvalidRequestError
from minibatcher.journal import Journal, build_scheduler
from minibatcher.metrics import request_metrics
from minibatcher.request import SamplingParams
from minibatcher.serving.llm import LLM
from minibatcher.simulation.replay import replay
from minibatcher.simulation.simulator import simulate
from minibatcher.simulation.workload import WorkloadRequest, synthetic_workload, uniform_lengths

TOKEN_BYTES = 2 * 30 * 3 * 64 * 4  # SmolLM2 en float32


@pytest.fixture(scope="module")
def recorded(smollm2) -> tuple[Journal, list[WorkloadRequest]]:
    """64 requêtes, quatre préfixes partagés, un cache trop petit."""
    llm = LLM(smollm2, max_num_seqs=24, max_num_batched_tokens=96, max_model_len=160, kv_cache_memory=640 * TOKEN_BYTES)
    workload = synthetic_workload(
        64, uniform_lengths(64, 1, 40, 0), uniform_lengths(64, 4, 24, 1), 0.0, num_prefix_tokens=40, num_prefixes=4
    )
    return run_workload(llm, workload, max_concurrency=32), workload


def test_real_run_replayed(recorded, tmp_path):
    journal, _ = recorded
    steps = [event for event in journal.events if isinstance(event, StepEvent)]
    assert sum(len(event.preempted) for event in steps) >= 5
    assert sum(cached > 0 for event in steps for cached in event.admitted.values()) >= 30
    assert len(request_metrics(journal.events)) == 64
    journal.save(tmp_path / "journal.jsonl")
    again = Journal.load(tmp_path / "journal.jsonl")
    result = replay(again)
    assert result.difference is None
    assert [event.duration for event in result.events if isinstance(event, StepEvent)] == pytest.approx(
        [event.duration for event in steps]
    )


def test_real_run_simulated_again_in_closed_loop(recorded):
    """En boucle fermée, les arrivées ne dépendent que des fins : le simulateur, sans le journal, retrouve chaque décision."""

    class AnyCost:
        def duration(self, load):
            return 1.0

    journal, workload = recorded
    result = simulate(workload, AnyCost(), build_scheduler(**journal.settings), max_concurrency=32)
    real, simulated = ([e for e in events if isinstance(e, StepEvent)] for events in (journal.events, result.events))
    for mine, theirs in zip(simulated, real, strict=True):
        assert list(mine.scheduled.items()) == list(theirs.scheduled.items())
        assert (mine.admitted, mine.preempted) == (theirs.admitted, theirs.preempted)
        assert (mine.num_free_blocks, list(mine.finished)) == (theirs.num_free_blocks, list(theirs.finished))


def add_a_preemption(events, steps):
    next(event for event in steps if event.preempted).preempted.append("x")


@pytest.mark.parametrize(
    "change",
    [
        lambda events, steps: steps[20].scheduled.update({next(iter(steps[20].scheduled)): 7}),
        lambda events, steps: setattr(steps[30], "num_free_blocks", steps[30].num_free_blocks + 1),
        add_a_preemption,
        lambda events, steps: events.remove(steps[10]),
        lambda events, steps: events[0].prompt_token_ids.append(1),
        lambda events, steps: next(e for e in steps if e.finished).finished.clear(),
    ],
)
def test_a_changed_journal_is_noticed(recorded, change):
    journal = copy.deepcopy(recorded[0])
    change(journal.events, [event for event in journal.events if isinstance(event, StepEvent)])
    assert replay(journal).difference is not None


def test_journal_without_prompts_cannot_be_replayed(recorded):
    journal = copy.deepcopy(recorded[0])
    next(event for event in journal.events if isinstance(event, ArrivalEvent)).prompt_token_ids = None
    with pytest.raises(ConfigError, match="log_prompts"):
        replay(journal)


def test_run_workload(tiny_model):
    llm = LLM(tiny_model(), max_num_seqs=4, max_model_len=128)
    workload = [
        WorkloadRequest("texte", 0.0, 3, 4, prompt="Le continuous batching sert"),
        WorkloadRequest("tokens", 0.02, 3, 5, prompt_token_ids=[5, 6, 7]),
        WorkloadRequest("longueur", 0.3, 20, 6),
    ]
    done = []
    journal = run_workload(llm, workload, progress=done.append)
    assert sum(done) == 3
    metrics = request_metrics(journal.events)
    assert {rid: m.num_output_tokens for rid, m in metrics.items()} == {"texte": 4, "tokens": 5, "longueur": 6}
    start = metrics["texte"].arrival
    assert [m.arrival - start for m in metrics.values()] == pytest.approx([0.0, 0.02, 0.3])
    assert metrics["longueur"].first_scheduled - start >= 0.3
    prompts = [event.prompt_token_ids for event in journal.events if isinstance(event, ArrivalEvent)]
    assert prompts[0] == llm.tokenizer.encode(workload[0].prompt)
    assert prompts[1] == [5, 6, 7]
    assert len(prompts[2]) == 20
    assert replay(journal).difference is None
    # Le journal suivant ne contient que la suivante.
    assert [e.request_id for e in run_workload(llm, workload[1:2]).events if isinstance(e, ArrivalEvent)] == ["tokens"]


def test_run_workload_refuses_before_computing(tiny_model):
    llm = LLM(tiny_model(), max_num_seqs=4, max_model_len=128)
    with pytest.raises(ConfigError, match="vide"):
        run_workload(llm, [])
    with pytest.raises(ConfigError, match="max_concurrency"):
        run_workload(llm, [WorkloadRequest("a", 0.0, 3, 4)], max_concurrency=0)
    with pytest.raises(InvalidRequestError, match="'b'"):
        run_workload(llm, [WorkloadRequest("a", 0.0, 3, 4), WorkloadRequest("b", 0.0, 100, 40)])
    assert llm.engine.num_steps == 0
    llm.add_request("x", {"prompt_token_ids": [1, 2]}, SamplingParams(max_tokens=2))
    with pytest.raises(ConfigError, match="en cours"):
        run_workload(llm, [WorkloadRequest("a", 0.0, 3, 4)])
    llm.abort("x")

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_workload(llm, [WorkloadRequest(f"r{i}", 0.0, 3, 4 + i) for i in range(3)], progress=stop)
    assert not llm.engine.has_unfinished_requests
    assert len(run_workload(llm, [WorkloadRequest("a", 0.0, 3, 4)]).events) == 5


def test_run_calibration(tiny_model, monkeypatch):
    monkeypatch.setattr("minibatcher.bench.run.CALIBRATION_PHASES", ((10, 2, 20, 5, 20), (4, 60, 90, 5, 10)))
    calibration = run_calibration(LLM(tiny_model(), max_num_seqs=8, max_model_len=128))
    assert calibration.num_fitted > 2 * calibration.num_unseen > 10
    assert calibration.median_error < 1
