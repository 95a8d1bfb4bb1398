"""Exécuter un carnet dans un noyau neuf, loin du dépôt : ce qu'il affiche, ce qu'il écrit, où il échoue.

Le noyau travaille dans un dossier temporaire, avec un dossier personnel vide ; un script de démarrage y note chaque fichier que le
noyau ouvre en écriture (pas ceux des processus qu'il lance).
"""

import difflib
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from minibatcher.model.embedded import cache_dir

CELL_TIMEOUT = 120  # secondes : une limite contre une cellule qui ne finit pas, pas une mesure
CHANGING = {"mesure", "mise-en-place"}  # étiquettes des cellules dont l'affichage dépend de la machine et de l'instant

_WATCH = """
import os, sys
def _watch():
    log = os.open(os.environ["NOTEBOOK_WRITES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    paths = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.symlink": 1, "os.link": 1, "os.truncate": 0}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    def hook(event, args):
        if event == "open" and isinstance(args[2], int) and args[2] & writing:
            path = args[0]
        elif event in paths:
            path = args[paths[event]]
        else:
            return
        if isinstance(path, (str, bytes, os.PathLike)):
            os.write(log, os.fsencode(os.path.realpath(path)) + b"\\n")
    sys.addaudithook(hook)
_watch()
"""


class NotebookFailure(AssertionError):
    """Une cellule a échoué, ou n'a pas fini à temps."""


@dataclass
class Run:
    """Une exécution : durée en secondes, affichages `(cellule, texte)` de celles qui ne mesurent rien, fichiers écrits ailleurs."""

    seconds: float = 0.0
    outputs: list[tuple[str, str]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)


def run_notebook(notebook, name: str, folder: Path, python: str = sys.executable, timeout: int = CELL_TIMEOUT) -> Run:
    """Exécute `notebook` (il reçoit ses sorties) avec le noyau de `python`, dans `folder`/notebooks. Lève `NotebookFailure`."""
    work, home = folder / "notebooks", folder / "home"
    startup = home / ".ipython" / "profile_default" / "startup"
    for path in (work, startup, folder / "tmp"):
        path.mkdir(parents=True, exist_ok=True)
    (startup / "00-watch.py").write_text(_WATCH, encoding="utf-8")
    log = folder / "writes.txt"
    log.write_text("")
    spec = KernelSpec(
        argv=[python, "-m", "ipykernel_launcher", "-f", "{connection_file}"], display_name="carnet", language="python"
    )
    manager = type("OneKernel", (AsyncKernelManager,), {"kernel_spec": property(lambda self: spec)})
    started: list[int] = []
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_manager_class=manager,
        resources={"metadata": {"path": str(work)}},
        store_widget_state=False,
        record_timing=False,
        on_cell_execute=lambda cell, cell_index: started.append(cell_index),
    )
    begin = time.perf_counter()
    try:
        client.execute(env=_environment(folder, home, log))
    except (CellExecutionError, CellTimeoutError, DeadKernelError, TimeoutError) as problem:
        raise NotebookFailure(_explain(notebook, name, started, problem, timeout)) from None
    return Run(time.perf_counter() - begin, text_outputs(notebook), _strays(log, folder))


def _environment(folder: Path, home: Path, log: Path) -> dict[str, str]:
    matplotlib = folder.parent / "matplotlib"  # sa liste de polices, longue à refaire, sert à tous les carnets d'une même session
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER", "IPYTHON", "PYTEST", "COLAB_"))}
    return kept | {
        "HOME": str(home),
        "IPYTHONDIR": str(home / ".ipython"),
        "TMPDIR": str(folder / "tmp"),
        "MPLCONFIGDIR": str(matplotlib),
        "MINIBATCHER_CACHE": str(cache_dir()),
        "NOTEBOOK_WRITES": str(log),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _explain(notebook, name: str, started: list[int], problem: Exception, timeout: int) -> str:
    index = started[-1] if started else 0
    cell = notebook.cells[index]
    where = f"{name}, cellule {index + 1} sur {len(notebook.cells)} ({cell.id})"
    if isinstance(problem, CellTimeoutError):
        what = f"n'a pas fini en {timeout} s"
    elif isinstance(problem, CellExecutionError):
        what = f"lève {problem.ename} : {problem.evalue}"
    else:
        what = f"a perdu son noyau ({type(problem).__name__} : {problem})"
    trace = re.sub(r"\x1b\[[0-9;]*m", "", getattr(problem, "traceback", "") or "")
    tail = trace.rpartition("------------------\n")[2].strip().splitlines()[-25:]  # nbclient répète d'abord le code de la cellule
    return "\n".join([f"{where} {what}", "", *(f"    {line}" for line in cell.source.splitlines()), "", *tail])


def text_outputs(notebook) -> list[tuple[str, str]]:
    """Par cellule qui ne mesure rien, ce qu'elle affiche en texte (sortie standard et `text/plain`)."""
    found = []
    for index, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code" or CHANGING & set(cell.metadata.get("tags", ())):
            continue
        texts = []
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stdout":
                texts.append(output.text)
            elif output.output_type in ("execute_result", "display_data"):
                texts.append(output.data.get("text/plain", "") + "\n")
        found.append((f"cellule {index} ({cell.id})", "".join(texts)))
    return found


def differences(first: Run, second: Run) -> list[str]:
    """Les cellules dont l'affichage n'est pas le même dans deux exécutions."""
    pairs = zip(first.outputs, second.outputs, strict=True)
    return [
        f"{cell} n'affiche pas deux fois la même chose :\n{_diff(one, other)}" for (cell, one), (_, other) in pairs if one != other
    ]


def _diff(one: str, other: str) -> str:
    return "\n".join(list(difflib.unified_diff(one.splitlines(), other.splitlines(), lineterm="", n=0))[2:])


def _strays(log: Path, folder: Path) -> list[str]:
    allowed = [path.resolve() for path in (folder, folder.parent / "matplotlib", cache_dir(), Path("/dev"), Path("/proc"))]
    written = {Path(line) for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line}
    return sorted(str(path) for path in written if not any(path.is_relative_to(each) for each in allowed))


def read(text: str):
    """Le carnet de ce texte, prêt à exécuter."""
    return nbformat.reads(text, as_version=4)
