"""Le diagnostic de la machine : ce qu'il voit, ce qu'il conseille, ce qu'il n'importe pas ; le glossaire et la carte du cours."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from minibatcher.course import doctor, glossary, lessons, tables
from minibatcher.course.gpu import Gpu, find_gpu
from minibatcher.model import embedded

ROOT = Path(__file__).resolve().parents[1]
LESSON = lessons.Lesson("07_essai", "Essai", "Un essai.", needs=("numpy", "torch"), written=True)


@pytest.fixture
def without(monkeypatch):
    """`without("torch", …)` : comme si ces paquets n'étaient pas installés."""

    def hide(*packages):
        monkeypatch.setattr(doctor, "installed", lambda name: None if name in packages else "1.0")

    return hide


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """Un faux `nvidia-smi`, seul programme du PATH."""

    def install(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def item(name):
    return next(one for one in doctor.diagnose().items if one.name == name)


def test_the_command_says_it_all():
    done = subprocess.run([sys.executable, "-m", "minibatcher.cli", "doctor"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for expected in (
        "✓  Python",
        "numpy",
        "GPU",
        "mémoire vive",
        "disque libre",
        "modèle embarqué",
        "dossier de travail",
        "00_accueil",
    ):
        assert expected in done.stdout
    assert "à paraître" in done.stdout


def test_looking_imports_nothing_heavy(monkeypatch, tmp_path):
    script = "import sys\nfrom minibatcher.course.doctor import diagnose\nstr(diagnose())\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert not {"torch", "numpy", "transformers", "matplotlib", "IPython"} & set(done.stdout.split())


def test_python_bounds_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low, high = doctor.PYTHON_MIN, doctor.PYTHON_MAX
    assert project["requires-python"] == f">={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"


def test_only_what_is_vital_stops_the_course(without, capsys):
    without(*doctor.PACKAGES, *doctor.SERVER_PACKAGES)
    assert not doctor.diagnose().can_run
    assert doctor.run_doctor(None) == 1
    assert "ne peut pas tourner ici : pip install" in capsys.readouterr().out
    without(*[name for name in doctor.PACKAGES if name != "numpy"], *doctor.SERVER_PACKAGES)
    assert doctor.run_doctor(None) == 0
    torch = item("torch")
    assert (torch.ok, torch.value) == (False, "absent")
    assert torch.fix.startswith('pip install "torch')


def test_an_old_python_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "PYTHON_MIN", (3, 99))
    assert not doctor.diagnose().can_run


def test_install_commands_follow_the_project(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: ['torch>=2.10; extra == "model"', "torchvision>=1"])
    assert doctor.install_command("torch") == 'pip install "torch>=2.10"'
    assert doctor.install_command("autre") == 'pip install "autre"'


def test_what_becomes_of_a_lesson(without):
    gpu = Gpu("T4", 15, "7.5")
    without()
    assert doctor.verdict(LESSON, None).state == "complet"
    useful = replace(LESSON, gpu="utile", without_gpu="lent")
    assert doctor.verdict(useful, gpu).state == "complet"
    assert doctor.verdict(useful, None) == doctor.Verdict(useful, "réduit", ("sans GPU, lent",))
    assert doctor.verdict(useful, replace(gpu, problem="pilote trop vieux")).state == "réduit"
    assert doctor.verdict(replace(LESSON, gpu="nécessaire"), None).state == "impossible"
    assert doctor.verdict(replace(LESSON, gpu="nécessaire"), gpu).state == "complet"
    assert doctor.verdict(replace(LESSON, written=False), gpu).state == "à paraître"
    without("ipywidgets")
    verdict = doctor.verdict(LESSON, None)
    assert (verdict.state, verdict.reasons) == ("réduit", ("sans ipywidgets, des figures fixes à la place des widgets",))
    without("torch")
    verdict = doctor.verdict(LESSON, None)
    assert verdict.state == "impossible"
    assert "il manque torch" in verdict.reasons[0]
    assert 'pip install "torch' in verdict.reasons[1]


def test_the_gpu_is_read_from_its_driver(nvidia_smi, monkeypatch):
    monkeypatch.setattr("minibatcher.course.gpu._torch_problem", lambda: "")
    nvidia_smi("echo 'Tesla T4, 15360, 7.5'")
    assert find_gpu() == Gpu("Tesla T4", 15, "7.5")
    assert item("GPU").value == "Tesla T4, 15 Gio, sm_75"
    nvidia_smi("echo 'No devices were found'; exit 6")
    assert find_gpu() is None
    nvidia_smi("echo 'No devices were found'")
    assert find_gpu() is None
    assert item("GPU").value == "aucun"
    assert "GPU T4" in item("GPU").fix


def test_a_gpu_that_torch_ignores_is_said(nvidia_smi):
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch voit un GPU ici")
    nvidia_smi("echo 'Tesla T4, 15360, 7.5'")
    gpu = find_gpu()
    assert not gpu.usable
    assert "ne voit pas ce GPU" in item("GPU").fix


def test_the_embedded_model_is_found_where_it_is_put(monkeypatch, tmp_path):
    monkeypatch.setenv("MINIBATCHER_CACHE", str(tmp_path))
    assert item("modèle embarqué").value == "pas encore téléchargé"
    folder = tmp_path / f"smollm2-135m-instruct-v{embedded.FORMAT_VERSION}"
    folder.mkdir()
    assert embedded.ensure_embedded_model() == folder, "doctor et le chargement doivent regarder le même dossier"
    assert item("modèle embarqué").ok


def test_little_room_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "MIN_DISK_GIB", 10**9)
    monkeypatch.setattr(doctor, "MIN_MEMORY_GIB", 10**9)
    assert not item("disque libre").ok
    assert not item("mémoire vive").ok
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "protégé" in item("dossier de travail").fix
    assert doctor.diagnose().can_run


def test_the_summary_names_versions_and_lessons(without):
    rows = dict(doctor.summary().rows)
    assert list(rows)[:8] == ["Python", "minibatcher", "numpy", "torch", "triton", "transformers", "ipywidgets", "GPU"]
    without("ipywidgets")
    rows = dict(doctor.summary().rows)
    assert rows["ipywidgets"] == "absent"
    assert "ipywidgets" in rows["carnets réduits"]


def test_tables_show_text_and_html():
    table = tables.Table("Un <titre> :", ("a", "b"), (("`x < y`", "quoi ?"),))
    assert "<code>x &lt; y</code>" in table._repr_html_()
    assert "Un &lt;titre&gt;\u00a0:" in table._repr_html_()
    assert str(table).splitlines()[-1] == "x < y  quoi\u202f?"


def test_glossary():
    terms = glossary.load_glossary()
    assert len(terms) >= 50
    assert {term.lesson for term in terms} <= {lesson.number for lesson in lessons.LESSONS}
    assert all(term.definition.endswith(".") and term.definition.count(". ") == 0 for term in terms), "une phrase"
    rows = glossary.glossary_table(("00", "01")).rows
    assert {row[3] for row in rows} == {"00", "01"}
    assert {"prefill", "ordonnanceur", "batching", "slots"} <= glossary.glossary_words()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[term]]\nfr = "a"\n', "entrée 1 : il faut les textes fr, en, definition, lesson"),
        ('[[term]]\nfr = "a"\nen = "a"\ndefinition = "D."\nlesson = 1\n', "entrée 1"),
        ('[[term]]\nfr = "a"\nen = "a"\ndefinition = "D."\nlesson = "01"\n' * 2, "entrée 2 : « a » y est déjà"),
        ("[[term", "illisible"),
    ],
)
def test_a_broken_glossary_is_refused(tmp_path, text, expected):
    path = tmp_path / "glossary.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(glossary.GlossaryError, match=expected):
        glossary.load_glossary(path)


def test_the_map_lists_every_lesson():
    assert [row[0] for row in lessons.course_map().rows] == [f"`{lesson.id}`" for lesson in lessons.LESSONS]
    assert "minibatcher check ex01" in str(lessons.exercise_table())
