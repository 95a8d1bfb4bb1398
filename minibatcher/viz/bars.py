"""Des barres : comparer des débits, partager une mémoire, montrer ce qu'une réservation perd."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minibatcher.viz.marks import PLATE
from minibatcher.viz.style import (
    BLUE,
    EMPTY,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WIDTH,
    french_axis,
    french_number,
    new_figure,
    percent,
    plural,
    set_title,
    styled,
    text_on,
)

PART_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY)
UNUSED = "inutilisé"


@styled
def plot_throughputs(names: Sequence[str], values: Sequence[float], title: str) -> tuple[Figure, str]:
    """Débits en tokens par seconde, la barre du cours en couleur ; rend la figure et son texte alternatif."""
    figure, axes = new_figure(0.9 + 0.5 * len(names))
    colors = [BLUE if "minibatcher" in name else GREY for name in names]
    bars = axes.barh(range(len(names)), values, color=colors, height=0.7)
    axes.bar_label(bars, labels=[french_number(value) for value in values], padding=4)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("tokens produits par seconde")
    axes.margins(x=0.12)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    french_axis(axes.xaxis)
    set_title(axes, title)
    listed = "\u202f; ".join(f"{name}\u202f: {french_number(value)} tokens/s" for name, value in zip(names, values, strict=True))
    return figure, f"Débits mesurés. {listed}."


@styled
def plot_memory_bar(
    parts: Mapping[str, float], total: float, title: str = "Où passe la mémoire du GPU", unused: str = UNUSED
) -> tuple[Figure, str]:
    """La mémoire du GPU en une barre ; rend la figure et son texte alternatif. Octets, affichés en Go (10^9).

    `parts` : octets par usage, dans l'ordre ; `total` : mémoire du GPU. Ce qui reste s'appelle `unused` ; ce qui dépasse
    est dessiné au-delà du trait qui marque la fin de la mémoire.
    """
    spent = sum(parts.values())
    shown = {name: size for name, size in parts.items() if size > 0}
    if spent < total:
        shown[unused] = total - spent
    extent = max(spent, total)
    too_much = spent > total
    figure, axes = new_figure(2.25 if too_much else 1.95)
    start, labels = 0.0, []
    for i, (name, size) in enumerate(shown.items()):
        free = name == unused and spent < total
        look = (
            {"facecolor": EMPTY, "hatch": "////", "edgecolor": GREY}
            if free
            else {"facecolor": PART_COLORS[i % len(PART_COLORS)], "edgecolor": "white"}
        )
        axes.add_patch(Rectangle((start / 1e9, 0), size / 1e9, 1, linewidth=0 if free else 1, **look))
        labels.append((start + size / 2, size, f"{name}\n{gigabytes(size)}", MUTED if free else text_on(look["facecolor"]), free))
        start += size
    _label_parts(axes, labels, extent)
    axes.set(xlim=(0, extent / 1e9), ylim=(0, 1.8 if too_much else 1.45), yticks=[], xlabel="Go")
    if too_much:
        axes.vlines(total / 1e9, -0.05, 1.5, color=VERMILION, linewidth=3, zorder=1.5)
        side = "right" if total > extent / 2 else "left"
        text = f" fin de la mémoire\u202f: {gigabytes(total)} "
        axes.text(total / 1e9, 1.55, text, ha=side, va="bottom", color=INK, fontweight="bold")
    axes.spines["left"].set_visible(False)
    french_axis(axes.xaxis)
    set_title(axes, title)
    listed = ", ".join(f"{name} {gigabytes(size)} ({percent(size / total)})" for name, size in shown.items())
    verdict = f" Il manque {gigabytes(spent - total)}." if too_much else ""
    return figure, f"{title}. Sur {gigabytes(total)}\u202f: {listed}.{verdict}"


def gigabytes(size: float) -> str:
    """« 16,1 Go » (10^9 octets)."""
    return f"{french_number(size / 1e9, 1)} Go"


def _label_parts(axes: Axes, labels: list[tuple[float, float, str, str, bool]], extent: float) -> None:
    """Le nom de chaque part dedans, s'il y tient ; sinon au-dessus, au bout d'un trait, sans toucher le précédent."""
    per_point = extent / ((WIDTH - 0.3) * 72)
    busy = 0.0
    for middle, size, text, color, free in labels:
        width = 6.4 * max(map(len, text.split("\n"))) * per_point
        plate = {"facecolor": EMPTY, "edgecolor": "none", "pad": 2} if free else None
        if size > width:
            axes.text(middle / 1e9, 0.5, text, ha="center", va="center", color=color, bbox=plate)
            continue
        text = text.replace("\n", " ")
        width = 5.5 * len(text) * per_point
        left = min(max(middle - width / 2, busy), extent - width)
        busy = left + width + 12 * per_point
        axes.plot([middle / 1e9] * 2, [1.0, 1.13], color=MUTED, linewidth=1)
        axes.text(left / 1e9, 1.18, text, ha="left", va="bottom", fontsize=9, bbox=PLATE)


@styled
def plot_reservation(
    lengths: Sequence[int], reservation: int | Iterable[int], title: str = "Réservé d’avance, et vraiment utilisé"
) -> tuple[Figure, str]:
    """Une colonne par séquence : ses tokens, et ce qui lui était réservé ; rend la figure et son texte alternatif.

    `lengths` : tokens de chaque séquence ; `reservation` : tokens réservés, les mêmes pour toutes ou un nombre par séquence.
    """
    lengths = list(lengths)
    reserved = [reservation] * len(lengths) if isinstance(reservation, int) else list(reservation)
    if len(reserved) != len(lengths) or not lengths:
        raise ValueError(f"Il faut une réservation par séquence\u202f: {len(reserved)} pour {len(lengths)}.")
    figure, axes = new_figure(3.4)
    for i, (length, room) in enumerate(zip(lengths, reserved, strict=True)):
        used = min(length, room)
        axes.add_patch(Rectangle((i - 0.42, used), 0.84, room - used, facecolor=EMPTY, hatch="////", edgecolor=GREY, linewidth=0))
        axes.add_patch(Rectangle((i - 0.42, 0), 0.84, used, facecolor=BLUE, linewidth=0))
    axes.set(xlim=(-0.6, len(lengths) - 0.4), ylim=(0, 1.04 * max(reserved)), xlabel="séquence", ylabel="tokens de cache")
    if len(lengths) <= 40:
        axes.set_xticks(range(0, len(lengths), 1 if len(lengths) <= 20 else 5))
    french_axis(axes.xaxis)
    french_axis(axes.yaxis)
    useful, total = sum(map(min, lengths, reserved)), sum(reserved)
    numbers = f"{french_number(useful)} tokens utiles sur {french_number(total)} réservés\u202f: {percent(useful / total)}"
    set_title(axes, title, numbers)
    handles = [
        Patch(facecolor=BLUE, label="utilisé"),
        Patch(facecolor=EMPTY, hatch="////", edgecolor=GREY, linewidth=0, label="réservé pour rien"),
    ]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
    worst = percent(min(min(pair) / pair[1] for pair in zip(lengths, reserved, strict=True)))
    alt = f"{title}. {plural(len(lengths), 'séquence')}, {numbers}\u202f; la moins remplie n'emploie que {worst} de sa réservation."
    return figure, alt
