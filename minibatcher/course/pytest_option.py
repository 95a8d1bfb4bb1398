"""L'option `--submission` de pytest, pour `tests/exercises`.

Elle doit être connue avant que pytest lise la ligne de commande : sinon il prendrait le dossier de la copie pour celui de tests,
et exécuterait le `conftest.py` qui s'y trouverait. D'où `-p minibatcher.course.pytest_option` dans pyproject.toml.
"""

from pathlib import Path

import pytest

from minibatcher.course.places import checks_folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--submission", type=Path, metavar="DOSSIER", help="le dossier des réponses à vérifier (tests/exercises)")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Demandés seuls, les tests d'une copie se passent de torch : le `conftest.py` de tests/, qui l'importe, n'est pas lu."""
    options = early_config.known_args_namespace
    paths = [Path(name.partition("::")[0]).resolve() for name in options.file_or_dir]
    if paths and all(path.is_relative_to(checks_folder()) for path in paths):
        options.confcutdir = str(checks_folder())


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--submission")
    if folder is not None and not folder.is_dir():
        raise pytest.UsageError(f"--submission : {folder} n'est pas un dossier.")
