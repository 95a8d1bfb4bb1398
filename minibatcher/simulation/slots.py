"""Le modèle à slots : à chaque pas, chaque séquence en cours produit un token, et tous les pas durent le même temps.

Ni prefill, ni mémoire : c'est `minibatcher.simulation.memory` qui limite le cache.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

from minibatcher.errors import ConfigError, require_int


def batching_statique(longueurs: Iterable[int], B: int) -> tuple[int, float]:
    """Des lots de `B`, dans l'ordre ; chacun dure autant que sa plus longue séquence. Rend `(etapes, utilisation)`.

    `longueurs` : tokens à produire par requête, au moins 1. `utilisation` : tokens / (`B` × `etapes`). Lève `ConfigError`.
    """
    longueurs, B = as_lengths("longueurs", longueurs), as_int("B", B)
    etapes = sum(max(longueurs[debut : debut + B]) for debut in range(0, len(longueurs), B))
    return etapes, sum(longueurs) / (B * etapes)


def batching_continu(longueurs: Iterable[int], B: int) -> tuple[int, float]:
    """Dès qu'une séquence finit, la suivante de la file prend son slot. Arguments et résultat de `batching_statique`."""
    longueurs, B = as_lengths("longueurs", longueurs), as_int("B", B)
    # Le pas où chaque slot se libère, en tas : on va de fin en fin, sans compter les pas un à un.
    libre_a = [0] * min(B, len(longueurs))
    for longueur in longueurs:
        heapreplace(libre_a, libre_a[0] + longueur)
    etapes = max(libre_a)
    return etapes, sum(longueurs) / (B * etapes)


@dataclass
class SlotRun:
    """Un chronogramme.

    - `num_steps` : pas jusqu'au dernier token ; `utilization` : tokens demandés / (slots × pas) ;
    - `occupancy` : entiers `[num_steps, num_slots]`, numéro de la requête dans ce slot à ce pas, -1 s'il est vide.
    """

    num_steps: int
    utilization: float
    occupancy: np.ndarray


Stay = tuple[int, int, int, int]  # numéro de requête, slot, premier pas, premier pas où elle n'y est plus


def static_timeline(lengths: Iterable[int], num_slots: int) -> SlotRun:
    """Le chronogramme de `batching_statique`."""
    lengths, num_slots = as_lengths("lengths", lengths), as_int("num_slots", num_slots)
    stays: list[Stay] = []
    start = 0
    for first in range(0, len(lengths), num_slots):
        batch = lengths[first : first + num_slots]
        stays += [(first + slot, slot, start, start + length) for slot, length in enumerate(batch)]
        start += max(batch)
    return SlotRun(start, sum(lengths) / (num_slots * start), fill_occupancy(stays, start, num_slots))


def continuous_timeline(lengths: Iterable[int], num_slots: int) -> SlotRun:
    """Le chronogramme de `batching_continu` ; de deux slots libres au même pas, le premier sert d'abord."""
    lengths, num_slots = as_lengths("lengths", lengths), as_int("num_slots", num_slots)
    free_at = [(0, slot) for slot in range(num_slots)]
    stays: list[Stay] = []
    for index, length in enumerate(lengths):
        start, slot = free_at[0]
        heapreplace(free_at, (start + length, slot))
        stays.append((index, slot, start, start + length))
    num_steps = max(step for step, _ in free_at)
    return SlotRun(num_steps, sum(lengths) / (num_slots * num_steps), fill_occupancy(stays, num_steps, num_slots))


def fill_occupancy(stays: list[Stay], num_steps: int, num_slots: int) -> np.ndarray:
    """Le tableau `occupancy` de ces séjours."""
    occupancy = np.full((num_steps, num_slots), -1, dtype=np.int32)
    for index, slot, start, end in stays:
        occupancy[start:end, slot] = index
    return occupancy


def as_int(name: str, value: object, minimum: int = 1) -> int:
    """L'entier donné, même s'il vient de numpy. Lève `ConfigError`."""
    value = value.item() if isinstance(value, np.generic) else value
    require_int(name, value, minimum)
    return value


def as_lengths(name: str, values: Iterable[int], minimum: int = 1) -> list[int]:
    """La liste d'entiers donnée, non vide. Lève `ConfigError`, avec l'indice de celui qui ne va pas."""
    try:
        values = list(values)
    except TypeError:
        raise ConfigError(f"{name} doit être une liste d'entiers, et non {values!r}.") from None
    if not values:
        raise ConfigError(f"{name} est vide : donnez au moins une longueur.")
    return [as_int(f"{name}[{index}]", value, minimum) for index, value in enumerate(values)]
