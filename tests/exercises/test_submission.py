"""Chaque vérification d'un exercice est un test ; `conftest.py` dit de qui est la réponse."""

import pytest

from minibatcher.course.report import Status


def test_check(exercise_id, check_name, reports):
    report = reports[exercise_id]
    result = next(result for result in report.results if result.name == check_name)
    if result.status is not Status.PASSED:
        pytest.fail(f"{result.to_text()}\n{report.exercise_id}, vérifications {report.version}", pytrace=False)
