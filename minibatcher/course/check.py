"""Vérifier une réponse : `run_checks("ex01", Path("mes_exercices/ex01_batching.py"))` rend un `Report`.

Le carnet, `minibatcher check`, pytest et la notation d'une classe passent tous par ici, et chaque compte rendu porte la version.
`contract.py` dit comment écrire une vérification ; `guard.py`, ce qu'elle ne peut pas garantir dans le même processus.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import minibatcher
from minibatcher.course.contract import Exercise
from minibatcher.course.guard import Guard, Printed, Snapshot
from minibatcher.course.learner import Learner, LoadError
from minibatcher.course.places import ExerciseError, checks_folder, exercise_ids
from minibatcher.course.report import CheckResult, Report, Status
from minibatcher.course.trial import Trial, Verdict

TIME_LIMIT = 5.0  # secondes, pour une vérification entière
_AFTER_A_TIMEOUT = 0.5  # pour chacune des suivantes, une fois qu'une boucle a été coupée
_ENGINE = ("check", "compare", "contract", "guard", "learner", "trial")  # ce dont dépend le résultat


def load_exercise(exercise_id: str) -> Exercise:
    """L'exercice `ex01`, avec ses vérifications, relu à chaque fois. Lève `ExerciseError` s'il n'existe pas."""
    if exercise_id not in exercise_ids():
        raise ExerciseError(f"Exercice inconnu : {exercise_id!r}. Exercices : {', '.join(exercise_ids())}.")
    # Un module neuf, que ni sys.modules ni une réponse précédente ne connaissent : ses cas n'ont pas pu être modifiés.
    spec = importlib.util.find_spec(f"minibatcher.course.checks.check_{exercise_id}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.exercise


def checks_version(exercise_id: str) -> str:
    """Version du paquet et empreinte des vérifications : la même partout où la même réponse aura le même compte rendu."""
    course = Path(__file__).parent
    files = [*sorted(checks_folder().glob(f"*_{exercise_id}.py")), *(course / f"{name}.py" for name in _ENGINE)]
    digest = hashlib.sha256(b"\0".join(path.read_bytes().replace(b"\r\n", b"\n") for path in files)).hexdigest()
    return f"{minibatcher.__version__}+{digest[:8]}"


def run_checks(exercise_id: str, answer: str | Path | ModuleType, time_limit: float = TIME_LIMIT) -> Report:
    """Passe toutes les vérifications de l'exercice sur `answer` : le chemin d'un fichier, le texte d'un programme, ou un module.

    Une chaîne d'une seule ligne finissant par « .py » est un chemin. `time_limit` : secondes par vérification. Lève `ExerciseError`
    pour un exercice inconnu ; tout ce qui ne va pas dans la réponse, fichier absent compris, est dans le compte rendu.
    """
    exercise = load_exercise(exercise_id)
    snapshot, printed = Snapshot(), Printed()
    report = Report(exercise.id, exercise.title, exercise.file, checks_version(exercise_id))
    learner = Learner(exercise.file)
    try:
        learner.load(answer, Guard(time_limit, snapshot, printed))
    except LoadError as problem:
        report.load_error, load_status = str(problem), Status.TODO if problem.todo else Status.ERROR
    seconds = time_limit
    try:
        for check in exercise.checks:
            result = CheckResult(check.name, check.title, check.points, check.hints)
            report.results.append(result)
            if report.load_error:
                result.status, result.explanation = load_status, report.load_error
                continue
            trial = Trial(exercise, learner, Guard(seconds, snapshot, printed))
            try:
                check.run(trial)
                if not trial.num_calls:
                    raise ExerciseError(f"{exercise.id} : la vérification {check.name!r} n'appelle aucune fonction.")
                result.status = Status.PASSED
            except Verdict as verdict:
                for name, value in verdict.details.items():
                    setattr(result, name, value)
            if trial.guard.timed_out:
                seconds = min(seconds, _AFTER_A_TIMEOUT)
    finally:
        sys.modules.pop(learner.name, None)
    report.printed = str(printed)
    return report
