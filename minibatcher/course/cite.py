"""Citer le code du paquet : le texte exact d'une définition, pris dans son fichier."""

import ast
import textwrap
from pathlib import Path

from minibatcher.course.source import BuildError


def cite(root: Path, reference: str) -> str:
    """Le code que désigne `reference`, tel qu'il est écrit.

    - `reference` : `chemin/fichier.py`, `chemin/fichier.py::nom` ou `chemin/fichier.py::Classe.methode`, chemin relatif à `root` ;
    - rendu : docstring, décorateurs et commentaires collés au-dessus compris, marge retirée.

    Lève `BuildError` si le fichier ou le nom n'existe pas.
    """
    path, _, name = (part.strip() for part in reference.partition("::"))
    file = root / path
    if not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
        raise BuildError(f"le fichier cité « {path} » n'existe pas.")
    source = file.read_text(encoding="utf-8")
    if not name:
        return source.strip("\n")
    body, found = ast.parse(source).body, None
    known: list[str] = []
    for part in name.split("."):
        known = [each for node in body for each in _names(node)]
        found = next((node for node in body if part in _names(node)), None)
        if found is None:
            raise BuildError(f"« {name} » n'existe pas dans {path}. On y trouve : {', '.join(known) or 'rien'}.")
        body = getattr(found, "body", [])
    lines = source.split("\n")
    first = min([found.lineno, *(node.lineno for node in getattr(found, "decorator_list", []))]) - 1
    while first > 0 and lines[first - 1].lstrip().startswith("#") and _margin(lines[first - 1]) == _margin(lines[first]):
        first -= 1
    return textwrap.dedent("\n".join(lines[first : found.end_lineno]))


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def cite_cell(root: Path, reference: str) -> str:
    """La cellule Markdown de cette citation : une légende, puis le code."""
    path, _, name = (part.strip() for part in reference.partition("::"))
    code = cite(root, reference)
    fence = "````" if "```" in code else "```"
    caption = f"**Dans le paquet** — `{path}`" + (f", `{name}`" if name else ", en entier")
    return f"{caption}\n\n{fence}python\n{code}\n{fence}"
