"""`minibatcher check` : vérifier une réponse dans un terminal, ou voir où en sont tous les exercices."""

import argparse
from pathlib import Path

from minibatcher.course.places import ExerciseError, blanks_folder, exercise_ids, submissions_folder


def add_check_command(commands: argparse._SubParsersAction) -> None:
    """Ajoute `check` aux commandes de `minibatcher`."""
    parser = commands.add_parser(
        "check",
        help="vérifie une réponse à un exercice",
        description="Passe les vérifications d'un exercice : celles du carnet et de la notation. Code 0 : tout passe ; 1 sinon.",
    )
    answer = parser.add_argument_group("réponse à vérifier")
    answer.add_argument("exercise", nargs="?", metavar="exercice", help="ex01, ex02… (défaut : la liste, et où vous en êtes)")
    answer.add_argument(
        "--submission",
        type=Path,
        metavar="FICHIER_OU_DOSSIER",
        help="la réponse, ou son dossier (défaut : mes_exercices, puis notebooks/mes_exercices, puis exercises)",
    )
    parser.set_defaults(run=check)


def check(args: argparse.Namespace) -> int:
    """Affiche le compte rendu. Rend 0 si tout est réussi, 1 sinon ; 0 pour la liste. Lève `ExerciseError`."""
    if args.exercise is None:
        return _list_all(args.submission)
    from minibatcher.course.check import load_exercise, run_checks

    exercise = load_exercise(args.exercise.strip().lower())
    path = find_submission(exercise.file, args.submission)
    report = run_checks(exercise.id, path)
    print(f"Fichier vérifié : {path}")
    print(report.to_text())
    if path.parent == blanks_folder():
        print(f"C'est l'exercice à compléter. Pour répondre, copiez-le dans {submissions_folder()}.")
    return 0 if report.passed else 1


def find_submission(file: str, submission: Path | None = None) -> Path:
    """Le fichier à vérifier : `submission`, ou `file` dans ce dossier, ou dans ceux où l'on répond. Absent : `ExerciseError`."""
    if submission is None:
        folders = [submissions_folder(), Path("notebooks/mes_exercices"), blanks_folder()]
    elif submission.is_dir():
        folders = [submission]
    elif submission.is_file():
        return submission
    else:
        raise ExerciseError(f"{submission} n'existe pas : donnez un fichier ou un dossier qui contient {file}.")
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    raise ExerciseError(f"{file} n'est pas dans {', '.join(map(str, folders))}.")


def _list_all(submission: Path | None) -> int:
    from minibatcher.course.check import load_exercise, run_checks

    if submission is not None and not submission.is_dir():
        raise ExerciseError(f"Pour un seul fichier, dites quel exercice : minibatcher check ex01 --submission {submission}")
    for exercise in map(load_exercise, exercise_ids()):
        try:
            path = find_submission(exercise.file, submission)
            report = run_checks(exercise.id, path)
            state = f"{report.num_passed} sur {len(report.results)}" if report.status == "à revoir" else str(report.status)
        except ExerciseError:
            path, state = "absent", "à faire"
        print(f"{exercise.id}  {state:<8}  {exercise.title}  ({path})")
    return 0
