"""Le socle des widgets : des réglages, une figure redessinée quand ils changent, une phrase dessous.

Une seule règle d'affichage :

- dans un carnet, la cellule reçoit le widget **et** sa figure fixe ; l'interface montre le premier si elle le peut ;
- sans ipywidgets, la figure fixe et une phrase qui le dit ;
- hors d'un carnet, rien que le texte alternatif.

Rien que ce qu'ipywidgets 7.7 et 8 ont en commun. La figure est une image dans un widget HTML (ni pyplot, ni Output), que le
noyau dessine quand un réglage change : aucun minuteur n'y tourne, la lecture automatique vit dans la page et s'arrête avec elle.
"""

import html
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from minibatcher.errors import MinibatcherError
from minibatcher.viz.show import figure_html, in_notebook
from minibatcher.viz.style import french_spaces

MISSING = (
    "ipywidgets n’est pas installé\u202f: voici une figure fixe. Pour la manipuler, installez-le (pip install ipywidgets), "
    "puis relancez le noyau."
)
VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass
class View:
    """Ce qu'un réglage donne à voir : la figure, son texte alternatif, et des paragraphes de texte simple sous la figure.

    `table` : des lignes de cellules, la première pour les titres, à montrer sous les paragraphes.
    """

    figure: Figure | None
    alt: str
    paragraphs: list[str]
    table: list[list[str]] | None = None


class Interactive:
    """Des réglages et ce qu'ils montrent.

    - `draw(**réglages) -> View` : le dessin pour des valeurs des réglages ;
    - `values` : les valeurs de départ, qui sont aussi celles de la figure fixe (`fixed` en remplace quelques-unes) ;
    - `build(widgets) -> (contrôles, lignes, liens)` : avec le module ipywidgets, les contrôles par nom de réglage, les lignes à
      empiler, et les liens entre contrôles, à garder en vie.

    `widget` est le widget à afficher (`None` sans ipywidgets) ; `controls`, `picture` et `text` en sont les pièces.
    """

    def __init__(
        self,
        draw: Callable[..., View],
        values: Mapping[str, object],
        build: Callable,
        fixed: Mapping[str, object] | None = None,
    ) -> None:
        self.draw, self.values, self.fixed = draw, dict(values), {**values, **(fixed or {})}
        self.controls, self.links, self.picture, self.text, self.widget = {}, [], None, None, None
        try:
            import ipywidgets
        except ImportError:
            return
        self.controls, rows, self.links = build(ipywidgets)
        self.picture, self.text = ipywidgets.HTML(), ipywidgets.HTML()
        self.widget = ipywidgets.VBox([*rows, self.picture, self.text])
        for control in self.controls.values():
            control.observe(self._changed, names="value")
        self._redraw()

    def _changed(self, _change: object) -> None:
        self._redraw()

    def _redraw(self) -> None:
        self.values.update({name: control.value for name, control in self.controls.items()})
        self.picture.value, self.text.value = _render(self.view(self.values))

    def view(self, values: Mapping[str, object]) -> View:
        """Ce que montrent ces réglages ; s'ils sont impossibles, une phrase l'explique, jamais une trace d'erreur."""
        try:
            return self.draw(**values)
        except MinibatcherError as error:
            return View(None, str(error), [str(error)])

    def figure_fallback(self) -> tuple[Figure | None, str]:
        """La figure fixe et son texte alternatif."""
        view = self.view(self.fixed)
        return view.figure, view.alt

    def mime_bundle(self) -> dict:
        """Ce que reçoit la cellule, par format ; l'interface choisit le plus riche de ceux qu'elle connaît."""
        view = self.view(self.fixed)
        missing = f"<p>{html.escape(MISSING)}</p>" if self.widget is None else ""
        bundle = {"text/plain": french_spaces(view.alt), "text/html": missing + "".join(_render(view))}
        if self.widget is not None:
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
            # Colab a toujours son gestionnaire de widgets : l'image à côté ne pourrait que lui être préférée.
            if "google.colab" in sys.modules:
                del bundle["text/html"]
        return bundle

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.mime_bundle() if in_notebook() else {"text/plain": self.figure_fallback()[1]}, raw=True)


def _render(view: View) -> tuple[str, str]:
    """L'image et le texte d'une vue, en HTML."""
    return figure_html(view.figure, view.alt) if view.figure is not None else "", text_html(view)


def text_html(view: View) -> str:
    """Le texte d'une vue ; `role="status"` : un lecteur d'écran dit ce qui vient de changer."""
    body = "".join(f"<p style='margin: 0.3em 0'>{_escape(paragraph)}</p>" for paragraph in view.paragraphs)
    if view.table:
        head, *rows = view.table
        titles = "".join(f"<th scope='col'>{_escape(cell)}</th>" for cell in head)
        body += f"<table><thead><tr>{titles}</tr></thead><tbody>"
        for first, *rest in rows:
            cells = "".join(f"<td style='text-align: right'>{_escape(cell)}</td>" for cell in rest)
            body += f"<tr><th scope='row' style='text-align: left'>{_escape(first)}</th>{cells}</tr>"
        body += "</tbody></table>"
    return f"<div role='status' style='max-width: 60em; line-height: 1.5'>{body}</div>"


def _escape(text: str) -> str:
    return html.escape(french_spaces(text))
