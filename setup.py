"""Ce que pyproject.toml ne sait pas dire : la roue contient une copie des vérifications et des exercices, jamais les solutions."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Paquet → fichiers du dépôt qu'il reçoit dans la roue. `minibatcher/course/places.py` sait où les chercher ensuite.
COPIED = {
    "minibatcher.course.checks": ("tests/exercises", "*_ex[0-9][0-9].py"),
    "minibatcher.course.blanks": ("exercises", "ex[0-9][0-9]_*.py"),
}


class BuildWithExercises(build_py):
    def find_package_modules(self, package, package_dir):
        folder, pattern = COPIED.get(package, ("", ""))
        copied = sorted(Path(folder).glob(pattern)) if folder else []
        return super().find_package_modules(package, package_dir) + [(package, path.stem, str(path)) for path in copied]


setup(cmdclass={"build_py": BuildWithExercises})
