"""La cellule `%%exercice`, dans un vrai shell IPython et dans un vrai noyau."""

import os
import sys
from pathlib import Path

import pytest

from minibatcher.course.places import blanks_folder, solutions_folder

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

SOLUTION = (solutions_folder() / "ex01_batching.py").read_text(encoding="utf-8")
BLANK = (blanks_folder() / "ex01_batching.py").read_text(encoding="utf-8")
WRONG = "def batching_statique(longueurs, B):\n    return 10, 50.0\n"
SAVED = Path("mes_exercices/ex01_batching.py")
FIRST_LINE = "# ex01 : enregistré par la cellule %%exercice du carnet\n"


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path.parent / "ipython"))
    monkeypatch.delenv("MINIBATCHER_EXERCICES", raising=False)
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    hooks = sys.excepthook, sys.displayhook
    shell.run_cell("%load_ext minibatcher.course").raise_error()
    yield shell
    shell.run_cell("%unload_ext minibatcher.course").raise_error()
    InteractiveShell.clear_instance()
    sys.excepthook, sys.displayhook = hooks


def cell(shell, text, exercise="ex01"):
    """Exécute une cellule `%%exercice` ; rend ce qu'elle affiche. Elle ne lève rien."""
    with capture_output() as captured:
        result = shell.run_cell(f"%%exercice {exercise}\n{text}")
    result.raise_error()
    reports = [output.data for output in captured.outputs]
    assert all({"text/plain", "text/html"} <= set(data) for data in reports[-1:])
    return captured.stdout + "\n".join(data["text/plain"] for data in reports)


def test_a_blank_is_to_do_and_stops_nothing(shell):
    shown = cell(shell, BLANK)
    assert "ex01 — Lot statique, lot continu : à faire" in shown
    assert "Enregistré dans mes_exercices/ex01_batching.py" in shown
    assert SAVED.read_text(encoding="utf-8") == FIRST_LINE + BLANK
    assert sorted(os.listdir()) == ["mes_exercices"]
    assert os.listdir("mes_exercices") == ["ex01_batching.py"]


def test_wrong_then_right(shell):
    shown = cell(shell, WRONG)
    assert "attendu    utilisation = 0.5" in shown
    assert "obtenu     utilisation = 50.0" in shown
    assert "La fonction batching_continu est absente" in shown
    shown = cell(shell, SOLUTION)
    assert "8 vérifications réussies sur 8" in shown
    assert SAVED.read_text(encoding="utf-8") == FIRST_LINE + SOLUTION
    with capture_output() as captured:
        assert shell.run_cell("batching_statique([3, 10, 5, 2], 4)").result == (10, 0.5)
    assert "(10, 0.5)" in captured.stdout


def test_line_numbers_are_those_of_the_cell(shell):
    shown = cell(shell, "def batching_statique(longueurs, B):\n    return 1 / 0\n")
    assert "chez vous  ligne 3 : return 1 / 0" in shown


def test_a_syntax_error_is_said_and_stops_nothing(shell):
    shown = cell(shell, "def batching_statique(longueurs, B)\n    return 1\n")
    assert "Erreur de syntaxe, ligne 2 : il manque « : » à la fin" in shown
    assert "Traceback" not in shown
    assert SAVED.read_text(encoding="utf-8").endswith("    return 1\n"), "même mal écrit, le travail est gardé"


@pytest.mark.parametrize("last", ["1 / 0", "import sys; sys.exit(0)", "nom_inconnu"])
def test_an_error_in_the_cell_stops_nothing(shell, last):
    shown = cell(shell, SOLUTION + last)
    assert "La réponse ne se charge pas." in shown
    assert f"ligne {len(SOLUTION.splitlines()) + 2} : {last}" in shown


def test_a_name_from_another_cell_is_explained(shell):
    shell.run_cell("import math")
    assert "La réponse est vérifiée seule" in cell(shell, SOLUTION + "math.pi")
    assert shell.user_ns["batching_statique"]([2], 1) == (2, 1.0), "la cellule est tout de même exécutée dans le carnet"


def test_the_last_expression_is_displayed(shell):
    assert "(10, 0.5)" in cell(shell, SOLUTION + "print('affiché')\nbatching_statique([3, 10, 5, 2], 4)")


def test_a_blank_does_not_replace_an_answer(shell):
    cell(shell, SOLUTION)
    shown = cell(shell, BLANK)
    assert "ne la remplace pas" in shown
    assert "à faire" in shown
    assert SAVED.read_text(encoding="utf-8") == FIRST_LINE + SOLUTION


def test_a_blank_does_not_hide_the_function_of_the_package(shell):
    shell.run_cell("from minibatcher.simulation.slots import batching_continu, batching_statique")
    cell(shell, BLANK)
    assert shell.run_cell("batching_continu([3, 10, 5, 2], 4)", silent=True).error_in_exec is None
    assert shell.user_ns["batching_continu"]([3, 10, 5, 2], 4) == (10, 0.5)
    cell(shell, WRONG)
    assert shell.user_ns["batching_statique"]([1], 1) == (10, 50.0), "une réponse écrite, même fausse, est celle de la personne"


def test_an_identical_answer_is_not_rewritten(shell):
    cell(shell, SOLUTION)
    os.utime(SAVED, (1, 1))
    again = cell(shell, SOLUTION)
    assert SAVED.stat().st_mtime == 1
    assert "Enregistré dans" in again
    cell(shell, SOLUTION + "\nx = 1")
    assert SAVED.stat().st_mtime != 1


def test_the_folder_can_be_chosen(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIBATCHER_EXERCICES", str(tmp_path / "ailleurs" / "à moi"))
    cell(shell, BLANK)
    assert os.listdir() == ["ailleurs"]
    assert [path.name for path in (tmp_path / "ailleurs" / "à moi").iterdir()] == ["ex01_batching.py"]


def test_a_folder_that_cannot_be_written_is_said(shell):
    Path("mes_exercices").write_text("un fichier, pas un dossier")
    shown = cell(shell, SOLUTION)
    assert "Impossible d'enregistrer" in shown
    assert "8 vérifications réussies sur 8" in shown


def test_an_unknown_exercise_is_refused_in_one_sentence(shell, capsys):
    result = shell.run_cell("%%exercice ex99\nx = 1")
    assert "Exercice inconnu : 'ex99'. Exercices : ex01, ex02" in str(result.error_in_exec)
    assert "Traceback" not in capsys.readouterr().err
    assert os.listdir() == []


def test_in_a_real_kernel(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter" / name))
    monkeypatch.delenv("MINIBATCHER_EXERCICES", raising=False)
    folder = tmp_path / "carnets"
    folder.mkdir()
    loop = SOLUTION + "\ndef batching_continu(longueurs, B):\n    while True:\n        pass\n"
    cells = [
        "%load_ext minibatcher.course",
        *(f"%%exercice ex01\n{text}" for text in (BLANK, WRONG, loop, SOLUTION)),
        "print('fin')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    manager = AsyncKernelManager()
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=argv, display_name="python", language="python")
    nbclient.NotebookClient(notebook, km=manager, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    shown = [
        "".join(output.get("text", "") + "".join(output.get("data", {}).get("text/plain", "")) for output in notebook_cell.outputs)
        for notebook_cell in notebook.cells
    ]
    assert "à faire" in shown[1]
    assert "obtenu     utilisation = 50.0" in shown[2]
    assert "n'a pas fini à temps" in shown[3]
    assert "8 vérifications réussies sur 8" in shown[4]
    assert shown[5] == "fin\n"
    assert "<details" in notebook.cells[2].outputs[-1]["data"]["text/html"]
    assert (folder / SAVED).read_text(encoding="utf-8") == FIRST_LINE + SOLUTION
    assert sorted(path.name for path in folder.rglob("*")) == ["ex01_batching.py", "mes_exercices"]
