"""Les widgets, sans navigateur : on change la valeur d'un réglage comme le ferait la page, et on relit l'image et la phrase.

Ces tests passent aussi avec les versions de Colab (ipywidgets 7.7.1, IPython 7.34) et sans torch : `pytest --noconftest`.
"""

import base64
import html
import itertools
import random
import re
import subprocess
import sys
import threading

import ipywidgets
import matplotlib
import nbformat
import pytest
from nbclient import NotebookClient

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from minibatcher.engine import EngineCore, StepEvent
from minibatcher.errors import ConfigError
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput
from minibatcher.simulation.hardware import HARDWARE, get_hardware
from minibatcher.simulation.sheets import DTYPE_BYTES, MODELS, get_model, kv_cache_bytes, max_num_sequences
from minibatcher.simulation.slots import static_timeline
from minibatcher.viz import interactive
from minibatcher.viz import show as show_module
from minibatcher.viz.interactive import VIEW
from minibatcher.viz.show import figure_html, show
from minibatcher.viz.slots import plot_slots
from minibatcher.viz.widgets import SAME, batch_explorer, memory_explorer, schedule_player, slot_player

TINY = [3, 10, 5, 2, 6, 4, 5, 3, 2]
PNG = b"\x89PNG\r\n\x1a\n"


class Echo:
    """Répond toujours le token 0."""

    def execute(self, plan):
        done = [r.num_computed_tokens + n == r.num_tokens for r, n in zip(plan.requests, plan.num_tokens, strict=True)]
        return StepOutput([0 if d else None for d in done])


def engine_events():
    ticks = itertools.count()
    engine = EngineCore(Scheduler(SchedulerConfig(4, 64, 256), KVCacheManager(9, 4)), Echo(), clock=lambda: 0.125 * next(ticks))
    for name, length in zip("ABCDEF", [12, 9, 14, 7, 11, 13], strict=True):
        engine.add_request(Request(name, [ord(name)] * 3, SamplingParams(max_tokens=length)))
    while engine.has_unfinished_requests:
        engine.step()
    return engine.events


def text_of(widget):
    return html.unescape(re.sub(r"<[^>]+>", " ", widget.text.value))


def alt_of(fragment):
    return html.unescape(re.search(r'<img alt="([^"]*)"', fragment).group(1))


def png_of(fragment):
    data = base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', fragment).group(1))
    assert data.startswith(PNG)
    return data


def tree(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from tree(child)


def parts(widget, kind):
    return [part for part in tree(widget.widget) if type(part) is kind]


EVERY = {
    "slot_player": lambda: slot_player(TINY, 4),
    "batch_explorer": batch_explorer,
    "memory_explorer": memory_explorer,
    "schedule_player": lambda: schedule_player(engine_events()),
}
every_widget = pytest.mark.parametrize("make", list(EVERY.values()), ids=list(EVERY))


# --- les lecteurs pas à pas


def test_the_slot_player_steps_through_both_schedules():
    player = slot_player(TINY, 4)
    assert " ".join(text_of(player).split()) == (
        "Avant le premier pas. Statique : A, B, C et D entrent. En file : E, F, G, H et I. "
        "Continu : A, B, C et D entrent. En file : E, F, G, H et I."
    )
    seen = {png_of(player.picture.value)}
    player.controls["step"].value = 3
    assert "Après 3 pas." in text_of(player)
    assert "Statique\u202f: A finit, son slot reste vide. 2 slots vides sur 4." in text_of(player)
    assert "Continu\u202f: A finit, F prend son slot." in text_of(player)
    assert "après 3 pas sur 18" in alt_of(player.picture.value)
    seen.add(png_of(player.picture.value))
    player.controls["step"].value = 18
    assert "Le continu gagne 8 pas" in alt_of(player.picture.value)  # à la fin, la figure entière
    seen.add(png_of(player.picture.value))
    assert len(seen) == 3


def test_the_player_has_a_play_button_a_slider_and_two_buttons():
    player = slot_player(TINY, 4)
    (play,), (slider,) = parts(player, ipywidgets.Play), parts(player, ipywidgets.IntSlider)
    assert slider is player.controls["step"]
    assert (slider.min, slider.max) == (play.min, play.max) == (0, 18)
    # Le lien vit dans la page : seule sa déclaration se vérifie ici.
    (link,) = player.links
    assert (link.source, link.target) == ((play, "value"), (slider, "value"))
    back, forward = parts(player, ipywidgets.Button)
    assert (back.description, forward.description) == ("◀ pas précédent", "pas suivant ▶")
    for expected in (1, 2, 3):
        forward.click()
        assert slider.value == expected
    back.click()
    assert slider.value == 2
    assert "Après 2 pas." in text_of(player)
    slider.value = 0
    back.click()
    assert slider.value == 0
    slider.value = 18
    forward.click()
    assert slider.value == 18


def test_on_a_long_schedule_the_buttons_go_from_change_to_change():
    rng = random.Random(42)
    lengths = [rng.randint(20, 400) for _ in range(64)]
    player = slot_player(lengths, 8)
    back, forward = parts(player, ipywidgets.Button)
    assert forward.description == "changement suivant ▶"
    forward.click()
    first = player.controls["step"].value
    assert first == min(lengths[:8])
    assert "finit" in text_of(player)
    player.controls["step"].value = first + 3  # entre deux changements
    assert "Personne ne sort" in text_of(player)
    back.click()
    assert player.controls["step"].value == first
    (play,) = parts(player, ipywidgets.Play)
    assert play.max / play.step <= 100  # une lecture complète reste courte


def test_the_schedule_player_tells_each_step_of_the_engine():
    events = engine_events()
    steps = [event for event in events if isinstance(event, StepEvent)]
    player = schedule_player(events)
    slider = player.controls["step"]
    assert slider.max == len(steps)
    assert "Rien n'est encore calculé." in text_of(player)
    slider.value = 7
    assert "D est préemptée" in text_of(player)
    assert "après 7 pas sur 25" in alt_of(player.picture.value)
    with pytest.raises(ValueError, match="aucun pas"):
        schedule_player([])


# --- les explorateurs


def test_the_batch_explorer_starts_from_the_course_s_example():
    explorer = batch_explorer()
    for number in ("2\u202f837", "57\u202f%", "1\u202f804", "90\u202f%", "1,57 fois plus vite", "1\u202f033 pas de moins"):
        assert number in text_of(explorer)
    before = png_of(explorer.picture.value)
    explorer.controls["num_slots"].value = 1
    assert "1,00 fois plus vite" in text_of(explorer)
    assert png_of(explorer.picture.value) != before
    explorer.controls["num_slots"].value = 4
    explorer.controls["num_requests"].value = 4
    explorer.controls["lengths"].value = (7, 7)
    assert "28 emplacements utiles sur 28\u202f: 100\u202f%" in alt_of(explorer.picture.value)
    explorer.controls["lengths"].value = (1, 900)
    first = text_of(explorer)
    explorer.controls["seed"].value = 7
    assert text_of(explorer) != first


def test_starting_values_beyond_the_usual_range_are_kept():
    explorer = batch_explorer(num_slots=64, num_requests=300, lengths=(1, 2000), seed=1234)
    assert {name: control.value for name, control in explorer.controls.items()} == {
        "num_slots": 64,
        "num_requests": 300,
        "lengths": (1, 2000),
        "seed": 1234,
    }


def test_the_memory_explorer_gives_the_figures_of_the_sheets():
    explorer = memory_explorer()
    model, gpu = get_model("Llama 3 8B"), get_hardware("A100-80")
    count = max_num_sequences(model, kv_cache_bytes(model, gpu), 4000)
    assert count == 104
    assert f"{count} séquences de 4\u202f000 tokens en même temps" in text_of(explorer)
    assert "Un token occupe 128 Kio de cache" in text_of(explorer)
    assert "32 couches × 8 têtes KV × dimension 128 × 2 octets" in text_of(explorer)
    explorer.controls["model"].value = "Llama 2 7B"
    assert "Un token occupe 512 Kio de cache" in text_of(explorer)
    explorer.controls["kv_cache_dtype"].value = "fp8"
    assert "Un token occupe 256 Kio de cache" in text_of(explorer)
    explorer.controls["mean_length"].value = 1000
    explorer.controls["gpu_memory_utilization"].value = 0.5
    count = max_num_sequences(
        get_model("Llama 2 7B"), kv_cache_bytes(get_model("Llama 2 7B"), gpu, gpu_memory_utilization=0.5), 1000, "fp8"
    )
    assert f"{count} séquences de 1\u202f000 tokens" in text_of(explorer)
    assert "laissé libre 40,0 Go" in alt_of(explorer.picture.value)


def test_an_impossible_choice_is_explained_and_can_be_undone():
    explorer = memory_explorer()
    explorer.controls["hardware"].value = "T4"
    assert "Llama 3 8B ne laisse rien au cache sur T4\u202f: 16,1 Go de poids" in text_of(explorer)
    assert "Il manque 1,1 Go." in alt_of(explorer.picture.value)
    explorer.controls["dtype"].value = "bfloat16"
    assert "la fiche du T4 n'annonce aucun calcul en bfloat16" in text_of(explorer)
    explorer.controls["model"].value = "Qwen2.5 1.5B"
    explorer.controls["dtype"].value = "float16"
    explorer.controls["mean_length"].value = 32_000
    assert "séquences de 32\u202f000 tokens en même temps" in text_of(explorer)
    assert "Attention" not in text_of(explorer)
    explorer.controls["model"].value = "SmolLM2 135M"
    assert "SmolLM2 135M ne connaît pas de séquence de plus de 8\u202f192 tokens" in text_of(explorer)
    with pytest.raises(ConfigError, match="Machine inconnue"):
        memory_explorer(hardware="B300")
    with pytest.raises(ConfigError, match="dtype vaut 'fp4'"):
        memory_explorer(dtype="fp4")


def test_not_even_one_sequence():
    explorer = memory_explorer("T4", "Mistral 7B", mean_length=32_000, gpu_memory_utilization=1.0)
    explorer.controls["dtype"].value = "float16"
    assert "pas une seule séquence de 32\u202f000 tokens" in text_of(explorer)


def test_no_combination_raises():
    draw = memory_explorer().draw
    for hardware, model, (dtype, kv_dtype) in itertools.product(
        HARDWARE, MODELS, zip(DTYPE_BYTES, [SAME, *DTYPE_BYTES], strict=False)
    ):
        view = draw(hardware, model, dtype, kv_dtype, 4000, 0.9)
        assert view.alt
        assert view.paragraphs


def test_an_error_while_drawing_is_a_sentence():
    def draw(x):
        if x:
            raise ConfigError("x vaut 1 : donnez 0.")
        return interactive.View(None, "vide", ["Tout va bien."])

    def build(widgets):
        return {"x": widgets.IntSlider(0, 0, 1)}, [], []

    widget = interactive.Interactive(draw, {"x": 0}, build)
    widget.controls["x"].value = 1
    assert text_of(widget).strip() == "x vaut 1\u202f: donnez 0."
    widget.controls["x"].value = 0
    assert text_of(widget).strip() == "Tout va bien."


# --- ce que tous les widgets ont en commun


@every_widget
def test_only_widgets_that_exist_everywhere(make):
    allowed = {"VBox", "HBox", "HTML", "Play", "Button", "IntSlider", "IntRangeSlider", "FloatSlider", "Dropdown"}
    widget = make()
    assert {type(part).__name__ for part in tree(widget.widget)} <= allowed
    for control in widget.controls.values():
        assert control.description
        assert control.style.description_width not in (None, "")  # une description longue n'est pas coupée
        if "Slider" in type(control).__name__:
            assert not control.continuous_update  # un dessin par geste, pas un par pixel


@every_widget
def test_nothing_stays_behind(make):
    threads = threading.active_count()
    widget = make()
    widget.mime_bundle()
    assert plt.get_fignums() == []
    assert threading.active_count() == threads


@every_widget
def test_the_cell_receives_the_widget_and_a_static_figure(make):
    widget = make()
    bundle = widget.mime_bundle()
    assert bundle[VIEW] == {"version_major": 2, "version_minor": 0, "model_id": widget.widget.model_id}
    assert png_of(bundle["text/html"])
    assert bundle["text/plain"] == alt_of(bundle["text/html"])
    assert interactive.MISSING not in bundle["text/html"]


def test_the_static_figure_of_a_player_is_the_whole_schedule():
    assert slot_player(TINY, 4).figure_fallback()[1].endswith("Le continu gagne 8 pas, soit 44\u202f% du temps.")


@every_widget
def test_without_ipywidgets_the_figure_is_there_and_a_sentence_says_so(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    widget = make()
    assert widget.widget is None
    bundle = widget.mime_bundle()
    assert VIEW not in bundle
    assert bundle["text/html"].startswith(f"<p>{interactive.MISSING}</p><img alt=")
    assert png_of(bundle["text/html"])


def test_on_colab_only_the_widget_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", object())
    assert set(batch_explorer().mime_bundle()) == {"text/plain", VIEW}


def test_outside_a_notebook_only_the_text_is_displayed(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    widget = slot_player(TINY, 4)
    widget._ipython_display_()
    assert shown == [{"text/plain": widget.figure_fallback()[1]}]
    monkeypatch.setattr(interactive, "in_notebook", lambda: True)
    widget._ipython_display_()
    assert set(shown[1]) == {"text/plain", "text/html", VIEW}


# --- show


def test_show_outside_a_notebook_returns_the_text():
    figure, alt = plot_slots(static_timeline(TINY, 4))
    assert show(figure, alt) == alt


def test_show_in_a_notebook_displays_once_and_closes(monkeypatch):
    shown = []
    monkeypatch.setattr(show_module, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    figure, axes = plt.subplots()  # celle d'une personne qui emploie pyplot, et que le noyau afficherait une seconde fois
    axes.plot([1, 2])
    assert show(figure, 'Le "texte" & la suite : 5 % <vite>') is None
    (bundle,) = shown
    assert alt_of(bundle["text/html"]) == 'Le "texte" & la suite\u202f: 5\u202f% <vite>' == bundle["text/plain"]
    assert png_of(bundle["text/html"])
    assert plt.get_fignums() == []


def test_the_page_knows_the_size_of_the_image():
    assert 'width="864"' in figure_html(*plot_slots(static_timeline(TINY, 4)))  # neuf pouces à 96 pixels


def test_drawing_does_not_import_pyplot():
    script = "import sys, minibatcher.viz.widgets as w; w.batch_explorer(); print('matplotlib.pyplot' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "False", result.stderr


NOTEBOOK = """
from minibatcher.simulation.slots import static_timeline
from minibatcher.viz.show import show
from minibatcher.viz.slots import plot_slots
show(*plot_slots(static_timeline([3, 10, 5, 2], 4)))
---
from minibatcher.viz.widgets import slot_player
slot_player([3, 10, 5, 2], 4)
---
from minibatcher.viz.widgets import batch_explorer
batch_explorer(num_requests=8)
---
from minibatcher.viz.widgets import memory_explorer
explorer = memory_explorer()
explorer
---
explorer.controls["hardware"].value = "T4"
---
%matplotlib inline
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
show(figure, "Une figure vide.")
"""


def test_in_a_real_kernel():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in NOTEBOOK.split("---")])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    figure, player, batch, memory, change, own = (cell.outputs for cell in notebook.cells)
    for outputs in (figure, player, batch, memory, own):
        (output,) = outputs  # une seule sortie : ni double affichage, ni avertissement
        assert output.output_type == "display_data"
        assert png_of(output.data["text/html"])
        assert output.data["text/plain"] == alt_of(output.data["text/html"])
    assert "10 pas, 20 emplacements utiles sur 40" in figure[0].data["text/plain"]
    models = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"].state
    for outputs in (player, batch, memory):
        assert outputs[0].data[VIEW]["model_id"] in models
    assert change == []
    assert any("ne laisse rien au cache sur T4" in str(model.state.get("value")) for model in models.values())
