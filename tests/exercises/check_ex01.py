"""Les vérifications de ex01 : lot statique, lot continu."""

import random

from minibatcher.course.checks import mistakes_ex01 as mistakes
from minibatcher.course.contract import Contract, Exercise, Named
from minibatcher.simulation.slots import batching_continu, batching_statique

_RESULT = {"etapes": int, "utilisation": float}
_PARAMETERS = ("longueurs", "B")
exercise = Exercise(
    "ex01",
    "Lot statique, lot continu",
    "ex01_batching.py",
    {"batching_statique": Contract(_PARAMETERS, _RESULT), "batching_continu": Contract(_PARAMETERS, _RESULT)},
    mistakes.MISCONCEPTIONS,
)

# Petits d'abord : le premier cas faux est celui que la personne refera à la main.
SMALL = [
    ([3, 10, 5, 2], 4),
    ([2, 5], 2),
    ([4], 1),
    ([3, 10, 5, 2, 4, 7], 4),  # un dernier lot incomplet
    ([2, 2, 2, 2], 2),
    ([1, 4, 1, 4, 2], 2),
    ([6, 1, 1, 1, 6], 3),
    ([7], 3),  # moins de requêtes que de slots
    ([1, 1, 1], 5),
]
_rng = random.Random(1)
RANDOM = [([_rng.randint(1, 12) for _ in range(_rng.randint(1, 12))], _rng.randint(1, 5)) for _ in range(40)]
CASES = SMALL + RANDOM

_lesson = random.Random(42)  # le même tirage que random.seed(42) dans le carnet
LESSON = Named([_lesson.randint(20, 400) for _ in range(64)], "longueurs_du_carnet")


@exercise.check(
    "batching_statique : le nombre de pas",
    hints=(
        "Prenez l'exemple à la main : quatre séquences, quatre slots. À quel pas le lot rend-il ses slots ?",
        "Le dernier lot peut être plus petit que B. Il compte comme les autres.",
    ),
    points=2,
)
def statique_etapes(trial):
    trial.compare("batching_statique", CASES, batching_statique, part="etapes")


@exercise.check(
    "batching_statique : l'utilisation",
    hints=("Combien d'emplacements y a-t-il en tout, pleins ou vides, dans le chronogramme ?", "Une part est entre 0 et 1."),
)
def statique_utilisation(trial):
    trial.compare("batching_statique", CASES, batching_statique, part="utilisation")


@exercise.check(
    "batching_continu : le nombre de pas",
    hints=(
        "Dessinez le chronogramme de [1, 4, 1, 4, 2] sur deux slots : qui entre au pas 2, et où ?",
        "À chaque pas, dans cet ordre : remplir les slots libres, produire un token partout, sortir les séquences finies.",
    ),
    points=2,
)
def continu_etapes(trial):
    trial.compare("batching_continu", CASES, batching_continu, part="etapes")


@exercise.check(
    "batching_continu : l'utilisation", hints=("La même définition que pour le lot statique : seul le nombre de pas change.",)
)
def continu_utilisation(trial):
    trial.compare("batching_continu", CASES, batching_continu, part="utilisation")


@exercise.check(
    "Les 64 requêtes du carnet, 8 slots", hints=("Si les petits cas passent, que se passe-t-il quand un slot sert huit fois ?",)
)
def carnet(trial):
    trial.compare("batching_statique", [(LESSON, 8)], batching_statique)
    trial.compare("batching_continu", [(LESSON, 8)], batching_continu)


@exercise.check(
    "Ce qui est vrai pour toute charge",
    hints=("Avec un seul slot, les deux politiques se valent. Avec plus de slots que de requêtes aussi.",),
)
def proprietes(trial):
    for longueurs, B in CASES:
        pas = {}
        for name in exercise.functions:
            pas[name], utilisation = trial.call(name, longueurs, B)
            trial.require(
                abs(pas[name] * B * utilisation - sum(longueurs)) < 1e-6,
                "Pas × slots × utilisation doit redonner les tokens produits.",
                f"{sum(longueurs)} tokens",
                f"{pas[name]} × {B} × {utilisation}",
            )
        statique, continu = pas.values()
        trial.require(
            continu <= statique,
            "Le lot continu n'est jamais plus long que le statique : l'une des deux fonctions se trompe.",
            "pas du continu ≤ pas du statique",
            f"{continu} > {statique}",
        )
        if B == 1:
            trial.require(continu == sum(longueurs), "Un seul slot : les requêtes se suivent.", str(sum(longueurs)), str(continu))
        if len(longueurs) <= B:
            trial.require(continu == max(longueurs), "Tout le monde entre au premier pas.", str(max(longueurs)), str(continu))


@exercise.check("La liste reçue n'est pas modifiée", hints=("file.pop(0) retire l'élément de la liste reçue. Et d'une copie ?",))
def liste_intacte(trial):
    for name in exercise.functions:
        trial.call(name, [3, 10, 5, 2], 2)
        trial.unchanged(name, [([3, 10, 5, 2, 4, 7], 4), ([5, 1, 3], 2)])


@exercise.check(
    "Les arguments impossibles lèvent ValueError", hints=("Vérifiez avant de calculer : liste vide, longueur nulle, aucun slot.",)
)
def erreurs(trial):
    for name in exercise.functions:
        trial.call(name, [3, 10, 5, 2], 4)  # une fonction qui lèverait toujours ne passe pas
        trial.raises(name, [([], 4), ([3, 0], 4), ([5, -2, 3], 2), ([3, 10], 0), ([3, 10], -1)])
