"""Le GPU de cette machine, d'après son pilote, et si torch sait s'en servir."""

import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec

_QUERY = ("--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Gpu:
    """Un GPU NVIDIA : son nom, sa mémoire en Gio, sa capacité de calcul (« 7.5 »). `problem` : pourquoi torch ne s'en sert pas."""

    name: str
    memory_gib: float
    capability: str
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Vrai si torch calcule dessus."""
        return not self.problem

    def __str__(self) -> str:
        return f"{self.name}, {self.memory_gib:.0f} Gio, sm_{self.capability.replace('.', '')}"


def find_gpu() -> Gpu | None:
    """Le premier GPU NVIDIA que montre `nvidia-smi`, ou None. Torch n'est importé que s'il y en a un."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=20, check=True, stdin=subprocess.DEVNULL)
        name, memory, capability = (part.strip() for part in done.stdout.splitlines()[0].split(","))
        return Gpu(name, float(memory) / 1024, capability, _torch_problem())
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None  # un pilote installé, mais pas de GPU à lui demander


def _torch_problem() -> str:
    if find_spec("torch") is None:
        return "torch est absent : installez-le pour utiliser ce GPU"
    try:
        import torch

        if torch.cuda.is_available():
            return ""
    except (ImportError, OSError, RuntimeError) as problem:
        return f"torch ne se charge pas : {problem}"
    return f"torch {torch.__version__} ne voit pas ce GPU : installez sa version CUDA, ou mettez le pilote à jour"
