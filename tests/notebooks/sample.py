"""Un cours en miniature, dans un dossier temporaire : un module, un exercice, deux carnets, tous en règle."""

from dataclasses import replace
from pathlib import Path

from minibatcher.course.lessons import Lesson

FIRST = Lesson("00_accueil", "Bonjour", "Le début.", written=True)
SECOND = Lesson("01_file", "Une file", "La file.", ("queue",), exercise="ex01", written=True)
THIRD = Lesson("02_suite", "La suite", "La fin.", ("later",), gpu="utile")
LESSONS = (FIRST, SECOND, THIRD)

QUEUE = '''\
"""La file."""

import functools

# Assez pour tout le monde.
CAPACITY = 8


# Le plus court d'abord.
@functools.cache
def shortest(lengths: tuple[int, ...]) -> int:
    """La plus courte."""
    return min(lengths)


class Queue:
    """Une file."""

    def pop(self) -> int:
        """Le premier."""
        return 1
'''
EXERCISE = '''\
# Exercice ex01, généré depuis solutions/ex01_file.py.
# Pour la vérifier : minibatcher check ex01
"""L'exercice."""


def longest(lengths: list[int]) -> int:
    """La plus longue."""
    raise NotImplementedError("Comparez-les.")
'''
PREDICTION = """\
# %% [markdown]
# > **Prédisez.** Combien ?

# %%
1 + 1
"""
WELCOME = f"""\
# %% [markdown]
# # Bonjour
#
# **Dans ce carnet**, rien d'autre.

# %% tags=["mise-en-place"]

{PREDICTION * 4}
# %% [markdown]
# ## À retenir
#
# Tout.
"""
SOURCE = f"""\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Une file
#
# **Dans ce carnet** : la file. Voir [le début](00_accueil.ipynb#À-retenir).

# %% tags=["mise-en-place"]

{PREDICTION * 4}
# %% [markdown] tags=["cite"]
# minibatcher/queue.py::shortest
# minibatcher/queue.py::Queue.pop

# %%
from minibatcher.queue import shortest

shortest((3, 1, 2))

# %% tags=["exercice"]
ex01

# %% tags=["mesure"]
print("une durée")

# %% [markdown]
# ## Ce que nous avons construit
#
# Une file.
#
# ## À retenir
#
# Elle avance.
"""


def make_course(root: Path, source: str = SOURCE, address: str = "") -> Path:
    """Écrit le cours dans `root` ; `source` : celle du carnet 01 ; `address` : celle de pyproject.toml."""
    urls = f'\n[project.urls]\nRepository = "{address}"\n' if address else ""
    files = {
        "pyproject.toml": f'[project]\nname = "minibatcher"\nversion = "1.2.3"\n{urls}',
        "minibatcher/queue.py": QUEUE,
        "minibatcher/later.py": '"""Plus tard."""\n',
        "exercises/ex01_file.py": EXERCISE,
        "notebooks/sources/00_accueil.py": WELCOME,
        "notebooks/sources/01_file.py": source,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def with_gpu(lesson: Lesson) -> Lesson:
    """Le même carnet, auquel un GPU sert."""
    return replace(lesson, gpu="utile")
