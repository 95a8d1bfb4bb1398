"""Les contrôles des carnets savent échouer : un cours en miniature en règle, puis chaque défaut, un par un."""

import pytest
from nbformat import v4

from minibatcher.course import build
from minibatcher.course.publication import Publication
from minibatcher.course.source import read_source
from notebooks import execute, links, progression, sample, structure

MODULES = {"queue", "later", "request", "serving.llm", "viz.show", "errors"}


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("minibatcher.course.exercises.blanks_folder", lambda: tmp_path / "exercises")
    return sample.make_course(tmp_path)


def broken(root, old, new, count=1):
    assert old in sample.SOURCE
    return sample.make_course(root, sample.SOURCE.replace(old, new, count))


def cells(root):
    return read_source(root / "notebooks" / "sources" / "01_file.py")


def notebook(root, lesson=sample.SECOND):
    return build.build_notebook(root, lesson, sample.LESSONS)


# Forme


def test_the_sample_is_in_order(course):
    assert structure.structure_problems(sample.SECOND, cells(course)) == []
    measured = structure.rhythm(cells(course), notebook(course))
    assert (measured.predictions, measured.median_code, measured.longest_code) == (4, 1, 2)
    assert measured.row().count("!") == 2, "trop peu de cellules, cellules trop courtes"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("# # Une file", "# # Un tas", "lessons.py dit « Une file »"),
        ("# # Une file", "# Une file", "la première cellule"),
        ("Dans ce carnet", "Aujourd'hui", "ouverture « Dans ce carnet »"),
        ('# %% tags=["mise-en-place"]', "# %%\n0", "mise-en-place"),
        ('# %% tags=["mise-en-place"]', '# %%\n0\n\n# %% tags=["mise-en-place"]', "avant tout autre code"),
        ("## À retenir", "## Bravo", "le titre « À retenir »"),
        ("## Ce que nous avons construit", "## Bravo", "le titre « Ce que nous avons construit »"),
        ("> **Prédisez.**", "> **Devinez.**", "3 « > **Prédisez… » ; il en faut 4"),
        (
            "# %% [markdown]\n# ## Ce",
            "# %% [markdown]\n# > **Prédisez.** Quoi ?\n\n# %% [markdown]\n# ## Ce",
            "« Prédisez » sans vérification",
        ),
        ('print("une durée")', "\n".join(["1"] * 26), "26 lignes de code"),
        ('print("une durée")', "", "0 lignes de code"),
        ('print("une durée")', "x" * 133, "ligne de 133 caractères"),
        ('print("une durée")', "!sleep 9 &", "arrière-plan"),
        ("# Elle avance.", "# " + "mot " * 2000, "mots ; 2000 au plus"),
        ('# %% tags=["exercice"]\nex01', "# %%\n1", "0 cellule d'exercice ; lessons.py en annonce 1"),
    ],
)
def test_structure_guard(course, old, new, expected):
    problems = structure.structure_problems(sample.SECOND, cells(broken(course, old, new)))
    assert any(expected in problem for problem in problems), problems


def test_leftovers_guard(course):
    clean = notebook(course)
    assert structure.leftovers(clean) == []
    clean.metadata["widgets"] = {}
    code = next(cell for cell in clean.cells if cell.cell_type == "code")
    code.execution_count = 1
    code.outputs = [v4.new_output("stream", text="bonjour")]
    assert [problem.partition(" : ")[2] or problem for problem in structure.leftovers(clean)] == [
        "état de widgets dans les métadonnées",
        "sorties enregistrées",
        "numéro d'exécution enregistré",
    ]


# Progression


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("from minibatcher.later import x", "importe minibatcher.later, que construit 02_suite"),
        ("import minibatcher.later as later", "importe minibatcher.later"),
        ("from minibatcher import later", "importe minibatcher.later"),
        ("from minibatcher import LLM", "importe minibatcher.serving.llm, que construit aucun carnet"),
        ("import minibatcher\nminibatcher.LLM", "importe minibatcher.serving.llm"),
        ("if True:\n    from minibatcher.request import Request", "importe minibatcher.request"),
        ("from minibatcher.serving import llm", "importe minibatcher.serving.llm"),
        ("1 +", "ce n'est pas du Python"),
    ],
)
def test_import_guard(course, statement, expected):
    assert progression.import_problems(sample.SECOND, sample.LESSONS, notebook(course), MODULES) == []
    problems = progression.import_problems(
        sample.SECOND, sample.LESSONS, notebook(broken(course, 'print("une durée")', statement)), MODULES
    )
    assert len(problems) == 1
    assert expected in problems[0]


def test_import_guard_lets_tools_pass(course):
    statement = "%matplotlib inline\nfrom minibatcher.viz import show\nfrom minibatcher.course import doctor\nx = 7 % 3\n!ls"
    root = broken(course, 'print("une durée")', statement)
    assert progression.import_problems(sample.SECOND, sample.LESSONS, notebook(root), MODULES) == []


def test_citation_guard(course):
    cited = {"00_accueil": set(), "01_file": progression.cited_modules(cells(course))}
    assert cited["01_file"] == {"queue"}
    assert progression.citation_problems(sample.LESSONS, cited) == []
    assert progression.citation_problems(sample.LESSONS, {"01_file": set()}) == [
        "01_file construit minibatcher.queue sans le citer"
    ]
    cited["00_accueil"] = {"queue"}
    assert progression.citation_problems(sample.LESSONS, cited) == ["00_accueil cite minibatcher.queue, que construit 01_file"]


def test_explanation_guard():
    assert progression.unexplained_modules(sample.LESSONS, {"queue", "later", "viz.slots", "course.build", "cli"}) == []
    problems = progression.unexplained_modules((sample.SECOND, sample.SECOND), {"engine"})
    assert problems == [
        "lessons.py, 01_file : le module minibatcher.queue n'existe pas",
        "lessons.py, 01_file : le module minibatcher.queue n'existe pas",
        "minibatcher.engine n'est construit par aucun carnet de lessons.py",
        "minibatcher.queue est construit par 01_file, 01_file",
    ]


# Liens


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[x](absent.ipynb)", "fichier qui n'existe pas"),
        ("[x](../absent.md)", "fichier qui n'existe pas"),
        ("[x](02_suite.ipynb)", "fichier qui n'existe pas"),
        ("[x](00_accueil.ipynb#Rien)", "titre qui n'existe pas"),
        ("[x](#Rien)", "titre qui n'existe pas"),
        ("[x](http://exemple.org)", "seuls les liens https"),
        ('<a href="absent.ipynb">x</a>', "fichier qui n'existe pas"),
        ("[x](https://colab.research.google.com/github/a/b)", "Colab"),
        ("![](../minibatcher/queue.py)", "sans texte alternatif"),
    ],
)
def test_link_guard(course, link, expected):
    publication = Publication("", "1")

    def problems(root):
        both = {lesson.id: notebook(root, lesson) for lesson in sample.LESSONS[:2]}
        return links.link_problems("01_file", both, root / "notebooks", publication)

    assert problems(course) == []
    good = "[x](00_accueil.ipynb#À-retenir) [y](#Ce-que-nous-avons-construit) [z](../pyproject.toml) ![la file](../pyproject.toml)"
    assert problems(broken(course, "# Elle avance.", f"# {good}")) == []
    found = problems(broken(course, "# Elle avance.", f"# {link}"))
    assert len(found) == 1
    assert expected in found[0]


# Exécution


def code_notebook(*sources, tags=()):
    return v4.new_notebook(cells=[v4.new_code_cell(source, metadata={"tags": list(tags)}) for source in sources])


def run(folder, *sources, tags=(), timeout=60):
    return execute.run_notebook(code_notebook(*sources, tags=tags), "01_file", folder, timeout=timeout)


def test_a_failing_cell_is_named(tmp_path):
    with pytest.raises(execute.NotebookFailure, match=r"01_file, cellule 2 sur 3 .* lève ZeroDivisionError") as caught:
        run(tmp_path, "1", "x = 1 / 0", "2")
    assert "    x = 1 / 0" in str(caught.value)


def test_an_endless_cell_is_stopped(tmp_path):
    with pytest.raises(execute.NotebookFailure, match=r"01_file, cellule 1 sur 1 .* n'a pas fini en 3 s"):
        run(tmp_path, "while True: pass", timeout=3)


def test_a_dead_kernel_is_named(tmp_path):
    with pytest.raises(execute.NotebookFailure, match=r"01_file, cellule 2 sur 2 .* a perdu son noyau"):
        run(tmp_path, "1", "import os; os._exit(0)")


def test_changing_outputs_and_stray_writes_are_seen(tmp_path):
    stray = tmp_path / "ailleurs" / "fichier.txt"
    stray.parent.mkdir()
    sources = ("import os; print(os.urandom(8))", "object()", "6 * 7", f"open('ici.txt', 'w'); open({str(stray)!r}, 'a')")
    first, second = (run(tmp_path / "noyau" / name, *sources) for name in ("un", "deux"))
    assert [text.partition(" (")[0] for text in execute.differences(first, second)] == ["cellule 1", "cellule 2"]
    assert first.strays == [str(stray)]
    assert (tmp_path / "noyau" / "un" / "notebooks" / "ici.txt").exists()
    assert run(tmp_path / "noyau" / "trois", sources[0], tags=["mesure"]).outputs == []
