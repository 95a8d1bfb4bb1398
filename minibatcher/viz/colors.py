"""Donner une couleur à chaque requête, de sorte que deux voisines ne se confondent jamais."""

from collections.abc import Iterable, Sequence

import numpy as np

from minibatcher.viz.style import REQUEST_COLORS


def neighbors(occupancy: np.ndarray) -> set[tuple[int, int]]:
    """Les couples de requêtes (numéros croissants) qui se touchent dans `occupancy`, entiers `[pas, slots]`, -1 si vide.

    Elles se suivent dans un slot, ou occupent au même pas deux slots voisins.
    """
    pairs: set[tuple[int, int]] = set()
    for first, second in ((occupancy[:-1], occupancy[1:]), (occupancy[:, :-1], occupancy[:, 1:])):
        touching = (first != second) & (first >= 0) & (second >= 0)
        couples = np.sort(np.stack([first[touching], second[touching]], axis=1), axis=1)
        pairs.update(map(tuple, np.unique(couples, axis=0).tolist()))
    return pairs


def request_colors(num_requests: int, pairs: Iterable[tuple[int, int]], palette: Sequence[str] = REQUEST_COLORS) -> list[str]:
    """Une couleur par requête, différente de celle de ses voisines tant que la palette le permet.

    Chacune, dans l'ordre, prend la couleur la moins portée autour d'elle ; à égalité, la suivante de la palette.
    """
    around: list[set[int]] = [set() for _ in range(num_requests)]
    for first, second in pairs:
        around[first].add(second)
        around[second].add(first)
    chosen: list[int] = []
    for request in range(num_requests):
        worn = [0] * len(palette)
        for other in around[request]:
            if other < request:
                worn[chosen[other]] += 1
        chosen.append(min(range(len(palette)), key=lambda c: (worn[c], (c - request) % len(palette))))
    return [palette[index] for index in chosen]
