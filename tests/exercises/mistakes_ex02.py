"""Ce qui est attendu de ex02, et les erreurs fréquentes : la phrase qui les nomme, et une fonction qui les commet."""

import math
from fractions import Fraction

from minibatcher.course.contract import Misconception


def octets_par_token(couches, tetes_kv, dim_tete, octets_par_element):
    return 2 * couches * tetes_kv * dim_tete * octets_par_element


def memoire_cache(memoire_go, poids_go, activations_go):
    return int((Fraction(memoire_go) - Fraction(poids_go) - Fraction(activations_go)) * 10**9)


def sequences_max(memoire, octets, longueur):
    return int(Fraction(memoire) // (octets * Fraction(longueur)))


def part_utile(longueurs, reservation):
    return sum(longueurs) / (len(longueurs) * reservation)


_FLOOR = "Vous arrondissez au-dessus : une séquence qui ne tient pas entière ne compte pas."
_PERCENT = "Vous rendez un pourcentage : la part est entre 0 et 1."


def _scaled(reference, factor):
    return lambda *args: int(reference(*args) * factor)


MISCONCEPTIONS = {
    "octets_par_token": [
        Misconception("Vous oubliez le facteur 2 : le cache garde K et V.", _scaled(octets_par_token, Fraction(1, 2))),
        Misconception("Vous comptez K et V deux fois.", _scaled(octets_par_token, 2)),
        Misconception("Vous rendez des bits : un octet en fait 8.", _scaled(octets_par_token, 8)),
        Misconception("Vous rendez des Kio : le résultat est en octets.", _scaled(octets_par_token, Fraction(1, 1024))),
        Misconception("Vous rendez des Ko : le résultat est en octets.", _scaled(octets_par_token, Fraction(1, 1000))),
        Misconception(
            "Vous multipliez par 1 024 : le résultat est en octets, sans autre conversion.", _scaled(octets_par_token, 1024)
        ),
        Misconception("Vous oubliez les couches : chacune a son cache.", lambda c, t, d, o: 2 * t * d * o),
        Misconception(
            "Vous oubliez la taille d'un élément : vous comptez des nombres, pas des octets.", lambda c, t, d, o: 2 * c * t * d
        ),
        *(
            Misconception(
                f"Vous comptez {heads} têtes quoi que vaille tetes_kv : ce sont les têtes de requête, pas les têtes KV.",
                lambda c, t, d, o, heads=heads: octets_par_token(c, heads, d, o),
            )
            for heads in (12, 32)
        ),
        Misconception(
            "Vous comptez tout l'état caché (4 096), donc toutes les têtes de requête : le cache ne garde que les têtes KV.",
            lambda c, t, d, o: 2 * c * 4096 * o,
        ),
        Misconception("Vous comptez une seule tête : le cache garde toutes les têtes KV.", lambda c, t, d, o: 2 * c * d * o),
    ],
    "memoire_cache": [
        Misconception(
            "Vous prenez 1 Go pour 2³⁰ octets, ce qui est 1 Gio : 1 Go = 10⁹ octets.",
            _scaled(memoire_cache, Fraction(2**30, 10**9)),
        ),
        Misconception("Vous rendez des Go : le résultat est en octets.", _scaled(memoire_cache, Fraction(1, 10**9))),
        Misconception("Vous oubliez les activations : le calcul aussi prend de la place.", lambda m, p, a: memoire_cache(m, p, 0)),
        Misconception("Vous oubliez les poids : ils sont déjà dans la mémoire du GPU.", lambda m, p, a: memoire_cache(m, 0, a)),
    ],
    "sequences_max": [
        Misconception(_FLOOR, lambda m, o, n: math.ceil(Fraction(m) / (o * Fraction(n)))),
        Misconception(_FLOOR, lambda m, o, n: int(m // (o * n)) + 1),
        Misconception(
            "Vous arrondissez au plus proche : une séquence qui ne tient pas entière ne compte pas.",
            lambda m, o, n: round(Fraction(m) / (o * Fraction(n))),
        ),
        Misconception("Vous comptez des tokens : divisez aussi par la longueur d'une séquence.", lambda m, o, n: m // o),
        Misconception(
            "Vous arrondissez la longueur moyenne avant de diviser : elle n'est pas forcément entière.",
            lambda m, o, n: m // (o * int(n)),
        ),
    ],
    "part_utile": [
        Misconception("Vous rendez la part perdue : c'est la part utile qui est demandée.", lambda n, r: 1 - part_utile(n, r)),
        Misconception(_PERCENT, lambda n, r: 100 * part_utile(n, r)),
        Misconception("Vous ne comptez qu'une réservation : chaque séquence a la sienne.", lambda n, r: sum(n) / r),
        Misconception("Vous divisez deux fois par le nombre de séquences.", lambda n, r: part_utile(n, r) / len(n)),
        Misconception("Vous ne regardez que la séquence la plus longue.", lambda n, r: max(n) / r),
        Misconception(
            "Vous comptez ce que la plus longue occupe, pas ce qui est réservé.", lambda n, r: sum(n) / (len(n) * max(n))
        ),
        Misconception(
            "Vous arrondissez : rendez la valeur entière, l'arrondi est pour l'affichage.", lambda n, r: round(part_utile(n, r), 2)
        ),
    ],
}
