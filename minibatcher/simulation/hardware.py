"""Les fiches des machines : mémoire, bande passante, opérations par seconde.

Octets, octets par seconde, FLOP par seconde. Go = 10^9 octets, Gio = 2^30 ; Ko et Kio de même.
"""

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np

from minibatcher.errors import ConfigError


def require_number(name: str, value: object, above: float | None = None) -> None:
    """Refuse ce qui n'est pas un nombre fini, positif ou nul (ou plus grand que `above`)."""
    minimum = "positif ou nul" if above is None else f"plus grand que {above}"
    valid = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or value < 0 or (above is not None and value <= above):
        raise ConfigError(f"{name} doit être un nombre fini {minimum}, et non {value!r}.")


def normalized(name: object) -> str:
    """Ce qui reste d'un nom sans marque, dépôt, conditionnement ni variante : ces mots ne changent aucune dimension."""
    words = re.findall(r"[a-z0-9.]+", str(name).lower().rpartition("/")[2])
    return "".join(word.removesuffix("gb") for word in words if word not in _NOISE)


_NOISE = {"nvidia", "tesla", "sxm", "sxm4", "sxm5", "hbm3", "hbm3e", "meta", "instruct", "chat", "hf"}


@dataclass(frozen=True)
class Hardware:
    """Une machine d'après sa fiche technique, donc au mieux : aucun programme n'atteint ces crêtes.

    `memory_bytes` : octets ; `bandwidth` : octets par seconde ; `flops` : par type, opérations par seconde en matrices denses
    (les fiches affichent parfois le double, qui suppose la moitié des poids nuls). Un type absent n'est pas calculé par la machine.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    flops: dict[str, float]
    source: str

    def __post_init__(self) -> None:
        for field, value in (("memory_bytes", self.memory_bytes), ("bandwidth", self.bandwidth), *self.flops.items()):
            require_number(f"{self.name} : {field}", value, above=0)


def _nvidia(name: str, memory: float, bandwidth: float, source: str, **teraflops: float) -> Hardware:
    return Hardware(name, round(memory * 1e9), bandwidth * 1e9, {dtype: value * 1e12 for dtype, value in teraflops.items()}, source)


_SITE = "https://www.nvidia.com/en-us/data-center/"
_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_AMPERE = "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
# La moitié des chiffres affichés, qui sont « avec sparsity ».
_HOPPER = {"float32": 67, "float16": 989.5, "bfloat16": 989.5, "fp8": 1979, "int8": 1979}

# Versions SXM pour A100, H100 et H200. Le « 16 GB » d'une fiche est lu 16 Go ; le pilote en laisse quelques pour cent de moins ou
# de plus (PyTorch voit 15,6 Go sur le T4 de Colab, 42,4 Go sur un A100-40).
HARDWARE = {
    hardware.name: hardware
    for hardware in (
        # La fiche PDF du T4 dit 300 Go/s ; sa page, « 320+ » : 256 bits × 10 Gbit/s font bien 320.
        _nvidia("T4", 16, 320, f"{_SITE}tesla-t4/", float32=8.1, float16=65, int8=130),
        _nvidia("L4", 24, 300, f"{_SITE}l4/", float32=30.3, float16=121, bfloat16=121, fp8=242.5, int8=242.5),
        _nvidia("A100-40", 40, 1555, _AMPERE, float32=19.5, float16=312, bfloat16=312, int8=624),
        _nvidia("A100-80", 80, 2039, _A100, float32=19.5, float16=312, bfloat16=312, int8=624),
        _nvidia("H100", 80, 3350, f"{_SITE}h100/", **_HOPPER),
        _nvidia("H200", 141, 4800, f"{_SITE}h200/", **_HOPPER),
    )
}


def get_hardware(name: str) -> Hardware:
    """La fiche de ce nom, casse, espaces et tirets indifférents : « a100 80gb », « Tesla T4 ». Inconnu : lève `ConfigError`."""
    for hardware in HARDWARE.values():
        memory = f"{hardware.memory_bytes / 1e9:.0f}"
        if normalized(name) in (normalized(hardware.name), normalized(f"{hardware.name} {memory}")):
            return hardware
    raise ConfigError(f"Machine inconnue : {name!r}. Fiches disponibles : {', '.join(HARDWARE)} ; this_cpu() mesure celle-ci.")


def this_cpu() -> Hardware:
    """La fiche de cette machine, mesurée : ses chiffres sont donc atteints, au contraire de ceux d'une fiche technique."""
    source, target = np.ones(2**26, dtype=np.float32), np.empty(2**26, dtype=np.float32)
    size = 2048
    matrix = np.ones((size, size), dtype=np.float32)
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        raise ConfigError("Ce système ne dit pas sa mémoire : construisez la fiche avec Hardware(...).") from None
    return Hardware(
        name="CPU de cette machine",
        memory_bytes=memory_bytes,
        bandwidth=(source.nbytes + target.nbytes) / _shortest(lambda: np.copyto(target, source)),
        flops={"float32": 2 * size**3 / _shortest(lambda: matrix @ matrix)},
        source=f"mesuré ici avec NumPy {np.__version__} : copie de 256 Mio (lus, puis écrits), produit de matrices {size} × {size}",
    )


def _shortest(action: Callable[[], object], repeats: int = 5) -> float:
    """Durée de l'essai le plus rapide, en secondes : les autres ont été dérangés."""
    durations = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        durations.append(time.perf_counter() - start)
    return min(durations)
