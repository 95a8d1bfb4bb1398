"""Le diagnostic de la machine : ce qui est là, ce qui manque, quels carnets tourneront, et quoi taper pour y remédier.

Tout se lit sans importer les paquets ; torch ne l'est que si un GPU est visible, pour savoir s'il sait s'en servir.
"""

import argparse
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from minibatcher.course.gpu import Gpu, find_gpu
from minibatcher.course.lessons import LESSONS, Lesson
from minibatcher.course.tables import Table
from minibatcher.model.embedded import FORMAT_VERSION, cache_dir

PYTHON_MIN, PYTHON_MAX = (3, 11), (3, 13)
PACKAGES = ("numpy", "matplotlib", "ipywidgets", "jupyterlab", "torch", "transformers", "safetensors", "triton", "joblib")
SERVER_PACKAGES = ("fastapi", "uvicorn", "openai")
MIN_MEMORY_GIB, MIN_DISK_GIB = 4, 2


@dataclass(frozen=True)
class Item:
    """Un point du diagnostic. `fix` : quoi faire s'il est en défaut ; `vital` : sans lui, rien ne tourne."""

    name: str
    value: str
    ok: bool
    fix: str = ""
    vital: bool = False


@dataclass(frozen=True)
class Verdict:
    """Ce qu'il en sera d'un carnet : « complet », « réduit », « impossible » ou « à paraître », et pourquoi."""

    lesson: Lesson
    state: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Les points vérifiés et le sort de chaque carnet ; s'affiche en texte ou, dans un carnet, en tableaux."""

    items: tuple[Item, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def can_run(self) -> bool:
        """Faux si rien ne peut tourner ici."""
        return all(item.ok for item in self.items if item.vital)

    def tables(self) -> tuple[Table, Table]:
        """La machine, puis les carnets."""
        machine = tuple((_mark(item.ok), item.name, item.value, "" if item.ok else item.fix) for item in self.items)
        marks = {"complet": "✓", "réduit": "~", "impossible": "✗", "à paraître": "·"}
        lessons = tuple((marks[one.state], f"`{one.lesson.id}`", one.state, " ; ".join(one.reasons)) for one in self.verdicts)
        return Table("La machine", ("", "", "ici", "à faire"), machine), Table(
            "Les carnets", ("", "carnet", "ici", "pourquoi"), lessons
        )

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    __repr__ = __str__


def _mark(ok: bool) -> str:
    return "✓" if ok else "✗"


def installed(package: str) -> str | None:
    """La version installée, sans importer le paquet ; None s'il est absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def install_command(package: str) -> str:
    """La commande qui installe `package`, à la version que demande minibatcher."""
    try:
        requirements = metadata.requires("minibatcher") or []
    except metadata.PackageNotFoundError:
        requirements = []
    wanted = next((each.partition(";")[0].strip() for each in requirements if re.match(rf"{package}\b", each)), package)
    return f'pip install "{wanted}"'


def diagnose() -> Diagnosis:
    """Examine la machine. Ne lève rien : ce qui manque devient un point en défaut."""
    gpu = find_gpu()
    items = [_python(), *(_package(name) for name in (*PACKAGES, *SERVER_PACKAGES)), _gpu(gpu), _memory(), _disk(), _model()]
    items += [_writable("dossier de travail", Path.cwd()), _writable("dossier du modèle", cache_dir())]
    return Diagnosis(tuple(items), tuple(verdict(lesson, gpu) for lesson in LESSONS))


def verdict(lesson: Lesson, gpu: Gpu | None) -> Verdict:
    """Le sort d'un carnet ici, que ce soit avec ce GPU ou sans (None)."""
    if not lesson.written:
        return Verdict(lesson, "à paraître")
    missing = [package for package in lesson.needs if not installed(package)]
    no_gpu = gpu is None or not gpu.usable
    if lesson.gpu == "nécessaire" and no_gpu:
        return Verdict(lesson, "impossible", ("il faut un GPU", *map(install_command, missing)))
    if missing:
        return Verdict(lesson, "impossible", (f"il manque {', '.join(missing)}", *map(install_command, missing)))
    reasons = [f"sans {package}, {effect}" for package, effect in lesson.better_with.items() if not installed(package)]
    if lesson.gpu == "utile" and no_gpu:
        reasons.append(f"sans GPU, {lesson.without_gpu}")
    return Verdict(lesson, "réduit" if reasons else "complet", tuple(reasons))


def summary() -> Table:
    """Le tableau de la cellule de mise en place : les versions, le GPU, et ce qui tournera ici."""
    gpu = find_gpu()
    names = ("minibatcher", "numpy", "torch", "triton", "transformers", "ipywidgets")
    rows = [("Python", platform.python_version()), *((name, installed(name) or "absent") for name in names)]
    rows.append(("GPU", str(gpu) if gpu else "aucun : le cours tourne aussi sur CPU"))
    verdicts = [verdict(lesson, gpu) for lesson in LESSONS if lesson.written]
    for state, title in (("complet", "carnets complets"), ("réduit", "carnets réduits"), ("impossible", "carnets impossibles")):
        found = [
            f"{one.lesson.number}" + (f" ({', '.join(one.reasons)})" if one.reasons else "")
            for one in verdicts
            if one.state == state
        ]
        if found:
            rows.append((title, " ; ".join(found)))
    return Table("Cette machine", ("", "ici"), tuple(rows))


def _python() -> Item:
    ok = PYTHON_MIN <= sys.version_info[:2] <= PYTHON_MAX
    return Item("Python", platform.python_version(), ok, "il faut Python 3.11, 3.12 ou 3.13", vital=True)


def _package(name: str) -> Item:
    version = installed(name)
    fix = "triton n'existe que sous Linux" if name == "triton" and platform.system() != "Linux" else install_command(name)
    return Item(name, version or "absent", version is not None, fix, vital=name == "numpy")


def _gpu(gpu: Gpu | None) -> Item:
    if gpu is None:
        fix = "rien d'obligatoire ; sur Colab : Exécution, Modifier le type d'exécution, GPU T4"
        return Item("GPU", "aucun", False, fix)
    return Item("GPU", str(gpu), gpu.usable, gpu.problem)


def _memory() -> Item:
    try:
        gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return Item("mémoire vive", "inconnue sur ce système", True)
    return Item(
        "mémoire vive", f"{gib:.0f} Gio", gib >= MIN_MEMORY_GIB, f"{MIN_MEMORY_GIB} Gio au moins pour servir un vrai modèle"
    )


def _disk() -> Item:
    gib = shutil.disk_usage(_nearest(cache_dir())).free / 2**30
    fix = f"libérez {MIN_DISK_GIB} Gio, ou donnez un autre dossier avec MINIBATCHER_CACHE"
    return Item("disque libre", f"{gib:.0f} Gio", gib >= MIN_DISK_GIB, fix)


def _model() -> Item:
    folder = cache_dir() / f"smollm2-135m-instruct-v{FORMAT_VERSION}"
    found = folder.is_dir()
    return Item(
        "modèle embarqué", "en cache" if found else "pas encore téléchargé", found, "rien : le premier usage le télécharge (93 Mo)"
    )


def _writable(name: str, folder: Path) -> Item:
    ok = os.access(_nearest(folder), os.W_OK)
    return Item(name, str(folder), ok, "dossier protégé en écriture : changez de dossier, ou donnez-en un avec MINIBATCHER_CACHE")


def _nearest(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def run_doctor(args: argparse.Namespace) -> int:
    """La commande `minibatcher doctor` : rend 0, ou 1 si rien ne peut tourner ici."""
    diagnosis = diagnose()
    print(diagnosis)
    if diagnosis.can_run:
        return 0
    print(
        "\nLe cours ne peut pas tourner ici : " + " ; ".join(one.fix for one in diagnosis.items if one.vital and not one.ok) + "."
    )
    return 1


def add_doctor_command(commands: argparse._SubParsersAction) -> None:
    """Ajoute `doctor` aux commandes de la ligne de commande."""
    help_text = "ce que cette machine a, ce qui lui manque, et quels carnets y tournent"
    commands.add_parser("doctor", help=help_text, description=f"Dit {help_text}.").set_defaults(run=run_doctor)
