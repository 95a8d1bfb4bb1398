"""Les contrôles des carnets : chacun construit, exécuté, relu. `-k 01` ne garde qu'un carnet, `-k runs` que les exécutions.

Les contrôles eux-mêmes sont dans tests/notebooks ; tests/test_guards.py montre que chacun sait échouer.
"""

import functools
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from minibatcher.course import build, exercises
from minibatcher.course.glossary import load_glossary
from minibatcher.course.lessons import LESSONS
from minibatcher.course.publication import read_publication
from minibatcher.course.source import read_source
from minibatcher.course.typography import check_typography, fix_typography
from notebooks import execute, links, progression, spelling, structure

ROOT = Path(__file__).resolve().parents[1]
PRESENT = [lesson for lesson in LESSONS if build.source_path(ROOT, lesson).is_file()]
each_lesson = pytest.mark.parametrize("lesson", [pytest.param(lesson, id=lesson.id) for lesson in PRESENT])


MODULES = progression.package_modules(ROOT / "minibatcher")


@functools.cache
def cells_of(name):
    return read_source(ROOT / "notebooks" / "sources" / f"{name}.py")


@functools.cache
def notebook_of(name):
    return build.build_notebook(ROOT, next(lesson for lesson in PRESENT if lesson.id == name))


def report(problems):
    if problems:
        pytest.fail("\n".join(map(str, problems)), pytrace=False)


def test_the_sources_are_the_written_lessons():
    build.check_sources(ROOT)


def test_notebooks_are_up_to_date():
    report(build.stale_notebooks(ROOT))


def test_exercises_are_up_to_date_and_tell_nothing():
    report(exercises.problems())


@each_lesson
def test_runs_twice_the_same(lesson, tmp_path_factory):
    python = os.environ.get("MINIBATCHER_NOTEBOOK_PYTHON", sys.executable)
    text, folder = build.notebook_text(notebook_of(lesson.id)), tmp_path_factory.mktemp(lesson.id) / "essai"
    runs, problems = [], []
    try:
        for _ in range(2):
            shutil.rmtree(folder, ignore_errors=True)
            runs.append(execute.run_notebook(execute.read(text), lesson.id, folder, python))
            problems += [f"{lesson.id} écrit hors de son dossier : {path}" for path in runs[-1].strays]
        problems += execute.differences(*runs)
    except execute.NotebookFailure as failure:
        problems.append(str(failure))
    report(problems)


@each_lesson
def test_imports_follow_the_course(lesson):
    report(progression.import_problems(lesson, LESSONS, notebook_of(lesson.id), MODULES))


def test_every_core_module_has_its_lesson():
    report(progression.unexplained_modules(LESSONS, MODULES))


def test_lessons_cite_what_they_build():
    report(progression.citation_problems(LESSONS, {one.id: progression.cited_modules(cells_of(one.id)) for one in PRESENT}))


@each_lesson
def test_structure(lesson):
    report(structure.structure_problems(lesson, cells_of(lesson.id)))


def test_rhythm_is_shown(capsys):
    rows = [one.id.ljust(26) + structure.rhythm(cells_of(one.id), notebook_of(one.id)).row() for one in PRESENT]
    with capsys.disabled():
        print("\n\n" + "\n".join([structure.HEADER, *rows]) + "\n« ! » : hors du rythme visé (programme du cours).")
    assert len(rows) == len(PRESENT)


@each_lesson
def test_links(lesson):
    notebooks = {one.id: notebook_of(one.id) for one in PRESENT}
    report(links.link_problems(lesson.id, notebooks, ROOT / "notebooks", read_publication(ROOT)))


def test_files_hold_no_output():
    problems = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        problems += [f"{path.name} : {problem}" for problem in structure.leftovers(json.loads(path.read_text(encoding="utf-8")))]
    report(problems)


@each_lesson
def test_typography(lesson):
    problems = [
        f"{cell.path.name}, {problem}"
        for cell in cells_of(lesson.id)
        if cell.is_prose
        for problem in check_typography(fix_typography(cell.text), cell.line)
    ]
    report(problems)


def course_texts():
    """Les textes du cours qui ne sont pas dans les carnets : le glossaire et la liste des carnets."""
    texts = [(f"glossary.toml, « {term.fr} »", 1, term.definition) for term in load_glossary()]
    return texts + [(f"lessons.py, {one.id}", 1, f"{one.title}. {one.purpose} {one.without_gpu}. {one.task}") for one in LESSONS]


def test_typography_of_the_course_texts():
    report([f"{name} : {problem}" for name, _, text in course_texts() for problem in check_typography(fix_typography(text))])


def test_spelling():
    if reason := spelling.missing_hunspell():
        assert not spelling.tools_required(), reason
        pytest.skip(reason)
    prose = [(cell.path.name, cell.line, cell.text) for one in PRESENT for cell in cells_of(one.id) if cell.is_prose]
    report(spelling.misspelled(prose + course_texts()))
