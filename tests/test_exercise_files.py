"""Les exercices générés des solutions : marqueurs, fuites, fichiers périmés."""

import shutil
from pathlib import Path

import pytest

from minibatcher.course import exercises
from minibatcher.course.check import run_checks
from minibatcher.course.places import ExerciseError, exercise_ids
from minibatcher.course.report import Status

ROOT = Path(__file__).resolve().parents[1]


SOLUTION = '''"""Un exercice."""


def double(x: int) -> int:
    """Le double."""
    # début solution : Additionnez x à lui-même.
    resultat = aide(x) + x
    return resultat
    # fin solution


def triple(x: int) -> int:
    if x:
        # début solution : Et encore une fois.
        return aide(x) + 2 * x
        # fin solution
    return 0


# début solution
def aide(x):
    return x + 0 * 123456


# fin solution
'''


def test_generation():
    text = exercises.generate(SOLUTION, "ex09_double.py")
    assert text.splitlines()[0].startswith("# Exercice ex09, généré depuis solutions/ex09_double.py")
    assert "minibatcher check ex09" in text.splitlines()[1]
    assert '    """Le double."""\n    raise NotImplementedError("Additionnez x à lui-même.")\n\n\ndef triple' in text
    assert '    if x:\n        raise NotImplementedError("Et encore une fois.")\n    return 0\n' in text
    assert "aide" not in text
    assert text.endswith("    return 0\n")
    assert exercises.leaked_lines(SOLUTION, text) == []
    assert exercises.leaked_lines(SOLUTION, "x\n  resultat = aide(x) + x") == ["resultat = aide(x) + x"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("    # fin solution\n\n\ndef triple", "\n\ndef triple"), r"ligne 13 : une région s'ouvre alors que celle de la ligne 6"),
        (("    # début solution : Additionnez x à lui-même.\n", ""), r"ligne 8 : « fin solution » sans « début solution »"),
        (("        # fin solution\n    return 0", "    # fin solution\n    return 0"), r"ligne 16 .* même retrait .* ligne 14"),
        (
            ("# début solution : Additionnez x à lui-même.", "# début solution"),
            "ligne 6 : dans une fonction, l'indice est obligatoire",
        ),
        (("\n# début solution\n", "\n# début solution : Aidez.\n"), "ligne 20 : une région au bord gauche disparaît"),
        (("# début solution : Add", "# debut solution : Add"), "ligne 6 : marqueur mal écrit"),
        (("# début solution : Add", "# Début de la solution : Add"), "ligne 6 : marqueur mal écrit"),
        (("Et encore", 'Et "encore'), "guillemets"),
        (("Et encore", "Et encore" + " encore" * 20), "indice trop long"),
        (("    if x:\n        # début solution : Et encore une fois.", "    if x:\n    # début solution : Et."), "même retrait"),
    ],
)
def test_badly_marked_solutions_are_refused(change, said):
    assert change[0] in SOLUTION
    with pytest.raises(ExerciseError, match=said):
        exercises.generate(SOLUTION.replace(*change), "ex09_double.py")


def test_an_unclosed_region_is_refused():
    with pytest.raises(ExerciseError, match="ligne 20 : cette région n'est pas refermée"):
        exercises.generate(SOLUTION.rstrip().removesuffix("# fin solution"), "ex09_double.py")


def test_a_file_without_region_is_refused():
    with pytest.raises(ExerciseError, match="aucune région"):
        exercises.generate("x = 1\n", "ex09_double.py")
    with pytest.raises(ExerciseError, match="n'est plus du Python"):
        exercises.generate("if True:\n# début solution\n    x = 1\n# fin solution\n", "ex09_double.py")


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """Un dépôt où l'on peut abîmer exercices et solutions."""
    for name in ("solutions", "exercises"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(exercises, "solutions_folder", lambda: tmp_path / "solutions")
    monkeypatch.setattr(exercises, "blanks_folder", lambda: tmp_path / "exercises")
    return tmp_path


def test_the_repository_is_up_to_date(capsys):
    assert exercises.main(["--check"]) == 0
    assert capsys.readouterr().out == "Les exercices sont à jour.\n"


def test_a_stale_exercise_is_found_and_rewritten(workshop, capsys):
    target = workshop / "exercises" / "ex01_batching.py"
    text = target.read_text(encoding="utf-8")
    target.write_text(text.replace("Découpez", "Coupez"), encoding="utf-8")
    assert exercises.main(["--check"]) == 1
    assert "exercises/ex01_batching.py n'est pas à jour" in capsys.readouterr().err
    assert exercises.main([]) == 0
    assert "ex01_batching.py" in capsys.readouterr().out
    assert target.read_text(encoding="utf-8") == text
    assert exercises.main(["--check"]) == 0
    target.unlink()
    assert exercises.main(["--check"]) == 1


def test_a_leak_or_an_extra_file_is_found(workshop, capsys):
    target = workshop / "exercises" / "ex01_batching.py"
    with target.open("a", encoding="utf-8") as file:
        file.write("# utilisation = sum(longueurs) / (B * etapes)\n")
    (workshop / "exercises" / "ex77_rien.py").write_text("")
    assert exercises.main(["--check"]) == 1
    err = capsys.readouterr().err
    assert "laisse voir une ligne de la solution : utilisation = sum(longueurs) / (B * etapes)" in err
    assert "ex77_rien.py n'a pas de solution" in err


def test_a_solution_told_outside_its_regions_is_never_written(workshop, capsys):
    solution = workshop / "solutions" / "ex01_batching.py"
    text = solution.read_text(encoding="utf-8")
    solution.write_text(text.replace('"""ex01', '"""etapes += max(lot)\n\nex01'), encoding="utf-8")
    before = (workshop / "exercises" / "ex01_batching.py").read_text(encoding="utf-8")
    assert exercises.main([]) == 2
    assert "etapes += max(lot)" in capsys.readouterr().err
    assert (workshop / "exercises" / "ex01_batching.py").read_text(encoding="utf-8") == before
    solution.unlink()
    assert exercises.main([]) == 2
    assert "une seule solution" in capsys.readouterr().err


def test_cell_source_is_the_exercise_alone():
    for exercise_id in exercise_ids():
        text = exercises.cell_source(exercise_id)
        assert text.startswith("def ")
        assert "généré" not in text
        assert run_checks(exercise_id, text).status is Status.TODO
    with pytest.raises(ExerciseError, match="ex99"):
        exercises.cell_source("ex99")
