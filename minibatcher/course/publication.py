"""Où le cours est publié : l'adresse du dépôt, fixée en un seul endroit, `[project.urls]` de pyproject.toml."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from minibatcher.course.source import BuildError

KEY = "Repository"


@dataclass(frozen=True)
class Publication:
    """Adresse du dépôt (« https://github.com/nom/depot », ou vide avant la publication) et version du cours."""

    address: str
    version: str

    @property
    def pip_source(self) -> str:
        """Ce que la cellule de mise en place donne à pip : le dépôt, à l'étiquette de cette version."""
        return f"git+{self.address}@v{self.version}" if self.address else ""

    def colab_url(self, lesson_id: str) -> str | None:
        """L'adresse Colab d'un carnet ; None si le cours n'est pas publié sur GitHub, seul dépôt que Colab sache ouvrir."""
        github = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", self.address)
        return github and f"https://colab.research.google.com/github/{github[1]}/blob/v{self.version}/notebooks/{lesson_id}.ipynb"


def read_publication(root: Path) -> Publication:
    """L'adresse et la version que donne `root`/pyproject.toml. Lève `BuildError` si l'adresse est mal écrite."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get(KEY, "")
    if address and not re.fullmatch(r"(https|file)://[^\s\"'@]+[^\s\"'@/]", address.removesuffix(".git")):
        raise BuildError(f"pyproject.toml, project.urls.{KEY} : « {address} » n'est pas une adresse https sans barre finale.")
    return Publication(address.removesuffix(".git"), project["version"])
