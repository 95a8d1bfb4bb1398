"""Où sont les exercices : dans le dépôt, ou dans le paquet installé.

| | dépôt (`pip install -e .`, ou lancé sur place) | roue installée (Colab) |
|---|---|---|
| vérifications | `tests/exercises/check_*.py` | `minibatcher/course/checks/` |
| exercices à compléter | `exercises/` | `minibatcher/course/blanks/` |
| solutions | `solutions/` | absentes |

`setup.py` copie les deux premières dans la roue. Les réponses sont toujours dans le dossier courant (`submissions_folder`).
"""

import os
from pathlib import Path

from minibatcher.errors import MinibatcherError

_COURSE = Path(__file__).resolve().parent


class ExerciseError(MinibatcherError, ValueError):
    """Un exercice, une réponse ou une solution est introuvable ou mal écrit."""


def repository() -> Path | None:
    """La racine du dépôt dont ce paquet fait partie, ou None s'il est installé sans lui."""
    root = _COURSE.parents[1]
    found = (root / "pyproject.toml").is_file() and (root / "tests" / "exercises").is_dir()
    return root if found else None


def checks_folder() -> Path:
    """Le dossier des vérifications."""
    root = repository()
    return root / "tests" / "exercises" if root else _COURSE / "checks"


def blanks_folder() -> Path:
    """Le dossier des exercices à compléter."""
    root = repository()
    return root / "exercises" if root else _COURSE / "blanks"


def solutions_folder() -> Path:
    """Le dossier des solutions. Lève `ExerciseError` hors du dépôt : le paquet installé n'en contient pas."""
    root = repository()
    if root is None:
        raise ExerciseError("Les solutions ne sont que dans le dépôt du cours, pas dans le paquet installé.")
    return root / "solutions"


def submissions_folder() -> Path:
    """Le dossier des réponses : `MINIBATCHER_EXERCICES` s'il est donné, sinon `mes_exercices` dans le dossier courant."""
    return Path(os.environ.get("MINIBATCHER_EXERCICES") or "mes_exercices").expanduser()


def exercise_ids() -> list[str]:
    """Les exercices qui existent, dans l'ordre : `["ex01", "ex02"]`."""
    return sorted(path.stem.removeprefix("check_") for path in checks_folder().glob("check_ex*.py"))


def read_source(path: Path) -> str:
    """Le texte d'un fichier Python en UTF-8, fins de ligne ramenées à LF. Lève `ExerciseError` s'il est absent ou illisible."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ExerciseError(f"Le fichier {path} est absent.") from None
    except UnicodeDecodeError as problem:
        raise ExerciseError(f"{path} n'est pas en UTF-8 (octet {problem.start}) : enregistrez-le en UTF-8.") from None
    except OSError as problem:
        raise ExerciseError(f"{path} est illisible : {problem.strerror or problem}.") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
