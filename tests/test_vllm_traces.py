"""Notre scheduler contre les décisions enregistrées de celui de vLLM, pas à pas."""

import json
from pathlib import Path

import pytest

from minibatcher.engine import ArrivalEvent, StepEvent
from minibatcher.journal import Journal
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput
from minibatcher.simulation.replay import replay as replay_journal

TRACES = sorted((Path(__file__).parent / "data" / "vllm_traces").glob("*.json"))


def replay(trace: dict, max_steps: int = 100_000):
    """Rejoue la charge d'une trace ; rend nos décisions dans le format de la trace."""
    config = trace["config"]
    manager = KVCacheManager(config["usable_blocks"], config["block_size"], config["enable_prefix_caching"])
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_model_len=config["max_model_len"],
        ),
        manager,
    )
    outputs = {r["id"]: r["output"] for r in trace["requests"]}
    arrivals = sorted(trace["requests"], key=lambda r: (r["arrival_step"], r["id"]), reverse=True)
    steps = []
    while (arrivals or scheduler.has_unfinished_requests) and len(steps) < max_steps:
        while arrivals and arrivals[-1]["arrival_step"] <= len(steps):
            r = arrivals.pop()
            params = SamplingParams(temperature=0, max_tokens=len(r["output"]), ignore_eos=True)
            scheduler.add_request(Request(r["id"], r["prompt"], params))
        plan = scheduler.schedule()
        tokens = [
            outputs[r.request_id][r.num_output_tokens] if r.num_computed_tokens + n == r.num_tokens else None
            for r, n in zip(plan.requests, plan.num_tokens, strict=True)
        ]
        finished = scheduler.update(plan, StepOutput(tokens))
        manager.check_integrity(scheduler.running)
        steps.append(
            {
                "scheduled": dict(zip([r.request_id for r in plan.requests], plan.num_tokens, strict=True)),
                "computed_at_start": plan.admitted,
                "preempted": plan.preempted,
                "free_blocks": plan.num_free_blocks,
                "finished": [r.request_id for r in finished],
            }
        )
    return steps


def journal_of(trace: dict) -> Journal:
    """La trace, comme si notre moteur l'avait écrite : mêmes arrivées, mêmes réponses, une seconde par pas."""
    config = trace["config"]
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "enable_prefix_caching")
    settings = {**{name: config[name] for name in names}, "num_blocks": config["usable_blocks"]}
    arrivals = sorted(trace["requests"], key=lambda r: (r["arrival_step"], r["id"]), reverse=True)
    outputs = {r["id"]: iter(r["output"]) for r in trace["requests"]}
    left = {r["id"]: len(r["prompt"]) + len(r["output"]) for r in trace["requests"]}
    known = {r["id"]: len(r["prompt"]) for r in trace["requests"]}
    computed, events, live = {}, [], set()
    for number, step in enumerate(trace["steps"]):
        while arrivals and arrivals[-1]["arrival_step"] <= number:
            r = arrivals.pop()
            events.append(ArrivalEvent(float(number), r["id"], len(r["prompt"]), r["prompt"]))
            live.add(r["id"])
        computed |= step["computed_at_start"]
        sampled = {}
        for rid, count in step["scheduled"].items():
            computed[rid] += count
            if computed[rid] == known[rid]:
                sampled[rid] = next(outputs[rid])
                known[rid] += 1
        finished = {rid: FinishReason.LENGTH for rid in sampled if known[rid] == left[rid]}
        assert sorted(finished) == sorted(step["finished"])
        live -= finished.keys()
        running = sum(rid in computed for rid in live)
        for rid in step["preempted"]:
            running -= 1
            del computed[rid]
        events.append(
            StepEvent(
                step=number,
                start=float(number),
                end=number + 1.0,
                scheduled=step["scheduled"],
                sampled=sampled,
                admitted=step["computed_at_start"],
                preempted=step["preempted"],
                finished=finished,
                num_free_blocks=step["free_blocks"],
                num_running=running,
                num_waiting=len(live) - running,
            )
        )
    return Journal(settings, events)


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
def test_same_decisions_through_the_simulated_executor(path):
    assert replay_journal(journal_of(json.loads(path.read_text())), ordered=False).difference is None


def test_the_fourteen_traces_are_here():
    assert len(TRACES) == 14


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
def test_same_decisions_as_vllm(path):
    trace = json.loads(path.read_text())
    ours, theirs = replay(trace), trace["steps"]
    for number, (mine, expected) in enumerate(zip(ours, theirs, strict=False)):
        expected = {key: expected[key] for key in mine}
        for key in ("finished", "preempted"):  # la trace les donne triés
            mine[key], expected[key] = sorted(mine[key]), sorted(expected[key])
        assert mine == expected, f"{path.stem} : décision différente au pas {number}"
    assert len(ours) == len(theirs)
