"""Les vérifications de ex02 : le calculateur de mémoire. Octets partout, sauf les arguments en Go de `memoire_cache`."""

import random
from fractions import Fraction

from minibatcher.course.checks import mistakes_ex02 as mistakes
from minibatcher.course.contract import Contract, Exercise

exercise = Exercise(
    "ex02",
    "Combien de séquences dans un GPU",
    "ex02_memoire_kv.py",
    {
        "octets_par_token": Contract(("couches", "tetes_kv", "dim_tete", "octets_par_element"), int),
        "memoire_cache": Contract(("memoire_go", "poids_go", "activations_go"), int),
        "sequences_max": Contract(("memoire_cache", "octets_par_token", "longueur_moyenne"), int),
        "part_utile": Contract(("longueurs", "reservation"), float),
    },
    mistakes.MISCONCEPTIONS,
)

# Les cas. Les tailles en Go sont des multiples de 1/8, que les flottants représentent exactement.

_rng = random.Random(2)
MODELS = [
    (32, 8, 128, 2),  # Llama 3 8B, GQA : 128 Kio
    (32, 32, 128, 2),  # Llama 2 7B, autant de têtes KV que de têtes de requête : 512 Kio
    (32, 1, 128, 2),  # une seule tête KV, MQA
    (28, 2, 128, 2),  # Qwen2.5 1.5B
    (28, 2, 128, 1),  # le même en fp8
    (30, 3, 64, 4),  # SmolLM2 135M en float32
    (1, 1, 1, 1),
]
RANDOM_MODELS = [
    tuple(_rng.choice(values) for values in ((12, 28, 80), (1, 2, 8, 40), (64, 96, 128), (1, 2, 4))) for _ in range(30)
]
BUDGETS = [(80, 16, 4), (16, 3.125, 1), (24, 15, 0.5), (16, 0, 0), (16.0, 3, 1.0), (16, 15.5, 0.25)]
RANDOM_BUDGETS = [(_rng.choice((16, 24, 40, 80, 141)), _rng.randint(0, 80) / 8, _rng.randint(0, 32) / 8) for _ in range(30)]
CACHES = [
    (60 * 10**9, 131_072, 4_000),  # Llama 3 8B : 114
    (60 * 10**9, 524_288, 4_000),  # Llama 2 7B : 28, et non « une vingtaine »
    (1_000, 10, 10),  # tout juste
    (999, 10, 10),
    (0, 10, 10),
    (99, 10, 10),  # aucune ne tient
    (1_000, 1, 1),
    (1_000, 10, 1.5),
    (11_875_000_000, 28_672, 4_000),  # T4, Qwen2.5 1.5B
    (11_875_000_000, 14_336, 4_000),  # le même, cache en fp8
    (60 * 10**9, 131_072, 203.5),
]
RANDOM_CACHES = [
    (_rng.randint(1, 80) * 10**9, _rng.choice((12_288, 28_672, 131_072)), _rng.randint(100, 16_000) / 2) for _ in range(30)
]
RESERVATIONS = [([3, 5997], 8_000), ([8], 8), ([1], 4), ([4, 4, 4], 4), ([40, 10, 30, 20], 100)]
RANDOM_RESERVATIONS = [([_rng.randint(1, 2_048) for _ in range(_rng.randint(1, 9))], 2_048) for _ in range(30)]


@exercise.check(
    "octets_par_token : les modèles connus",
    hints=(
        "Pour un token, chaque tête KV de chaque couche garde un vecteur K et un vecteur V.",
        "La taille du modèle n'entre pas en compte.",
    ),
    points=2,
)
def octets_modeles(trial):
    trial.compare("octets_par_token", MODELS + RANDOM_MODELS, mistakes.octets_par_token)


@exercise.check(
    "octets_par_token : ce que changent GQA, MQA et fp8", hints=("Quatre fois moins de têtes KV : quatre fois moins d'octets.",)
)
def octets_proportions(trial):
    for couches, tetes_kv, dim_tete, octets in RANDOM_MODELS:
        gqa = trial.call("octets_par_token", couches, tetes_kv, dim_tete, octets)
        plain = trial.call("octets_par_token", couches, 4 * tetes_kv, dim_tete, octets)
        trial.require(
            plain == 4 * gqa, "Quatre fois plus de têtes KV prennent quatre fois plus de place.", str(4 * gqa), str(plain)
        )
        wide = trial.call("octets_par_token", couches, tetes_kv, dim_tete, 2 * octets)
        trial.require(wide == 2 * gqa, "Un type deux fois plus large prend deux fois plus de place.", str(2 * gqa), str(wide))
        trial.require(gqa >= 2 * couches * tetes_kv * dim_tete, "Il y a K et V : deux vecteurs, pas un.", "", str(gqa))


@exercise.check(
    "memoire_cache : ce qui reste, en octets", hints=("Un Go fait 10⁹ octets, un Gio 2³⁰. Les fiches des GPU sont en Go.",)
)
def memoire(trial):
    trial.compare(
        "memoire_cache",
        BUDGETS + [budget for budget in RANDOM_BUDGETS if mistakes.memoire_cache(*budget) > 0],
        mistakes.memoire_cache,
    )


@exercise.check(
    "sequences_max : combien tiennent entières",
    hints=(
        "Divisez par ce que pèse une séquence entière, pas un token.",
        "Une demi-séquence ne sert personne : dans quel sens arrondir ?",
    ),
    points=2,
)
def sequences(trial):
    trial.compare("sequences_max", CACHES + RANDOM_CACHES, mistakes.sequences_max)


@exercise.check(
    "sequences_max : elles tiennent, et pas une de plus", hints=("Vérifiez : nombre × octets d'une séquence ≤ mémoire.",)
)
def sequences_bornes(trial):
    for memoire, octets, longueur in CACHES + RANDOM_CACHES:
        nombre = trial.call("sequences_max", memoire, octets, longueur)
        poids = octets * Fraction(longueur)
        trial.require(
            nombre * poids <= memoire,
            "Elles ne tiennent pas toutes dans la mémoire.",
            f"≤ {memoire}",
            f"{float(nombre * poids):.0f}",
        )
        trial.require((nombre + 1) * poids > memoire, "Il restait de la place pour une de plus.", "", str(nombre))


@exercise.check(
    "Un T4 et Qwen2.5 1.5B, de bout en bout", hints=("Chaque fonction prend ce que rend la précédente, dans les mêmes unités.",)
)
def t4(trial):
    """16 Go, 3,125 Go de poids (1,54 milliard de paramètres en float16), 1 Go d'activations, 2 000 tokens par séquence."""
    memoire = trial.call("memoire_cache", 16, 3.125, 1)
    for octets_par_element, expected in ((2, 207), (1, 414)):
        octets = trial.call("octets_par_token", 28, 2, 128, octets_par_element)
        nombre = trial.call("sequences_max", memoire, octets, 2_000)
        trial.require(nombre == expected, "Ce n'est pas ce que ce GPU contient.", f"{expected} séquences", f"{nombre} séquences")


@exercise.check(
    "part_utile : ce qui sert, sur ce qui est réservé",
    hints=("Tout ce qui est réservé compte, la place des séquences courtes aussi.",),
)
def part(trial):
    trial.compare("part_utile", RESERVATIONS + RANDOM_RESERVATIONS, mistakes.part_utile)
    trial.unchanged("part_utile", RESERVATIONS)


@exercise.check("Les tailles impossibles lèvent ValueError", hints=("Une mémoire négative, zéro couche, une séquence sans token…",))
def erreurs_tailles(trial):
    trial.call("octets_par_token", 32, 8, 128, 2)
    trial.raises("octets_par_token", [(0, 8, 128, 2), (32, 0, 128, 2), (32, 8, -128, 2), (32, 8, 128, 0)])
    trial.call("memoire_cache", 80, 16, 4)
    trial.raises("memoire_cache", [(16, 17, 1), (16, 15, 1), (-16, 0, 0), (16, -3, 1), (16, 3, -1)])
    trial.call("sequences_max", 1_000, 10, 10)
    trial.raises("sequences_max", [(-1, 10, 10), (1_000, 0, 10), (1_000, 10, 0), (1_000, 10, -5.0)])


@exercise.check(
    "part_utile : ce qui ne peut pas être réservé lève ValueError", hints=("Une séquence plus longue que sa place n'y entre pas.",)
)
def erreurs_part(trial):
    trial.call("part_utile", [3, 5997], 8_000)
    trial.raises("part_utile", [([], 8_000), ([9], 8), ([3, 8_001, 5], 8_000), ([0, 3], 8), ([-1], 8), ([1], 0), ([1], -8)])
