"""La carte des blocs : à qui est chaque bloc physique du cache, lesquels sont partagés, gardés en cache ou libres."""

import re
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minibatcher.kv_cache import KVCacheManager
from minibatcher.viz.style import (
    GREY,
    INK,
    MUTED,
    REQUEST_COLORS,
    WIDTH,
    enumerate_in_french,
    new_figure,
    percent,
    plural,
    set_title,
    styled,
    text_on,
)

Owner = str | Iterable[str] | None
FREE, CACHED, USED, SHARED = "libre", "en cache", "utilisé", "partagé"
MAX_STRIPES = 3  # propriétaires d'un bloc que l'on distingue encore


@styled
def plot_blocks(
    block_owner: Sequence[Owner],
    ref_counts: Sequence[int] | None = None,
    hashed: Sequence[bool] | None = None,
    columns: int = 16,
    title: str = "Le cache, bloc par bloc",
    labels: Mapping[str, str] | None = None,
) -> tuple[Figure, str]:
    """Une case par bloc physique, dans l'ordre des numéros ; rend la figure et son texte alternatif.

    - `block_owner[i]` : la requête qui tient le bloc `i`, ou toutes celles qui le tiennent, ou `None` ;
    - `ref_counts[i]` : son compteur de références (par défaut, le nombre de ses propriétaires) ;
    - `hashed[i]` : son contenu peut-il resservir ? Un bloc que personne ne tient est alors « en cache », sinon « libre » ;
    - `labels` : le nom court de chaque requête (par défaut, son identifiant s'il a trois caractères au plus, sinon une lettre).
      Donné, son ordre fixe les couleurs : celles d'une suite de figures restent les mêmes.

    `plot_blocks(**block_map(manager))` dessine l'état d'un `KVCacheManager`. Lève `ValueError` si les longueurs diffèrent.
    """
    owners = [_as_owners(owner) for owner in block_owner]
    ref_counts = [len(names) for names in owners] if ref_counts is None else list(ref_counts)
    hashed = [False] * len(owners) if hashed is None else list(hashed)
    if not owners or len({len(owners), len(ref_counts), len(hashed)}) > 1:
        raise ValueError(
            f"Il faut autant de propriétaires ({len(owners)}), de compteurs ({len(ref_counts)}) et d'empreintes ({len(hashed)}), "
            "et au moins un bloc."
        )
    states = [_state(count, has_hash) for count, has_hash in zip(ref_counts, hashed, strict=True)]
    requests = sorted({name for names in owners for name in names}, key=_natural)
    if labels is not None:
        requests = [*labels, *(request for request in requests if request not in labels)]
    short = _short_names(requests, labels)
    colors = {request: REQUEST_COLORS[i % len(REQUEST_COLORS)] for i, request in enumerate(requests)}
    columns = min(columns, len(owners))
    rows = -(-len(owners) // columns)
    cell = min(0.55, (WIDTH - 0.6) / columns)
    handles = _handles(states, owners, short, colors)
    ncols = max(1, 110 // (6 + max(len(handle.get_label()) for handle in handles)))
    figure, axes = new_figure(0.85 + rows * cell + 0.2 * -(-len(handles) // ncols))
    for block, (names, count, state) in enumerate(zip(owners, ref_counts, states, strict=True)):
        _draw_block(axes, block % columns, block // columns, state, [(short[n], colors[n]) for n in names], count, cell)
    axes.set(xlim=(-0.02, max(columns, (WIDTH - 0.6) / cell)), ylim=(rows + 0.02, -0.02), aspect="equal", anchor="NW", xticks=[])
    axes.set_yticks([row + 0.5 for row in range(rows)], [str(row * columns) for row in range(rows)])
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)
    set_title(axes, title, _counts(states))
    figure.legend(handles=handles, loc="outside lower left", ncols=ncols, handlelength=1.4, columnspacing=1.4)
    return figure, f"{title}. {_counts(states)}.{_tables(owners, short)}"


def block_map(manager: KVCacheManager) -> dict:
    """Les arguments de `plot_blocks` pour l'état présent de ce gestionnaire."""
    owners: list[list[str]] = [[] for _ in range(manager.num_blocks)]
    for request_id, table in manager.block_tables.items():
        for block in table:
            owners[block].append(request_id)
    pool = manager.block_pool
    return {
        "block_owner": owners,
        "ref_counts": list(pool.ref_counts),
        "hashed": [block_hash is not None for block_hash in pool.block_hashes],
    }


def _as_owners(owner: Owner) -> list[str]:
    if owner is None:
        return []
    return [owner] if isinstance(owner, str) else [str(name) for name in owner]


def _natural(request: str) -> list:
    """Clé de tri où « r10 » vient après « r9 »."""
    return [(not part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"([0-9]+)", request)]


def _state(ref_count: int, has_hash: bool) -> str:
    if ref_count:
        return SHARED if ref_count > 1 else USED
    return CACHED if has_hash else FREE


def _short_names(requests: list[str], labels: Mapping[str, str] | None) -> dict[str, str]:
    if labels is not None:
        return {request: str(labels.get(request, request)) for request in requests}
    if all(len(request) <= 3 for request in requests):
        return {request: request for request in requests}
    return {request: chr(ord("A") + i) if len(requests) <= 26 else str(i) for i, request in enumerate(requests)}


# Ce qui distingue les états sans la couleur : le fond et les hachures ; une lettre (deux si le bloc est partagé).
_LOOKS = {
    FREE: {"facecolor": "white", "edgecolor": GREY, "linewidth": 1.0},
    CACHED: {"facecolor": "#E6E6E6", "edgecolor": MUTED, "linewidth": 1.0, "hatch": "...."},
    USED: {"edgecolor": "white", "linewidth": 0},
    SHARED: {"facecolor": "none", "edgecolor": INK, "linewidth": 2.2},
}


def _draw_block(axes: Axes, x: int, y: int, state: str, owners: list[tuple[str, str]], ref_count: int, cell: float) -> None:
    margin, side = 0.05, 0.9
    if not owners or state in (FREE, CACHED):
        axes.add_patch(Rectangle((x + margin, y + margin), side, side, **_LOOKS[state]))
        return
    shown = owners[:MAX_STRIPES]
    width = side / len(shown)
    for i, (label, color) in enumerate(shown):
        left = x + margin + i * width
        last = i == len(shown) - 1 and ref_count > len(shown)  # plus de tables que de bandes : la dernière les compte
        text, color = (f"×{ref_count}", "#FFFFFF") if last else (label, color)
        axes.add_patch(Rectangle((left, y + margin), width, side, facecolor=color, linewidth=0))
        size = min(11.0, 0.85 * 72 * cell * width / max(1, 0.9 * len(text)))
        axes.text(
            left + width / 2, y + 0.5, text, ha="center", va="center_baseline", color=text_on(color), fontsize=size, weight="bold"
        )
    if state == SHARED:
        axes.add_patch(Rectangle((x + margin, y + margin), side, side, **_LOOKS[SHARED]))


def _counts(states: list[str]) -> str:
    """« 24 blocs : 10 utilisés (dont 2 partagés), 3 en cache, 11 libres ; 42 % utilisés »."""
    used, shared = len(states) - states.count(FREE) - states.count(CACHED), states.count(SHARED)
    among = f" (dont {plural(shared, SHARED)})" if shared else ""
    rest = f"{states.count(CACHED)} en cache, {plural(states.count(FREE), FREE)}"
    return f"{plural(len(states), 'bloc')}, {percent(used / len(states))} utilisés\u202f: {plural(used, USED)}{among}, {rest}"


def _handles(states: list[str], owners: list[list[str]], short: Mapping[str, str], colors: Mapping[str, str]) -> list[Patch]:
    handles = [Patch(**({"facecolor": GREY} | _LOOKS[state]), label=state) for state in _LOOKS if state in states]
    present = {name for names in owners for name in names}
    renamed = [request for request in short if short[request] != request and request in present]
    if len(renamed) <= 12:
        handles += [Patch(facecolor=colors[request], label=f"{short[request]}\u202f: {request}") for request in renamed]
    return handles


def _tables(owners: list[list[str]], short: Mapping[str, str]) -> str:
    """Qui tient quoi, si cela tient en une phrase."""
    held = {request: [str(block) for block, names in enumerate(owners) if request in names] for request in short}
    held = {request: blocks for request, blocks in held.items() if blocks}
    if len(held) > 8:
        return f" {plural(len(held), 'requête')} se les partagent."
    said = ""
    for request, blocks in held.items():
        listed = f" ({enumerate_in_french(blocks)})" if len(blocks) <= 12 else ""
        said += f" {short[request]}\u202f: {plural(len(blocks), 'bloc')}{listed}."
    return said
