"""Les métriques, vérifiées à la main sur un journal écrit à la main."""

import pytest

from minibatcher.engine import ArrivalEvent, EndEvent, StepEvent
from minibatcher.metrics import Distribution, request_metrics, summarize
from minibatcher.request import FinishReason


def step(number, start, end, scheduled, sampled, admitted=None, preempted=(), finished=None):
    return StepEvent(
        step=number,
        start=start,
        end=end,
        scheduled=scheduled,
        sampled=dict.fromkeys(sampled, 0),
        admitted=admitted or {},
        preempted=list(preempted),
        finished=finished or {},
        num_free_blocks=0,
        num_running=0,
        num_waiting=0,
    )


@pytest.fixture
def events():
    # a : trois tokens, préemptée une fois ; b : un seul token ; c : annulée avant d'entrer ; d : annulée après un token.
    return [
        ArrivalEvent(0.0, "a", 10),
        ArrivalEvent(1.0, "b", 5),
        step(0, 2.0, 3.0, {"a": 10}, ["a"], admitted={"a": 4}),
        ArrivalEvent(3.0, "c", 7),
        ArrivalEvent(3.0, "d", 2),
        step(1, 3.0, 5.0, {"a": 1, "b": 5}, ["a", "b"], admitted={"b": 0}, finished={"b": FinishReason.STOP}),
        step(2, 5.0, 6.0, {"d": 2}, ["d"], admitted={"d": 0}, preempted=["a"]),
        EndEvent(6.5, "c", FinishReason.ABORT),
        EndEvent(6.5, "d", FinishReason.ABORT),
        step(3, 7.0, 9.0, {"a": 12}, ["a"], admitted={"a": 0}, finished={"a": FinishReason.LENGTH}),
    ]


def test_dates_of_each_request(events):
    metrics = request_metrics(events)
    a, b, c, d = (metrics[name] for name in "abcd")
    assert (a.queue_time, a.ttft, a.e2e, a.num_preemptions, a.num_cached_tokens) == (2.0, 3.0, 9.0, 1, 4)
    assert a.itl == [2.0, 4.0]
    assert a.tpot == 3.0
    assert (b.ttft, b.tpot, b.itl, b.e2e) == (4.0, None, [], 4.0)
    assert (c.queue_time, c.ttft, c.tpot, c.e2e, c.finish_reason) == (None, None, None, 3.5, FinishReason.ABORT)
    assert (d.ttft, d.tpot, d.finish_reason) == (3.0, None, FinishReason.ABORT)


def test_summary(events):
    summary = summarize(request_metrics(events).values(), ttft_target=3.5, tpot_target=3.0)
    assert (summary.num_requests, summary.num_finished, summary.num_output_tokens) == (4, 2, 5)
    assert summary.duration == 9.0
    assert summary.output_throughput == pytest.approx(5 / 9)
    assert summary.request_throughput == pytest.approx(2 / 9)
    assert summary.goodput == pytest.approx(1 / 9)  # b a attendu 4 s son premier token ; c et d ont été annulées
    assert summary.num_preemptions == 1
    assert summary.tpot.p50 == 3.0
    assert summary.itl.p50 == 3.0
    assert summary.e2e.mean == 6.5


def test_goodput_only_when_asked(events):
    metrics = request_metrics(events).values()
    assert summarize(metrics).goodput is None
    assert summarize(metrics, tpot_target=2.9).goodput == pytest.approx(1 / 9)  # a est trop lente, b n'a pas de TPOT


def test_reused_identifier_starts_afresh(events):
    again = [*events, ArrivalEvent(20.0, "a", 3), step(4, 21.0, 22.0, {"a": 3}, ["a"], admitted={"a": 0})]
    a = request_metrics(again)["a"]
    assert (a.arrival, a.ttft, a.num_output_tokens, a.num_preemptions) == (20.0, 2.0, 1, 0)


def test_nothing_to_measure():
    empty = summarize([])
    assert (empty.num_requests, empty.duration, empty.output_throughput) == (0, 0.0, 0.0)
    assert empty.ttft == Distribution(None, None, None, None)
    assert Distribution.of([None, 2.0]).p95 == 2.0
