"""Les vérifications des exercices.

Elles vivent dans `tests/exercises/` ; la roue en contient une copie, ici même. Dans le dépôt, ce paquet va les chercher là-bas :
`import minibatcher.course.checks.check_ex01` marche des deux côtés.
"""

from minibatcher.course.places import checks_folder

if checks_folder().as_posix() not in __path__:
    __path__.append(checks_folder().as_posix())
