"""Les exercices : la solution passe, l'exercice vide est à faire, chaque erreur fréquente est prise et nommée."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from minibatcher.course import exercises, places
from minibatcher.course.check import checks_version, load_exercise, run_checks
from minibatcher.course.places import blanks_folder, exercise_ids, solutions_folder
from minibatcher.course.report import Status

ROOT = Path(__file__).resolve().parents[1]
WRONG = sorted((ROOT / "tests" / "exercises" / "wrong_answers").glob("*/*.py"))
each_exercise = pytest.mark.parametrize("exercise", [pytest.param(load_exercise(name), id=name) for name in exercise_ids()])


@each_exercise
def test_the_solution_passes(exercise):
    report = run_checks(exercise.id, solutions_folder() / exercise.file)
    assert report.passed, report
    assert report.score == 1
    assert [result.name for result in report.results] == [check.name for check in exercise.checks]


@each_exercise
def test_the_blank_is_to_do(exercise):
    report = run_checks(exercise.id, blanks_folder() / exercise.file)
    assert {result.status for result in report.results} == {Status.TODO}
    assert (report.passed, report.score, report.status) == (False, 0, Status.TODO)
    assert report.headline.endswith("à faire")


@pytest.mark.parametrize("path", WRONG, ids=[f"{path.parent.name}-{path.stem}" for path in WRONG])
def test_a_wrong_answer_is_caught_and_named(path):
    source = path.read_text(encoding="utf-8")
    expected = [line.partition(" : ")[2] for line in source.splitlines() if line.startswith("# Retour : ")]
    assert source.startswith("# Erreur : ")
    assert expected, "dites quel retour est attendu"
    report = run_checks(path.parent.name, path)
    assert not report.passed
    assert Status.ERROR not in {result.status for result in report.results}, report
    for text in expected:
        assert text in report.to_text()
        assert text in report._repr_html_().replace("\u00a0", " ").replace("\u202f", " ")


def test_there_are_enough_wrong_answers():
    counts = {exercise_id: sum(path.parent.name == exercise_id for path in WRONG) for exercise_id in exercise_ids()}
    assert all(count >= 8 for count in counts.values()), counts


def answer_with(exercise, name, function):
    """La solution, sauf la fonction `name`."""
    module = ModuleType("reponse")
    exec((solutions_folder() / exercise.file).read_text(encoding="utf-8"), vars(module))
    setattr(module, name, lambda *args: function(*args))
    return module


MISCONCEPTIONS = [
    pytest.param(exercise, name, misconception, id=f"{exercise.id}-{name}-{number}")
    for exercise in map(load_exercise, exercise_ids())
    for name, misconceptions in exercise.misconceptions.items()
    for number, misconception in enumerate(misconceptions)
]


@pytest.mark.parametrize(("exercise", "name", "misconception"), MISCONCEPTIONS)
def test_each_misconception_is_named_for_what_it_is(exercise, name, misconception):
    report = run_checks(exercise.id, answer_with(exercise, name, misconception.function))
    named = {result.misconception for result in report.results} - {""}
    assert named == {misconception.text}


@each_exercise
def test_the_report_never_shows_the_solution(exercise):
    source = (solutions_folder() / exercise.file).read_text(encoding="utf-8")
    for path in [path for path in WRONG if path.parent.name == exercise.id]:
        report = run_checks(exercise.id, path)
        for shown in (report.to_text(), report._repr_html_(), str(report.to_dict())):
            assert exercises.leaked_lines(source, shown) == []


def test_the_report_counts_and_serialises():
    report = run_checks("ex01", ROOT / "tests/exercises/wrong_answers/ex01/pourcentage.py")
    assert (report.num_passed, len(report.results), report.score) == (4, 8, 0.5)
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["exercise"], data["passed"], data["version"]) == ("ex01", False, checks_version("ex01"))
    assert [check["status"] for check in data["checks"]].count("réussi") == 4
    html = report._repr_html_()
    assert html.count("✓") == 4
    assert html.count("✗") == 4
    assert "<details" in html
    text = report.to_text()
    assert "batching_statique([3, 10, 5, 2], 4)" in text
    assert "attendu    utilisation = 0.5" in text
    assert "obtenu     utilisation = 50.0" in text


def test_the_version_follows_the_checks(tmp_path, monkeypatch):
    before = checks_version("ex01")
    shutil.copytree(places.checks_folder(), tmp_path / "checks")
    monkeypatch.setattr("minibatcher.course.check.checks_folder", lambda: tmp_path / "checks")
    assert checks_version("ex01") == before
    (tmp_path / "checks" / "check_ex01.py").write_bytes(
        (tmp_path / "checks" / "check_ex01.py").read_bytes().replace(b"\n", b"\r\n")
    )
    assert checks_version("ex01") == before, "les fins de ligne de Windows ne changent rien"
    with (tmp_path / "checks" / "mistakes_ex01.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert checks_version("ex01") != before
