"""Les erreurs fréquentes de ex01 : la phrase qui les nomme, et une fonction qui les commet."""

from heapq import heapreplace

from minibatcher.course.contract import Misconception
from minibatcher.simulation.slots import batching_continu, batching_statique


def _lots(longueurs, B):
    return [longueurs[debut : debut + B] for debut in range(0, len(longueurs), B)]


def _statique(duree, lots=_lots):
    def mistaken(longueurs, B):
        etapes = sum(map(duree, lots(longueurs, B)))
        return etapes, sum(longueurs) / (B * etapes) if etapes else 0.0

    return mistaken


def _continu(longueurs, B, gap=0):
    """Le lot continu, `gap` pas perdus entre deux séquences d'un même slot."""
    libre_a, fin = [0] * B, 0
    for longueur in longueurs:
        fin = max(fin, libre_a[0] + longueur)
        heapreplace(libre_a, libre_a[0] + longueur + gap)
    return fin, sum(longueurs) / (B * fin)


def _attribue_d_avance(longueurs, B):
    etapes = max(sum(longueurs[slot::B]) for slot in range(B))
    return etapes, sum(longueurs) / (B * etapes)


def _decale(reference, pas):
    def mistaken(longueurs, B):
        etapes = reference(longueurs, B)[0] + pas
        return etapes, sum(longueurs) / (B * etapes)

    return mistaken


def _utilisation(reference, formula):
    def mistaken(longueurs, B):
        etapes, utilisation = reference(longueurs, B)
        return etapes, formula(longueurs, B, etapes, utilisation)

    return mistaken


def _utilisations(reference):
    formulas = {
        "Vous divisez par les seuls emplacements occupés : un slot vide est perdu, il compte au dénominateur.": lambda n, B, e, u: (
            1.0
        ),
        "Vous divisez par le nombre de requêtes × pas : le dénominateur est le nombre de slots × pas.": (
            lambda n, B, e, u: sum(n) / (len(n) * e)
        ),
        "Vous oubliez les slots qui restent vides quand il y a moins de requêtes que de slots : B compte toujours en entier.": (
            lambda n, B, e, u: sum(n) / (min(B, len(n)) * e)
        ),
        "Vous rendez un pourcentage : l'utilisation est une part, entre 0 et 1.": lambda n, B, e, u: 100 * u,
        "Vous rendez la part perdue : l'utilisation est la part utile.": lambda n, B, e, u: 1 - u,
        "Vous arrondissez l'utilisation : rendez la valeur entière, l'arrondi est pour l'affichage.": lambda n, B, e, u: round(
            u, 2
        ),
        "Vous rendez des tokens par pas : divisez encore par le nombre de slots.": lambda n, B, e, u: sum(n) / e,
    }
    return [Misconception(text, _utilisation(reference, formula)) for text, formula in formulas.items()]


_SORTED = "Vous triez les requêtes : elles entrent dans leur ordre d'arrivée, personne ne connaît d'avance leur longueur."
_LATE = "Vous libérez le slot un pas trop tard : une séquence qui finit à ce pas laisse sa place dès le pas suivant."
_ONE_MORE = "Vous comptez un pas de trop à la fin : quand le dernier token est produit, c'est fini."

MISCONCEPTIONS = {
    "batching_statique": [
        Misconception(
            "Vous oubliez le dernier lot quand il est incomplet : ses requêtes attendent aussi leur réponse.",
            _statique(max, lambda n, B: [lot for lot in _lots(n, B) if len(lot) == B]),
        ),
        Misconception(
            "Chaque lot dure un pas de trop : une séquence de 3 tokens prend 3 pas.", _statique(lambda lot: max(lot) + 1)
        ),
        Misconception(
            "Chaque lot dure un pas de moins qu'il ne faut : le dernier token compte.", _statique(lambda lot: max(lot) - 1)
        ),
        Misconception("Le lot se libère quand sa plus longue séquence finit, pas quand la plus courte finit.", _statique(min)),
        Misconception("Vous additionnez les longueurs d'un lot : ses séquences avancent ensemble.", _statique(sum)),
        Misconception(_SORTED, lambda n, B: batching_statique(sorted(n), B)),
        Misconception(_SORTED, lambda n, B: batching_statique(sorted(n, reverse=True), B)),
        Misconception("Vous libérez un slot avant la fin de son lot : c'est déjà le lot continu.", batching_continu),
        Misconception(
            "Vous faites la moyenne des utilisations des lots : un lot plus long doit peser davantage.",
            lambda n, B: (batching_statique(n, B)[0], sum(sum(lot) / (B * max(lot)) for lot in _lots(n, B)) / len(_lots(n, B))),
        ),
        Misconception(
            "Vous oubliez les slots restés vides du dernier lot : ils comptent au dénominateur.",
            lambda n, B: (batching_statique(n, B)[0], sum(n) / sum(len(lot) * max(lot) for lot in _lots(n, B))),
        ),
        *_utilisations(batching_statique),
    ],
    "batching_continu": [
        Misconception(
            "Vous attendez que tout le lot finisse avant de faire entrer la file : c'est le lot statique.", batching_statique
        ),
        Misconception(_LATE, lambda n, B: _continu(n, B, gap=1)),
        Misconception(_LATE, lambda n, B: _decale(lambda n, B: _continu(n, B, gap=1), 1)(n, B)),
        Misconception(_ONE_MORE, _decale(batching_continu, 1)),
        Misconception("Vous ne comptez pas le dernier pas.", _decale(batching_continu, -1)),
        Misconception(
            "Vous attribuez les requêtes aux slots d'avance, à tour de rôle : la suivante prend le premier slot libre.",
            _attribue_d_avance,
        ),
        Misconception(_SORTED, lambda n, B: batching_continu(sorted(n), B)),
        Misconception(_SORTED, lambda n, B: batching_continu(sorted(n, reverse=True), B)),
        Misconception(
            "La file se sert par son début : vous servez les dernières arrivées d'abord.", lambda n, B: batching_continu(n[::-1], B)
        ),
        *_utilisations(batching_continu),
    ],
}
