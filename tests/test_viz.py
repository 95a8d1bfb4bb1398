"""Les figures disent ce que disent les données : chaque test relit les objets dessinés, pas une image de référence."""

import io
import itertools
import random

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from minibatcher.engine import EndEvent, EngineCore, StepEvent
from minibatcher.kv_cache import KVCacheManager
from minibatcher.metrics import Distribution, request_metrics
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput
from minibatcher.simulation.memory import memory_limited
from minibatcher.simulation.slots import continuous_timeline, static_timeline
from minibatcher.viz import style
from minibatcher.viz.bars import plot_memory_bar, plot_reservation, plot_throughputs
from minibatcher.viz.blocks import block_map, plot_blocks
from minibatcher.viz.colors import neighbors, request_colors
from minibatcher.viz.curves import plot_curves, plot_over_time
from minibatcher.viz.latencies import plot_latencies
from minibatcher.viz.load import plot_queue
from minibatcher.viz.narration import tell_slots, tell_step
from minibatcher.viz.slots import plot_slots, plot_static_vs_continuous, stays_of
from minibatcher.viz.style import REQUEST_COLORS, french_number, french_spaces, plural, short_number, text_on, to_png
from minibatcher.viz.timeline import occupations, plot_timeline

TINY = [3, 10, 5, 2, 6, 4, 5, 3, 2]  # l'exemple du cours : A, B, C, D, puis cinq requêtes en file


def course_lengths():
    rng = random.Random(42)
    return [rng.randint(20, 400) for _ in range(64)]


class Echo:
    """Répond toujours le token 0."""

    def execute(self, plan):
        done = [r.num_computed_tokens + n == r.num_tokens for r, n in zip(plan.requests, plan.num_tokens, strict=True)]
        return StepOutput([0 if d else None for d in done])


def run(lengths, max_num_seqs, num_blocks=100, prompt=3):
    ticks = itertools.count()
    engine = EngineCore(Scheduler(SchedulerConfig(max_num_seqs, 64, 256), KVCacheManager(num_blocks, 4)), Echo())
    engine.clock = lambda: 0.125 * next(ticks)
    for i, length in enumerate(lengths):
        engine.add_request(Request(str(i), [i] * prompt, SamplingParams(max_tokens=length)))
    while engine.has_unfinished_requests:
        engine.step()
    return engine.events


def boxes(axes):
    """Les rectangles dessinés : (x, y du milieu, largeur, hachuré, couleur)."""
    return [
        (p.get_x(), p.get_y() + p.get_height() / 2, p.get_width(), bool(p.get_hatch()), to_hex(p.get_facecolor()).upper())
        for p in axes.patches
    ]


def texts(artist):
    return [t.get_text() for t in artist.findobj(Text) if t.get_text() and t.get_visible()]


# --- le chronogramme du moteur


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


def test_the_timeline_draws_each_stay_with_its_prefill_hatched():
    events = run([3, 10, 5, 2, 4], max_num_seqs=4)
    figure, alt = plot_timeline(events, "Titre")
    assert "5 requêtes sur 4 places et 10 pas" in alt
    assert "60\u202f%" in alt  # 24 places occupées sur 40
    (axes,) = figure.axes
    assert axes.get_title("left") == "Titre"
    drawn = [(x, y, width, hatched) for x, y, width, hatched, _ in boxes(axes)]
    for row in occupations(events):
        assert (row.first, row.slot, 1, True) in drawn
        assert (row.first + 1, row.slot, row.last - row.first, False) in drawn
    assert len(drawn) == 10


def test_the_timeline_marks_preemptions_and_stops_where_asked():
    events = run([12, 9, 14, 7, 11, 13], max_num_seqs=4, num_blocks=9)
    figure, alt = plot_timeline(events, "Titre")
    (mark,) = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert (mark.get_xdata().tolist(), mark.get_ydata().tolist()) == ([6], [3])  # la requête 3, renvoyée au septième pas
    assert alt.endswith("1 préemption.")
    figure, alt = plot_timeline(events, "Titre", until=5)
    (axes,) = figure.axes
    assert not [line for line in axes.lines if line.get_marker() == "X"]
    assert "après 5 pas sur 25" in alt
    assert max(x + width for x, _, width, _, color in boxes(axes) if color != "#FFFFFF") == 5
    assert axes.get_xlim() == (0, 25)  # l'axe reste entier : rien ne bouge d'un pas au suivant


# --- le chronogramme à slots


def test_the_static_example_shows_who_is_where_and_what_is_empty():
    figure, alt = plot_slots(static_timeline([3, 10, 5, 2], 4), "Un lot")
    (axes,) = figure.axes
    drawn = [(x, y, width, hatched) for x, y, width, hatched, _ in boxes(axes)]
    assert sorted(drawn) == sorted(
        [(0, 0, 3, False), (3, 0, 7, True), (0, 1, 10, False), (0, 2, 5, False), (5, 2, 5, True), (0, 3, 2, False), (2, 3, 8, True)]
    )
    labels = {t.get_text(): t.get_position() for t in axes.texts if t.get_text() in "ABCD"}
    assert labels == {"A": (1.5, 0), "B": (5, 1), "C": (2.5, 2), "D": (1, 3)}
    assert texts(axes).count("vide") == 3
    assert axes.get_legend() is None  # le mot suffit
    assert "10 pas, 20 emplacements utiles sur 40\u202f: 50\u202f%" in texts(axes)
    assert "50\u202f%" in alt
    assert "Slot 3\u202f: D de 0 à 2 et vide de 2 à 10." in alt


def test_the_two_charts_share_their_axis_and_their_colors():
    figure, alt = plot_static_vs_continuous(TINY, 4)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, 18)
    color_of = {}
    for axes, timeline in ((above, static_timeline(TINY, 4)), (below, continuous_timeline(TINY, 4))):
        drawn = {(x, y): (width, hatched, color) for x, y, width, hatched, color in boxes(axes)}
        for request, slot, start, end in stays_of(timeline.occupancy):
            width, hatched, color = drawn.pop((start, slot))
            assert (width, hatched) == (end - start, request < 0)
            if request >= 0:
                assert color_of.setdefault(request, color) == color
                assert "ABCDEFGHI"[request] in texts(axes)
        assert not drawn
    assert "8 pas\ngagnés" in texts(below)
    assert alt.endswith("Le continu gagne 8 pas, soit 44\u202f% du temps.")


def test_the_figures_of_the_course_are_in_the_text():
    figure, alt = plot_static_vs_continuous(course_lengths(), 8)
    for number in ("2\u202f837 pas", "57\u202f%", "1\u202f804 pas", "90\u202f%", "1\u202f033 pas"):
        assert number in alt
    assert "slot vide" in texts(figure)  # trop de vides pour y écrire le mot
    assert "vide" not in texts(figure)


def test_two_bars_that_touch_have_different_colors():
    figure, _ = plot_static_vs_continuous(course_lengths(), 8)
    for axes in figure.axes:
        bars = [box for box in boxes(axes) if not box[3]]
        assert len(bars) == 64
        for (xa, ya, wa, _, a), (xb, yb, wb, _, b) in itertools.combinations(sorted(bars), 2):
            if (ya == yb and xb == xa + wa) or (abs(ya - yb) == 1 and xa < xb + wb and xb < xa + wa):
                assert a != b


@pytest.mark.parametrize(
    ("lengths", "num_slots"), [(TINY, 4), (course_lengths(), 8), (course_lengths(), 16), (course_lengths(), 32)]
)
def test_a_label_never_overflows_its_bar(lengths, num_slots):
    figure, _ = plot_static_vs_continuous(lengths, num_slots)
    figure.draw_without_rendering()
    for axes in figure.axes:
        bars = [patch.get_window_extent() for patch in axes.patches]
        inside = [t for t in axes.texts if t.get_text().isalnum()]
        for text in inside:
            extent = text.get_window_extent()
            assert any(
                bar.x0 <= extent.x0 and extent.x1 <= bar.x1 and bar.y0 <= extent.y0 + 1 and extent.y1 - 1 <= bar.y1 for bar in bars
            ), text.get_text()


def test_until_shows_the_first_steps_on_the_whole_axis():
    lengths = [3, 10, 5, 2]
    figure, alt = plot_slots(static_timeline(lengths, 4), until=4)
    (axes,) = figure.axes
    assert axes.get_xlim() == (0, 10)
    assert sorted((x, y, width) for x, y, width, *_ in boxes(axes)) == [
        (0, 0, 3),
        (0, 1, 4),
        (0, 2, 4),
        (0, 3, 2),
        (2, 3, 2),
        (3, 0, 1),
    ]
    assert "après 4 pas sur 10, 13 emplacements utiles sur 16\u202f: 81\u202f%" in alt
    figure, alt = plot_slots(static_timeline(lengths, 4), until=0)
    assert not figure.axes[0].patches
    assert "après 0 pas sur 10." in alt


def test_labels_are_given_or_found():
    figure, _ = plot_slots(static_timeline([3, 4], 2), labels=["Léa", "Tom"])
    assert {"Léa", "Tom"} <= set(texts(figure))
    figure, _ = plot_slots(static_timeline([9] * 27, 27))
    assert {"0", "26"} <= {t.get_text() for t in figure.axes[0].texts}
    with pytest.raises(ValueError, match="1 noms pour 2 requêtes"):
        plot_slots(static_timeline([3, 4], 2), labels=["Léa"])


def test_a_memory_limited_run_is_drawn_too():
    limited = memory_limited([6, 6, 6], 3, 12)
    assert limited.num_preemptions
    figure, _ = plot_slots(limited)
    drawn = sum(width for _, _, width, hatched, _ in boxes(figure.axes[0]) if not hatched)
    assert drawn == (limited.occupancy >= 0).sum()


# --- les couleurs


# Machado, Oliveira et Fernandes (2009), sévérité 1 : ce que voit chaque daltonisme, en RVB linéaire.
COLOR_BLIND = {
    "deutéranopie": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopie": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopie": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "vision ordinaire": np.eye(3).tolist(),
}


def linear(color):
    channels = np.array(to_rgb(color))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", COLOR_BLIND)
def test_the_palette_stays_distinct_for_color_blind_readers(vision):
    seen = [lab(np.array(COLOR_BLIND[vision]) @ linear(color)) for color in REQUEST_COLORS]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 15  # en dessous de 10, deux couleurs voisines se confondent


def test_the_color_blind_check_can_fail():
    red, green = (lab(np.array(COLOR_BLIND["deutéranopie"]) @ linear(color)) for color in ("#B05050", "#6B7F45"))
    assert np.linalg.norm(red - green) < 15


@pytest.mark.parametrize("color", REQUEST_COLORS)
def test_text_on_a_color_is_readable(color):
    def luminance(c):
        return linear(c) @ np.array([0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(color), luminance(text_on(color))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5  # le seuil AA de WCAG


@pytest.mark.parametrize("seed", range(20))
def test_neighbors_never_share_a_color(seed):
    rng = random.Random(seed)
    num_slots = rng.choice([2, 3, 4, 8, 16, 32])
    lengths = [rng.randint(1, rng.choice([3, 10, 400])) for _ in range(rng.choice([9, 64, 200]))]
    occupancies = static_timeline(lengths, num_slots).occupancy, continuous_timeline(lengths, num_slots).occupancy
    colors = request_colors(len(lengths), neighbors(occupancies[0]) | neighbors(occupancies[1]))
    for occupancy in occupancies:
        stays = [stay for stay in stays_of(occupancy) if stay[0] >= 0]
        for (a, slot_a, start_a, end_a), (b, slot_b, start_b, end_b) in itertools.combinations(stays, 2):
            follows = slot_a == slot_b and start_b == end_a
            beside = abs(slot_a - slot_b) == 1 and start_a < end_b and start_b < end_a
            if follows or beside:
                assert colors[a] != colors[b]


# --- les blocs


def test_each_block_shows_its_owner_and_its_state():
    owners = ["A", None, "B", ["A", "B"], None, ["A", "B", "C", "D"]]
    figure, alt = plot_blocks(owners, hashed=[True, False, False, True, True, True], columns=3)
    (axes,) = figure.axes
    assert "6 blocs, 67\u202f% utilisés\u202f: 4 utilisés (dont 2 partagés), 1 en cache, 1 libre" in alt
    assert "B\u202f: 3 blocs (2, 3 et 5)." in alt
    letters = {}
    for text in axes.texts:
        x, y = text.get_position()
        letters.setdefault(3 * int(y) + int(x), []).append(text.get_text())
    assert letters[0] == ["A"]
    assert letters[2] == ["B"]
    assert letters[3] == ["A", "B"]
    assert letters[5] == ["A", "B", "×4"]
    assert 1 not in letters
    assert 4 not in letters
    # Libre : blanc et nu ; en cache : pointillé. Les deux se distinguent sans couleur.
    by_cell = {(int(p.get_x()), int(p.get_y())): p for p in axes.patches}
    assert by_cell[1, 0].get_hatch() is None
    assert by_cell[1, 1].get_hatch() == "...."
    color = {(int(p.get_x()), int(p.get_y()), round(p.get_width(), 2)): to_hex(p.get_facecolor()).upper() for p in axes.patches}
    assert color[0, 0, 0.9] == REQUEST_COLORS[0]
    assert color[2, 0, 0.9] == REQUEST_COLORS[1]


def test_the_map_of_a_manager_is_its_state():
    manager = KVCacheManager(12, 4)
    shared = list(range(8))
    requests = [Request(name, shared + tail, SamplingParams(max_tokens=4)) for name, tail in (("A", [90] * 3), ("B", [91] * 5))]
    gone = Request("C", [92] * 9, SamplingParams(max_tokens=4))
    for request in [*requests, gone]:
        computed = manager.get_computed_blocks(request)
        assert manager.admit(request, request.num_tokens - 4 * len(computed), computed)
    manager.free(gone)
    state = block_map(manager)
    assert [sorted(names) for names in state["block_owner"][:5]] == [["A", "B"], ["A", "B"], ["A"], ["B"], ["B"]]
    assert state["ref_counts"] == manager.block_pool.ref_counts
    figure, alt = plot_blocks(**state)
    assert "12 blocs" in alt
    assert "5 utilisés (dont 2 partagés), 2 en cache, 5 libres" in alt
    hatched = [patch for patch in figure.axes[0].patches if patch.get_hatch() == "...."]
    assert len(hatched) == manager.block_pool.num_cached_blocks == 2


def test_the_colors_of_blocks_follow_the_labels():
    labels = {"première": "P", "seconde": "S"}
    figure, _ = plot_blocks(["seconde", None], labels=labels)
    assert to_hex(figure.axes[0].patches[0].get_facecolor()).upper() == REQUEST_COLORS[1]
    assert "S\u202f: seconde" in texts(figure)
    assert "P\u202f: première" not in texts(figure)
    with pytest.raises(ValueError, match="autant"):
        plot_blocks(["A", None], ref_counts=[1])


# --- les courbes


def test_curves_draw_the_values_and_say_what_they_show():
    x = [1, 2, 4, 8]
    figure, alt = plot_curves(
        x, {"débit": [10, 20, 38, 39], "idéal": [10, 20, 40, 80]}, "B", "tokens/s", "Titre : a", verticals={"coude": 4}, logx=True
    )
    (axes,) = figure.axes
    assert axes.lines[0].get_xdata().tolist() == x
    assert axes.lines[0].get_ydata().tolist() == [10, 20, 38, 39]
    assert axes.lines[1].get_ydata().tolist() == [10, 20, 40, 80]
    assert axes.lines[0].get_marker() != axes.lines[1].get_marker()
    assert any(line.get_xdata() == [4, 4] for line in axes.lines[2:])
    assert "débit\u202f: de 10 (pour 1) à 39 (pour 8)" in alt
    assert "Repère «\u202fcoude\u202f» à 4" in alt
    assert {"débit", "idéal", "coude", "Titre\u202f: a", "B", "tokens/s"} <= set(texts(figure))
    figure.draw_without_rendering()
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "4", "8"]


def test_the_finding_of_a_curve_is_its_maximum_and_its_plateau():
    _, alt = plot_curves(range(6), {"a": [0, 50, 96, 100, 97, 90]}, "B", "débit", "T")
    assert "maximum 100 pour 3" in alt
    assert "à 95\u202f% du maximum dès 2" in alt
    assert plot_curves([1], {"a": [1]}, "x", "y", "T", alt="Mon texte")[1] == "Mon texte"
    assert "aucun point" in plot_curves([1, 2], {"a": [np.nan, np.nan], "b": [1, 2]}, "x", "y", "T")[1]


@pytest.mark.parametrize(
    "ends", [[1 + i / 1000 for i in range(6)], [i / 1000 for i in range(5)] + [1.0]], ids=["en haut", "en bas"]
)
def test_the_names_at_the_end_of_curves_do_not_overlap(ends):
    figure, _ = plot_curves(range(50), {f"courbe {i}": np.linspace(0, end, 50) for i, end in enumerate(ends)}, "x", "y", "T")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    extents = sorted((t.get_window_extent() for t in axes.texts if t.get_text().startswith("courbe")), key=lambda e: e.y0)
    assert len(extents) == 6
    assert all(lower.y1 <= upper.y0 for lower, upper in itertools.pairwise(extents))
    frame = axes.get_window_extent()
    assert frame.y0 - extents[0].height <= extents[0].y0
    assert extents[-1].y1 <= frame.y1 + extents[-1].height


def test_over_time_draws_steps_and_the_mean():
    figure, alt = plot_over_time([1, 3, 2], "pas", "présents", "T", mean=2.0)
    (axes,) = figure.axes
    data = axes.patches[-1].get_data()
    assert data.values.tolist() == [1, 3, 2]
    assert data.edges.tolist() == [0, 1, 2, 3]
    assert axes.lines[0].get_ydata() == [2.0, 2.0]
    assert "de 1 à 3, moyenne 2" in alt
    figure, _ = plot_over_time([0.5, 1.0], "secondes", "cache", "T", x=[0, 10], share=True)
    figure.draw_without_rendering()
    assert figure.axes[0].patches[-1].get_data().edges.tolist() == [0, 10, 20]
    assert "100\u202f%" in [t.get_text() for t in figure.axes[0].get_yticklabels()]


def test_the_queue_is_the_one_of_the_events():
    events = run([12, 9, 14, 7, 11, 13], max_num_seqs=4, num_blocks=9)
    steps = [event for event in events if isinstance(event, StepEvent)]
    figure, alt = plot_queue(events, num_blocks=9)
    above, below = figure.axes
    running, waiting = (patch.get_data() for patch in above.patches)
    assert running.edges.tolist() == [event.start - steps[0].start for event in steps] + [steps[-1].end - steps[0].start]
    assert running.values.tolist() == [len(event.scheduled) for event in steps]  # ici, toutes calculent à chaque pas
    assert waiting.values.tolist() == [event.num_waiting for event in steps]
    assert below.patches[-1].get_data().values.tolist() == [1 - event.num_free_blocks / 9 for event in steps]
    assert "4 requêtes en cours et 3 en file au plus, cache utilisé à 100\u202f% au plus fort, 1 préemption" in alt
    _, alt = plot_queue(events)
    assert "0 bloc libre au moins" in alt
    with pytest.raises(ValueError, match="aucun pas"):
        plot_queue([])


def test_latencies_are_those_of_the_metrics():
    requests = list(request_metrics(run([12, 9, 14, 7, 11, 1], max_num_seqs=2)).values())
    figure, alt = plot_latencies(requests, targets={"ttft": 1.0})
    for axes, latency in zip(figure.axes, ("ttft", "tpot"), strict=True):
        values = sorted(value for r in requests if (value := getattr(r, latency)) is not None)
        scale = 1000 if values[-1] < 1 else 1
        curve = axes.lines[0]
        assert curve.get_xdata()[1:].tolist() == pytest.approx([scale * value for value in values])
        expected = Distribution.of(values)
        marks = {line.get_marker(): line for line in axes.lines if line.get_marker() in ("o", "^", "D")}
        for marker, name, share in (("o", "p50", 0.5), ("^", "p95", 0.95), ("D", "p99", 0.99)):
            assert marks[marker].get_xdata()[0] == pytest.approx(scale * getattr(expected, name))
            assert marks[marker].get_ydata()[0] == share
            assert f"{name} {short_number(scale * getattr(expected, name))}" in alt
    on_time = sum(r.ttft <= 1.0 for r in requests) / len(requests)
    assert f"{style.percent(on_time)} à temps" in alt
    assert len([r for r in requests if r.tpot is None]) == 1  # une réponse d'un token n'a pas de TPOT


def test_several_loads_are_compared_and_an_empty_one_is_said():
    requests = list(request_metrics(run([4, 5], max_num_seqs=2)).values())
    figure, alt = plot_latencies({"continu": requests, "vide": []})
    assert "continu\u202f: p50" in alt
    assert "vide\u202f: aucune mesure." in alt
    assert any(text.startswith("continu\u202f: p50") for text in texts(figure))


# --- les barres


def test_throughputs():
    figure, alt = plot_throughputs(["transformers", "minibatcher"], [25.2, 1234.6], "Débits")
    assert "minibatcher\u202f: 1\u202f235 tokens/s" in alt
    assert [bar.get_width() for bar in figure.axes[0].patches] == [25.2, 1234.6]


def test_the_memory_bar_adds_up():
    parts = {"poids": 16e9, "activations": 1e9, "cache KV": 55e9}
    figure, alt = plot_memory_bar(parts, 80e9)
    drawn = boxes(figure.axes[0])
    assert [(x, width) for x, _, width, *_ in drawn] == [(0, 16), (16, 1), (17, 55), (72, 8)]
    assert [hatched for *_, hatched, _ in drawn] == [False, False, False, True]
    assert {"poids\n16,0 Go", "activations 1,0 Go", "cache KV\n55,0 Go", "inutilisé\n8,0 Go"} <= set(texts(figure))
    assert "cache KV 55,0 Go (69\u202f%)" in alt
    assert "manque" not in alt


def test_the_memory_bar_shows_what_does_not_fit():
    figure, alt = plot_memory_bar({"poids": 16.5e9, "activations": 1e9}, 16e9)
    assert "Il manque 1,5 Go." in alt
    assert "inutilisé" not in alt
    assert any("fin de la mémoire" in text for text in texts(figure))
    assert figure.axes[0].get_xlim() == (0, 17.5)


def test_a_reservation_shows_what_is_lost():
    figure, alt = plot_reservation([100, 400], 1000)
    drawn = [(p.get_y(), p.get_height(), bool(p.get_hatch())) for p in figure.axes[0].patches]
    assert drawn == [(100, 900, True), (0, 100, False), (400, 600, True), (0, 400, False)]
    assert "500 tokens utiles sur 2\u202f000 réservés\u202f: 25\u202f%" in alt
    assert "10\u202f% de sa réservation" in alt
    assert "50\u202f%" in plot_reservation([100, 400], [200, 800])[1]
    with pytest.raises(ValueError, match="une réservation par séquence"):
        plot_reservation([1, 2], [3])


# --- les phrases


def test_the_sentence_says_who_leaves_and_who_enters():
    static, continuous = static_timeline(TINY, 4), continuous_timeline(TINY, 4)
    names = "ABCDEFGHI"
    assert tell_slots(static, 0, names) == "A, B, C et D entrent. En file\u202f: E, F, G, H et I."
    assert tell_slots(static, 1, names).startswith("Personne ne sort, personne n’entre.")
    assert tell_slots(static, 3, names).startswith("A finit, son slot reste vide. 2 slots vides sur 4.")
    assert tell_slots(static, 10, names) == "B finit. E, F, G et H entrent. En file\u202f: I."
    assert tell_slots(continuous, 3, names) == "A finit, F prend son slot. En file\u202f: G, H et I."
    assert tell_slots(continuous, 8, names) == "E finit, I prend son slot. La file est vide."
    assert tell_slots(continuous, 10, names) == "B, G, H et I finissent\u202f: tout est servi."
    assert tell_slots(continuous, 12, names) == "Tout est servi depuis le pas 10."


def test_the_sentence_counts_when_there_are_too_many_and_names_preemptions():
    assert (
        tell_slots(static_timeline([5] * 40, 20), 0, [str(i) for i in range(40)])
        == "20 requêtes entrent. 20 requêtes attendent en file."
    )
    limited = memory_limited([6, 6, 6], 3, 12)
    told = [tell_slots(limited, step, "ABC") for step in range(limited.num_steps + 1)]
    assert sum("préemptée" in sentence for sentence in told) == limited.num_preemptions == 1


def test_the_sentence_of_an_engine_step():
    steps = [event for event in run([12, 9, 14, 7, 11, 13], max_num_seqs=4, num_blocks=9) if isinstance(event, StepEvent)]
    assert tell_step(steps[0]) == "4 requêtes calculent 12 tokens. 0, 1, 2 et 3 entrent. 2 en file, 5 blocs libres."
    assert tell_step(steps[6]) == "3 requêtes calculent 3 tokens. 3 est préemptée. 3 en file, 0 bloc libre."
    assert "1 finit." in tell_step(steps[8])


# --- ce que toutes les figures ont en commun


def every_figure():
    events = run([12, 9, 14, 7, 11, 13], max_num_seqs=4, num_blocks=9)
    requests = list(request_metrics(events).values())
    x = np.arange(1, 60)
    yield lambda: plot_slots(static_timeline(TINY, 4), "Qui occupe quel slot, et combien de temps il reste vide ensuite")
    yield lambda: plot_static_vs_continuous(course_lengths(), 8)
    yield lambda: plot_static_vs_continuous(course_lengths(), 8, until=700)
    yield lambda: plot_timeline(events, "Le lot se renouvelle", until=7)
    yield lambda: plot_timeline(events, "Le lot se renouvelle", until=0)
    yield lambda: plot_blocks([f"requête-{i % 9}" if i % 3 else None for i in range(100)], columns=24)
    yield lambda: plot_curves(
        x, {"a": x**0.5, "une courbe au nom long": x}, "x", "y", "T", verticals={"ici": 50, "là": 20}, logy=True
    )
    yield lambda: plot_over_time(x % 7, "pas", "valeurs", "Titre", mean=3)
    yield lambda: plot_queue(events, 9)
    yield lambda: plot_latencies({"prefill d’abord": requests, "chunked prefill": requests}, {"ttft": 1, "tpot": 0.1})
    yield lambda: plot_memory_bar({"poids": 16.5e9, "activations": 1e9}, 16e9, "Titre")
    yield lambda: plot_reservation([100, 400, 30], 2000)
    yield lambda: plot_throughputs(["transformers, lot statique", "minibatcher"], [25.2, 12345.6], "Débits")


@pytest.mark.parametrize("plot", list(every_figure()))
def test_nothing_is_clipped_and_nothing_is_left_open(plot):
    figure, alt = plot()
    figure.draw_without_rendering()
    page = figure.bbox
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            extent = text.get_window_extent()
            inside = extent.x0 >= -1 and extent.y0 >= -1 and extent.x1 <= page.x1 + 1 and extent.y1 <= page.y1 + 1
            # Les graduations hors des limites existent, mais ne sont pas dessinées.
            hidden = any(text in axis.get_ticklabels() for axes in figure.axes for axis in (axes.xaxis, axes.yaxis))
            assert inside or hidden, text.get_text()
    assert alt.endswith(".")
    assert any(character.isdigit() for character in alt)  # un constat, pas « une courbe »
    assert french_spaces(alt) == alt
    assert plt.get_fignums() == []


@pytest.mark.parametrize("plot", list(every_figure()))
def test_the_style_does_not_depend_on_the_reader_s_own(plot):
    expected = to_png(*plot())
    with plt.style.context("dark_background"), plt.rc_context({"font.size": 20, "axes.titlelocation": "center"}):
        assert to_png(*plot()) == expected


def test_the_background_is_opaque_and_light():
    image = plt.imread(io.BytesIO(to_png(*plot_slots(static_timeline(TINY, 4)))))
    assert image[..., 3].min() == 1.0 if image.shape[-1] == 4 else True
    assert image[0, 0, :3].tolist() == [1, 1, 1]
    assert image.shape[1] == 1296  # neuf pouces : la largeur d'un carnet


def test_french_numbers():
    assert french_number(1234567.89, 1) == "1\u202f234\u202f567,9"
    assert french_number(float("nan")) == "—"
    assert [short_number(v) for v in (0.12345, 5.0, 38.42, 123.4, 12345.6)] == ["0,123", "5", "38,4", "123", "12\u202f346"]
    assert plural(1, "slot") == "1 slot"
    assert plural(2, "slot") == "2 slots"
    assert french_spaces("« a » : 5 % !") == "«\u202fa\u202f»\u202f: 5\u202f%\u202f!"
