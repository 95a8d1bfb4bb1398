"""Les figures disent ce que dit le journal."""

import matplotlib

matplotlib.use("Agg")

from minibatcher.engine import EndEvent, EngineCore, StepEvent
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput
from minibatcher.viz.bars import plot_throughputs
from minibatcher.viz.style import french_number
from minibatcher.viz.timeline import occupations, plot_timeline


class Echo:
    """Répond toujours le token 0."""

    def execute(self, plan):
        done = [r.num_computed_tokens + n == r.num_tokens for r, n in zip(plan.requests, plan.num_tokens, strict=True)]
        return StepOutput([0 if d else None for d in done])


def run(lengths, max_num_seqs, num_blocks=100, prompt=3):
    engine = EngineCore(Scheduler(SchedulerConfig(max_num_seqs, 64, 256), KVCacheManager(num_blocks, 4)), Echo())
    for i, length in enumerate(lengths):
        engine.add_request(Request(str(i), [i] * prompt, SamplingParams(max_tokens=length)))
    while engine.has_unfinished_requests:
        engine.step()
    return engine.events


def test_slots_are_reused_as_soon_as_they_are_free():
    # L'exemple du cours : 4 places ; A=3, B=10, C=5, D=2, puis E=4 prend la place de D.
    rows = {row.request_id: row for row in occupations(run([3, 10, 5, 2, 4], max_num_seqs=4))}
    assert [(rows[i].slot, rows[i].first, rows[i].last) for i in "01234"] == [(0, 0, 2), (1, 0, 9), (2, 0, 4), (3, 0, 1), (3, 2, 5)]
    assert all(row.prefill_until == row.first + 1 for row in rows.values())


def test_no_two_requests_share_a_slot_even_with_preemptions():
    events = run([12, 9, 14, 7, 11, 13], max_num_seqs=4, num_blocks=9)
    assert sum(len(e.preempted) for e in events if isinstance(e, StepEvent)) > 0
    taken = set()
    rows = occupations(events)
    for row in rows:
        cells = {(row.slot, step) for step in range(row.first, row.last + 1)}
        assert not cells & taken
        taken |= cells
    # Chaque requête calculée à un pas a une place à ce pas, et réciproquement sous le budget.
    assert len(taken) == sum(len(e.scheduled) for e in events if isinstance(e, StepEvent))


def test_a_request_stopped_between_two_steps_leaves_its_slot():
    events = run([5], max_num_seqs=1)
    events.insert(4, EndEvent(0.0, "0", FinishReason.ABORT))  # après trois pas
    assert [(r.first, r.last) for r in occupations(events)] == [(0, 2)]


def test_figures_have_alternative_text():
    figure, alt = plot_timeline(run([3, 10, 5, 2, 4], max_num_seqs=4), "Titre")
    assert "5 requêtes sur 4 places et 10 pas" in alt
    assert "60\u202f%" in alt  # 24 places occupées sur 40
    assert figure.axes[0].get_title() == "Titre"
    figure, alt = plot_throughputs(["transformers", "minibatcher"], [25.2, 1234.6], "Débits")
    assert "minibatcher : 1\u202f235 tokens/s" in alt
    assert [bar.get_width() for bar in figure.axes[0].patches] == [25.2, 1234.6]


def test_french_numbers():
    assert french_number(1234567.89, 1) == "1\u202f234\u202f567,9"
    assert french_number(float("nan")) == "—"
