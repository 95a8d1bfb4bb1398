"""Vérifier une réponse hors du carnet : `minibatcher check`, pytest sur une copie, et le paquet installé sans le dépôt."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from minibatcher.course.check import checks_version, load_exercise
from minibatcher.course.places import exercise_ids

ROOT = Path(__file__).resolve().parents[1]


def run(*args, folder=None, **environment):
    command = [sys.executable, "-m", *map(str, args)]
    env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=env)


def test_cli(tmp_path):
    done = run("minibatcher.cli", "check", "ex01", "--submission", ROOT / "solutions", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "8 vérifications réussies sur 8" in done.stdout
    assert checks_version("ex01") in done.stdout
    done = run("minibatcher.cli", "check", "ex01", folder=tmp_path)
    assert done.returncode == 1
    assert "ex01 — Lot statique, lot continu : à faire" in done.stdout
    assert "copiez-le dans mes_exercices" in done.stdout
    (tmp_path / "mes_exercices").mkdir()
    shutil.copy(ROOT / "tests/exercises/wrong_answers/ex02/bits_pour_octets.py", tmp_path / "mes_exercices" / "ex02_memoire_kv.py")
    done = run("minibatcher.cli", "check", "ex02", folder=tmp_path)
    assert done.returncode == 1
    assert "Vous rendez des bits" in done.stdout
    done = run("minibatcher.cli", "check", folder=tmp_path)
    assert done.returncode == 0
    assert [line.split("  ")[:2] for line in done.stdout.splitlines()][:2] == [["ex01", "à faire"], ["ex02", "7 sur 9"]]
    done = run("minibatcher.cli", "check", folder=tmp_path, MINIBATCHER_EXERCICES=ROOT / "solutions")
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [[exercise_id, "réussi"] for exercise_id in exercise_ids()]
    for args, said in [
        (["ex99"], "ex01, ex02"),
        (["ex01", "--submission", "nulle/part"], "nulle/part n'existe pas"),
        (["ex01", "--submission", "mes_exercices"], "ex01_batching.py n'est pas dans mes_exercices"),
        (["--submission", "mes_exercices/ex02_memoire_kv.py"], "dites quel exercice"),
        (["ex01", "ex02"], "arguments inconnus"),
    ]:
        done = run("minibatcher.cli", "check", *args, folder=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_pytest_checks_a_submission(tmp_path):
    copy = tmp_path / "rendu é"
    copy.mkdir()
    shutil.copy(ROOT / "tests/exercises/wrong_answers/ex01/pourcentage.py", copy / "ex01_batching.py")
    (copy / "conftest.py").write_text("raise SystemExit('exécuté')")
    (tmp_path / "torch.py").write_text("raise ImportError('vérifier une copie ne demande pas torch')")
    pytest_arguments = ("pytest", ROOT / "tests/exercises", "--submission", copy, "-p", "no:cacheprovider")
    done = run(*pytest_arguments, folder=ROOT, PYTHONPATH=tmp_path)
    assert done.returncode == 1
    assert "4 passed" in done.stdout
    assert f"{sum(len(load_exercise(exercise_id).checks) for exercise_id in exercise_ids()) - 4} failed" in done.stdout
    assert "skipped" not in done.stdout
    assert "Vous rendez un pourcentage" in done.stdout
    assert "ex02_memoire_kv.py est absent" in done.stdout
    assert "Traceback" not in done.stdout
    done = run("pytest", ROOT / "tests/exercises", "--submission", tmp_path / "absent", folder=ROOT)
    assert done.returncode == 4
    assert "n'est pas un dossier" in done.stderr


def test_the_wheel_has_the_checks_and_not_the_solutions(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("minibatcher", "tests", "exercises", "solutions"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "data"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # Sans setuptools ici, pip va le chercher sur PyPI.
    offline = ["--no-build-isolation"] if importlib.util.find_spec("setuptools") else []
    done = run("pip", "wheel", "--quiet", "--no-deps", *offline, "--wheel-dir", tmp_path, source)
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "installed"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(installed)
        names = wheel.namelist()
    solution_texts = {path.read_bytes() for path in (ROOT / "solutions").glob("*.py")}
    assert not [name for name in names if "solution" in name or "wrong" in name or "conftest" in name]
    assert not [name for name in names if (installed / name).read_bytes() in solution_texts]
    script = (
        "import minibatcher.course.checks.check_ex01 as c; from minibatcher.course import exercises, places\n"
        "print(c.__file__); print(exercises.cell_source('ex01')[:4], places.exercise_ids(), places.repository())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(installed)}
    )
    assert done.stdout.splitlines() == [
        str(installed / "minibatcher/course/checks/check_ex01.py"),
        f"def  {exercise_ids()} None",
    ], done.stderr
    done = run("minibatcher.cli", "check", "ex02", folder=tmp_path, PYTHONPATH=installed)
    assert done.returncode == 1
    assert "à faire" in done.stdout
    done = run("minibatcher.cli", "check", "ex02", "--submission", ROOT / "solutions", folder=tmp_path, PYTHONPATH=installed)
    assert done.returncode == 0
    assert checks_version("ex02").partition("+")[2] in done.stdout
