"""`pytest tests/exercises --submission DOSSIER` : les vérifications d'une copie. Sans l'option, celles des solutions du dépôt.
L'option elle-même est déclarée par `minibatcher/course/pytest_option.py`.

Le code de la copie tourne dans le processus de pytest : pour noter des copies dont on n'est pas sûr, isolez-les.
"""

import pytest

from minibatcher.course.check import Report, load_exercise, run_checks
from minibatcher.course.places import exercise_ids, solutions_folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    pairs = [(exercise_id, check.name) for exercise_id in exercise_ids() for check in load_exercise(exercise_id).checks]
    if {"exercise_id", "check_name"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("exercise_id", "check_name"), pairs, ids=["-".join(pair) for pair in pairs])


@pytest.fixture(scope="session")
def reports(pytestconfig: pytest.Config) -> dict[str, Report]:
    """Un compte rendu par exercice."""
    folder = pytestconfig.getoption("--submission") or solutions_folder()
    return {exercise_id: run_checks(exercise_id, folder / load_exercise(exercise_id).file) for exercise_id in exercise_ids()}
