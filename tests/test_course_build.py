"""Des sources aux carnets : ce que la construction ajoute, ce qu'elle refuse, et ce qui ne doit pas bouger."""

from dataclasses import replace

import nbformat
import pytest

from minibatcher.course import build
from minibatcher.course.cite import cite
from minibatcher.course.publication import read_publication
from minibatcher.course.source import BuildError
from notebooks import sample

POP_LINE = sample.SOURCE.split("\n").index("# minibatcher/queue.py::Queue.pop") + 1


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("minibatcher.course.exercises.blanks_folder", lambda: tmp_path / "exercises")
    return sample.make_course(tmp_path)


def notebook(root, lesson=sample.SECOND):
    return build.build_notebook(root, lesson, sample.LESSONS)


def with_source(root, old, new):
    sample.make_course(root, sample.SOURCE.replace(old, new, 1))
    assert old in sample.SOURCE
    return root


def test_a_notebook_holds_everything(course):
    cells = notebook(course).cells
    by_tag = {tag: cell for cell in cells for tag in cell.metadata.get("tags", [])}
    assert by_tag["mise-en-place"].source.endswith("doctor.summary()")
    assert "%load_ext minibatcher.course" in by_tag["mise-en-place"].source
    assert by_tag["cite"].source.count("**Dans le paquet** — `minibatcher/queue.py`") == 2
    assert "```python\n# Le plus court d'abord.\n@functools.cache\ndef shortest(" in by_tag["cite"].source
    assert '```python\ndef pop(self) -> int:\n    """Le premier."""\n    return 1\n```' in by_tag["cite"].source
    assert by_tag["exercice"].source.startswith("%%exercice ex01\ndef longest(")
    assert "généré" not in by_tag["exercice"].source
    navigation = cells[-1].source
    assert "[00 — Bonjour](00_accueil.ipynb)" in navigation
    assert "02 — La suite (à paraître)" in navigation
    assert all("colab" not in cell.source.lower() for cell in cells if cell.cell_type == "markdown"), "pas d'adresse, pas de badge"
    assert cells[0].source.count("\u00a0:") == 1, "les espaces deviennent insécables à la construction"


def test_the_file_is_clean_and_always_the_same(course):
    text = build.notebook_text(notebook(course))
    assert text == build.notebook_text(notebook(course))
    parsed = nbformat.reads(text, as_version=4)
    nbformat.validate(parsed)
    assert (parsed.nbformat, parsed.nbformat_minor) == (4, 5)
    assert all(cell.outputs == [] and cell.execution_count is None for cell in parsed.cells if cell.cell_type == "code")
    assert parsed.metadata.kernelspec.name == "python3"
    assert "accelerator" not in parsed.metadata
    gpu = build.build_notebook(course, sample.with_gpu(sample.FIRST), (sample.with_gpu(sample.FIRST), sample.SECOND))
    assert gpu.metadata["accelerator"] == "GPU"
    assert gpu.metadata["colab"] == {"gpuType": "T4"}


def test_an_edit_leaves_other_ids_alone(course):
    before = [cell.id for cell in notebook(course).cells]
    assert len(set(before)) == len(before)
    root = with_source(course, "# **Dans ce carnet** : la file.", "# **Dans ce carnet** : la file d'attente.")
    assert [a == b for a, b in zip(before, [cell.id for cell in notebook(root).cells], strict=True)].count(False) == 1
    root = with_source(course, '# %% tags=["mise-en-place"]', '# %%\n"nouvelle"\n\n# %% tags=["mise-en-place"]')
    after = [cell.id for cell in notebook(root).cells]
    assert [one for one in after if one in before] == before
    assert len(after) == len(before) + 1


def test_the_badge_follows_the_address(tmp_path, course):
    sample.make_course(course, address="https://github.com/quelqu-un/minibatcher")
    cells = notebook(course).cells
    url = "https://colab.research.google.com/github/quelqu-un/minibatcher/blob/v1.2.3/notebooks/01_file.ipynb"
    assert cells[0].source.endswith(f"({url})")
    setup = next(cell.source for cell in cells if cell.id == "mise-en-place")
    assert 'ADDRESS = "git+https://github.com/quelqu-un/minibatcher@v1.2.3"' in setup
    sample.make_course(course, address="https://exemple.org/depot")
    assert notebook(course).cells[0].source.startswith("# Une file"), "Colab n'ouvre que GitHub"
    for wrong in ("github.com/a/b", "https://github.com/a/b/", 'https://a"b'):
        (course / "pyproject.toml").write_text(f"[project]\nversion = '1'\n[project.urls]\nRepository = '{wrong}'\n")
        with pytest.raises(BuildError, match="Repository"):
            read_publication(course)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("queue.py::shortest", "absent.py::shortest", r"01_file.py, ligne \d+ : le fichier cité « minibatcher/absent.py »"),
        (
            "# minibatcher/queue.py::Queue.pop",
            "# minibatcher/queue.py::Queue.push",
            rf"ligne {POP_LINE} : « Queue.push ».*On y trouve : pop",
        ),
        ("queue.py::shortest", "queue.py::longest", "On y trouve : CAPACITY, shortest, Queue"),
        ("minibatcher/queue.py::shortest", "../ailleurs.py", "n'existe pas"),
        ("\nex01\n", "\nex02\n", r"ligne \d+ : exercice « ex02 » ; pour ce carnet, lessons.py annonce ex01"),
        ('tags=["mesure"]', 'tags=["mesures"]', "étiquette inconnue « mesures »"),
        ("# %% [markdown]\n# # Une file", "print(1)\n# %% [markdown]\n# # Une file", "tout le texte doit suivre"),
        (
            "# minibatcher/queue.py::shortest\n# minibatcher/queue.py::Queue.pop",
            "#",
            "ne cite rien",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(course, old, new, expected):
    with pytest.raises(BuildError, match=expected):
        notebook(with_source(course, old, new))


def test_a_missing_exercise_is_named(course):
    (course / "exercises" / "ex01_file.py").unlink()
    with pytest.raises(BuildError, match=r"01_file.py, ligne \d+ : .*ex01"):
        notebook(course)


def test_cite_takes_constants_and_whole_files(course):
    assert cite(course, "minibatcher/queue.py::CAPACITY") == "# Assez pour tout le monde.\nCAPACITY = 8"
    assert cite(course, "minibatcher/queue.py") == sample.QUEUE.strip("\n")


def test_check_names_stale_notebooks(course, capsys):
    assert build.main(["--check"], course, sample.LESSONS) == 1
    assert "00_accueil.ipynb : pas encore construit" in capsys.readouterr().err
    assert build.main([], course, sample.LESSONS) == 0
    assert build.main(["--check"], course, sample.LESSONS) == 0
    built = course / "notebooks" / "01_file.ipynb"
    queue = course / "minibatcher" / "queue.py"
    queue.write_text(queue.read_text().replace("min(", "max("))
    (course / "notebooks" / "99_orphelin.ipynb").write_text("{}")
    capsys.readouterr()
    assert build.main(["--check"], course, sample.LESSONS) == 1
    error = capsys.readouterr().err
    assert "01_file.ipynb : ne correspond plus à sa source ou au code qu'il cite" in error
    assert "99_orphelin.ipynb : aucune source" in error
    assert "00_accueil" not in error
    assert "min(" in built.read_text(encoding="utf-8"), "--check n'écrit rien"


def test_sources_and_list_agree(course, capsys):
    draft = (sample.FIRST, replace(sample.SECOND, written=False), sample.THIRD)
    assert build.main([], course, draft) == 2
    assert "mettez written=True" in capsys.readouterr().err
    assert build.main([], course, (*sample.LESSONS[:2], replace(sample.THIRD, written=True))) == 2
    assert "il manque 02_suite" in capsys.readouterr().err
    assert build.main([], course, (sample.FIRST,)) == 2
    assert "ne figure pas" in capsys.readouterr().err
