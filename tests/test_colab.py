"""Le cours sur Colab : l'archive, dépliée ailleurs, et la cellule de mise en place dans un environnement où rien n'est installé."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from minibatcher.course import archive, build
from minibatcher.course.publication import Publication
from minibatcher.course.source import BuildError

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("minibatcher", "notebooks/sources", "exercises", "tests/exercises", "solutions")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Une copie du dépôt, carnets construits : l'état du dépôt de travail n'y change rien."""
    root = tmp_path_factory.mktemp("depot")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, root / name)
    assert build.main([], root) == 0
    return root


@pytest.fixture(scope="module")
def unzipped(repository, tmp_path_factory):
    """Le dossier que donne l'archive."""
    target = archive.build_archive(repository, tmp_path_factory.mktemp("dist") / "minibatcher-colab.zip")
    folder = tmp_path_factory.mktemp("colab")
    with zipfile.ZipFile(target) as content:
        content.extractall(folder)
    return folder / archive.FOLDER


@pytest.fixture
def fresh_python(tmp_path):
    """Un environnement neuf où, comme sur Colab, IPython et numpy sont là, mais pas minibatcher."""
    folder, here = tmp_path / "venv", Path(sysconfig.get_paths()["purelib"])
    venv.create(folder, with_pip=True)
    there = folder / here.relative_to(sys.prefix)
    absent = ("pip", "setuptools", "minibatcher", "__editable__", "distutils-precedence")
    for source in here.iterdir():
        if not source.name.lower().startswith(absent) and source.suffix != ".pth" and not (there / source.name).exists():
            (there / source.name).symlink_to(source)
    return folder / "bin" / "python"


def set_up(python, folder, colab=True, text=None):
    """Exécute la cellule de mise en place par IPython, dans `folder` ; rend le processus fini."""
    text = text or build.setup_text(Publication("", "1"))
    script = "from IPython.core.interactiveshell import InteractiveShell as S\nimport sys\n"
    script += f"shell = S.instance()\nresult = shell.run_cell({text!r})\nsys.exit(0 if result.success else 1)\n"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COLAB_", "PYTHON"))}
    env = kept | {"HOME": str(folder), "IPYTHONDIR": str(folder / ".ipython")} | ({"COLAB_RELEASE_TAG": "test"} if colab else {})
    return subprocess.run([python, "-c", script], capture_output=True, text=True, cwd=folder, env=env, timeout=300)


def test_the_archive_holds_the_course_and_no_solution(unzipped):
    names = {path.relative_to(unzipped).as_posix() for path in unzipped.rglob("*") if path.is_file()}
    wheels = [name for name in names if name.endswith(".whl")]
    assert len(wheels) == 1
    assert wheels[0].startswith("notebooks/minibatcher-")
    assert {f"notebooks/{path.stem}.ipynb" for path in (ROOT / "notebooks" / "sources").glob("*.py")} <= names
    assert "LISEZMOI.txt" in names
    with zipfile.ZipFile(unzipped / wheels[0]) as wheel:
        inside = wheel.namelist()
    assert "minibatcher/course/glossary.toml" in inside
    assert "minibatcher/course/setup_cell.txt" in inside
    assert not [name for name in [*names, *inside] if "solution" in name or "wrong_answers" in name]


def test_a_stale_notebook_stops_the_archive(repository, tmp_path):
    copy = shutil.copytree(repository, tmp_path / "copie")
    next((copy / "notebooks").glob("*.ipynb")).write_text("{}")
    with pytest.raises(BuildError, match="make notebooks"):
        archive.build_archive(copy, tmp_path / "x.zip")


def test_a_wheel_that_does_not_build_is_explained(repository, tmp_path):
    copy = shutil.copytree(repository, tmp_path / "copie")
    (copy / "setup.py").write_text("raise SystemExit('panne voulue')")
    with pytest.raises(BuildError, match=r"(?s)ne se construit pas.*panne voulue"):
        archive.build_archive(copy, tmp_path / "x.zip")


def test_set_up_takes_the_wheel_beside_the_notebook(unzipped, fresh_python, tmp_path):
    folder = shutil.copytree(unzipped / "notebooks", tmp_path / "content")
    done = set_up(fresh_python, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Successfully installed minibatcher-" in done.stdout, "ce que dit pip est montré"
    assert "Cette machine" in done.stdout
    (folder / next(path.name for path in folder.glob("*.whl"))).unlink()
    again = set_up(fresh_python, folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "installed" not in again.stdout, "déjà installé : rien à faire"
    script = "import minibatcher.course.exercises as e; print('def batching_statique' in e.cell_source('ex01'))"
    assert subprocess.run([fresh_python, "-c", script], cwd=folder, capture_output=True, text=True).stdout.strip() == "True"


def test_set_up_looks_in_drive_then_at_the_address(unzipped, fresh_python, tmp_path):
    (content := tmp_path / "content").mkdir()
    drive = tmp_path / "drive"
    text = build.setup_text(Publication("", "1")).replace("/content/drive/MyDrive", str(drive))
    done = set_up(fresh_python, content, text=text)
    assert done.returncode == 1
    assert "glissez le fichier minibatcher-" in done.stdout + done.stderr
    address = text.replace('ADDRESS = ""', f'ADDRESS = "{tmp_path}/absent.whl"')
    done = set_up(fresh_python, content, text=address)
    assert done.returncode == 1
    assert "absent.whl" in done.stdout, "l'erreur de pip est montrée"
    assert "L'installation du cours a échoué" in done.stdout + done.stderr
    shutil.copytree(unzipped, drive / "minibatcher-colab")
    done = set_up(fresh_python, content, text=address)
    assert done.returncode == 0, done.stdout + done.stderr


def test_set_up_installs_the_tagged_version(repository, fresh_python, tmp_path):
    depot = shutil.copytree(repository, tmp_path / "depot")
    git = ["git", "-C", str(depot), "-c", "user.name=essai", "-c", "user.email=essai@exemple.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "essai"], ["tag", "v1.2.3"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    (depot / "minibatcher" / "course" / "doctor.py").write_text("raise SystemExit('version plus récente que l’étiquette')")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "après"], check=True, capture_output=True)
    (content := tmp_path / "content").mkdir()
    done = set_up(fresh_python, content, text=build.setup_text(Publication(f"file://{depot}", "1.2.3")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Cette machine" in done.stdout


def test_set_up_elsewhere_says_make_install(fresh_python, tmp_path):
    done = set_up(fresh_python, tmp_path, colab=False)
    assert done.returncode == 1
    assert "make install" in done.stdout + done.stderr


def test_set_up_is_short():
    lines = build.setup_text(Publication("", "1")).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 132
