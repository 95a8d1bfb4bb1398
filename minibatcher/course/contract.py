"""Décrire un exercice : ses fonctions, ses vérifications, les erreurs que l'on y fait souvent.

`tests/exercises/check_exNN.py` définit `exercise` ainsi :

    exercise = Exercise("ex99", "Compter", "ex99_compter.py", {"somme": Contract(("valeurs",), int)})

    @exercise.check("La somme de quelques listes", hints=("Partez de zéro.",))
    def somme(trial):
        trial.compare("somme", [([],), ([1, 2],)], reference=sum)

`trial` est un `minibatcher.course.trial.Trial` : la réponse d'une personne.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contract:
    """Une fonction demandée : ses paramètres, et le type qu'elle rend (`int`), ou ceux d'un tuple (`{"etapes": int, …}`)."""

    parameters: tuple[str, ...]
    returns: type | dict[str, type]

    @property
    def shape(self) -> str:
        """Ce qui est rendu, en mots de Python : « int », « (int, float) »."""
        if isinstance(self.returns, dict):
            return f"({', '.join(cls.__name__ for cls in self.returns.values())})"
        return self.returns.__name__


@dataclass(frozen=True)
class Misconception:
    """Une erreur fréquente : la phrase à dire, et une fonction qui la commet (mêmes paramètres et résultat que la demandée)."""

    text: str
    function: Callable


@dataclass(frozen=True)
class Named:
    """Un argument trop long pour être lu : `name` est écrit à sa place dans l'appel montré."""

    value: object
    name: str


@dataclass(frozen=True)
class Check:
    """Une vérification : `name` (son identifiant), `title` et `hints` (pour la personne), `points` (pour la notation)."""

    name: str
    title: str
    run: Callable
    hints: tuple[str, ...] = ()
    points: float = 1


@dataclass
class Exercise:
    """Un exercice : ses fonctions, les erreurs fréquentes de chacune, ses vérifications dans l'ordre."""

    id: str
    title: str
    file: str
    functions: dict[str, Contract]
    misconceptions: dict[str, list[Misconception]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def check(self, title: str, hints: Sequence[str] = (), points: float = 1) -> Callable:
        """Décorateur : la fonction reçoit un `Trial` ; son nom est celui de la vérification."""

        def register(function: Callable) -> Callable:
            self.checks.append(Check(function.__name__, title, function, tuple(hints), points))
            return function

        return register
