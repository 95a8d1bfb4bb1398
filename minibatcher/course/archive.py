"""L'archive pour Colab : la roue du cours, les carnets et les exercices ; jamais les solutions.

`python -m minibatcher.course.archive` écrit dist/minibatcher-colab.zip. La roue y est à côté des carnets, où leur cellule de mise
en place la cherche.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from minibatcher.course.build import ROOT, stale_notebooks
from minibatcher.course.source import BuildError
from minibatcher.errors import MinibatcherError

FOLDER = "minibatcher-colab"
README = """\
minibatcher sur Colab
=====================

Le plus simple : copiez tout le dossier minibatcher-colab dans votre Google Drive, ouvrez un carnet de son dossier notebooks avec
Colab, et montez votre Drive (panneau Fichiers, à gauche, bouton Installer Drive). Exécutez la première cellule de code : elle y
trouve le cours.

Sans Drive : ouvrez un carnet dans Colab (Fichier, Importer le notebook), glissez le fichier minibatcher-….whl dans le panneau
Fichiers, puis exécutez la première cellule de code. Il faudra le glisser de nouveau à chaque nouvelle session.
"""


def build_archive(root: Path, target: Path) -> Path:
    """Écrit l'archive et rend son chemin. Lève `BuildError` si un carnet n'est pas à jour ou si la roue ne se construit pas."""
    if problems := stale_notebooks(root):
        raise BuildError("carnets à reconstruire d'abord (make notebooks) :\n" + "\n".join(f"  {problem}" for problem in problems))
    with tempfile.TemporaryDirectory() as folder:
        wheel = _build_wheel(root, Path(folder))
        files = {f"notebooks/{wheel.name}": wheel.read_bytes(), "LISEZMOI.txt": README.encode()}
    for pattern in ("notebooks/*.ipynb", "exercises/*.py"):
        files |= {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.glob(pattern))}
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{FOLDER}/{name}", (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return target


def _build_wheel(root: Path, folder: Path) -> Path:
    # Depuis une copie : ni restes d'une construction précédente, ni solutions dans la roue, ni rien d'écrit dans le dépôt.
    skipped = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "__pycache__", "resultats", "solutions", "benchmarks", "data"
    )
    copy = shutil.copytree(root, folder / "source", ignore=skipped)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check", "-w", str(folder), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise BuildError(f"la roue du cours ne se construit pas. Fin du message de pip :\n{tail}")
    return wheels[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Écrit l'archive ; rend 0, ou 2 pour une erreur expliquée."""
    parser = argparse.ArgumentParser(prog="python -m minibatcher.course.archive", description="Fabrique l'archive pour Colab.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "minibatcher-colab.zip", help="l'archive à écrire")
    args = parser.parse_args(argv)
    try:
        print(build_archive(ROOT, args.out))
    except (MinibatcherError, OSError) as problem:
        print(f"Archive : {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
