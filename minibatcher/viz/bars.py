"""Comparer des débits : une barre par moteur."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from minibatcher.viz.style import BLUE, GREY, french_number


def plot_throughputs(names: Sequence[str], values: Sequence[float], title: str) -> tuple[Figure, str]:
    """Débits en tokens par seconde, la barre du cours en couleur ; rend la figure et son texte alternatif."""
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.55 * len(names)))
    colors = [BLUE if "minibatcher" in name else GREY for name in names]
    bars = axes.barh(range(len(names)), values, color=colors)
    axes.bar_label(bars, labels=[french_number(value) for value in values], padding=4)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="tokens produits par seconde", title=title)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    listed = " ; ".join(f"{name} : {french_number(value)} tokens/s" for name, value in zip(names, values, strict=True))
    return figure, f"Débits mesurés. {listed}."
