"""Afficher une figure dans un carnet : une image qui porte son texte alternatif."""

import base64
import html
import sys

from matplotlib.figure import Figure

from minibatcher.viz.style import french_spaces, to_png

CSS_DPI = 96  # pixels par pouce d'une page web


def show(figure: Figure, alt: str) -> str | None:
    """Affiche la figure dans le carnet et la ferme ; hors d'un carnet, n'affiche rien et rend le texte alternatif.

    S'emploie d'un trait avec les fonctions de dessin, qui rendent la figure et son texte : `show(*plot_slots(run))`.
    """
    alt = french_spaces(alt)
    if not in_notebook():
        close(figure)
        return alt
    from IPython.display import display

    display({"text/html": figure_html(figure, alt), "text/plain": alt}, raw=True)
    return None


def figure_html(figure: Figure, alt: str) -> str:
    """La figure en balise `<img>`, image comprise (PNG en base64), et la figure fermée.

    Largeur et hauteur sont données : la page garde la place de l'image pendant qu'elle change.
    """
    width, height = (round(inches * CSS_DPI) for inches in figure.get_size_inches())
    data = base64.b64encode(to_png(figure, alt)).decode()
    close(figure)
    return (
        f'<img alt="{html.escape(french_spaces(alt))}" src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        'style="display: block; max-width: 100%; height: auto; background: white">'
    )


def close(figure: Figure) -> None:
    """Ferme la figure si pyplot la tient : il l'afficherait une seconde fois."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)


def in_notebook() -> bool:
    """Vrai dans un noyau Jupyter (Colab compris), faux dans un terminal ou un script."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
