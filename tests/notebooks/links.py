"""Les liens d'un carnet : vers un fichier qui existe, un titre qui existe ; les images ont un texte alternatif."""

import re
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

from minibatcher.course.publication import Publication

_BADGE = "https://colab.research.google.com/"


def link_problems(name: str, notebooks: dict[str, object], folder: Path, publication: Publication) -> list[str]:
    """Les liens fautifs du carnet `name` ; `notebooks` : tous les carnets du cours, par nom ; `folder` : le dossier où ils sont."""
    problems = []
    for rank, cell in enumerate(notebooks[name].cells, start=1):
        if cell.cell_type != "markdown":
            continue
        for kind, target, text in _links(cell.source):
            reason = _image_problem(text) if kind == "image" else _link_problem(name, target, notebooks, folder, publication)
            if reason:
                problems.append(f"{name}, cellule {rank} : {reason} ({target})")
    return problems


def _links(markdown: str) -> list[tuple[str, str, str]]:
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        for child in token.children or []:
            if child.type == "link_open":
                found.append(("link", str(child.attrs["href"]), ""))
            elif child.type == "image":
                found.append(("image", str(child.attrs["src"]), child.content))
    html_links = re.findall(r"<a\s[^>]*href=[\"']([^\"']*)", markdown)
    return found + [("link", target, "") for target in html_links]


def _image_problem(alternative: str) -> str:
    return "" if alternative.strip() else "image sans texte alternatif"


def _link_problem(name: str, target: str, notebooks: dict, folder: Path, publication: Publication) -> str:
    if target.startswith(_BADGE):
        return "" if target == publication.colab_url(name) else "le lien vers Colab n'est pas celui de ce carnet"
    if re.match(r"[a-z]+:", target):
        return "" if target.startswith("https://") else "seuls les liens https sont admis"
    path, _, fragment = unquote(target).partition("#")
    page = Path(path).stem if path else name
    if path and page not in notebooks and not (folder / path).exists():
        return "lien vers un fichier qui n'existe pas"
    if path.endswith(".ipynb") and page not in notebooks:
        return "lien vers un carnet qui n'est pas de ce cours"
    if fragment and page in notebooks and fragment not in _anchors(notebooks[page]):
        return "lien vers un titre qui n'existe pas"
    return ""


def _anchors(notebook) -> set[str]:
    """Les ancres que JupyterLab donne aux titres (espaces ordinaires changées en tirets) et aux cellules."""
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    titles = [title for text in prose for title in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)]
    anchors = {re.sub(r"[*`]", "", title).replace(" ", "-") for title in titles}
    return anchors | {f"cell-id={cell.id}" for cell in notebook.cells}
