# Exercice ex02, généré depuis solutions/ex02_memoire_kv.py : ce fichier est réécrit quand la solution change.
# Répondez dans une copie, mes_exercices/ex02_memoire_kv.py, puis vérifiez-la : minibatcher check ex02
"""ex02 — le calculateur de mémoire : combien de séquences tiennent dans un GPU.

Deux familles d'unités : 1 Go = 10⁹ octets (les fiches des GPU), 1 Gio = 2³⁰ octets = 1,074 Go ; de même 1 Ko = 1 000 octets et
1 Kio = 1 024. Ici, tout ce qui n'est pas suffixé `_go` est en octets.
"""


def octets_par_token(couches: int, tetes_kv: int, dim_tete: int, octets_par_element: int) -> int:
    """La place qu'un token prend dans le cache, en octets.

    - `couches`, `tetes_kv`, `dim_tete` : dimensions du modèle. `tetes_kv` : autant que de têtes de requête pour un modèle ancien,
      moins avec GQA, une seule avec MQA ;
    - `octets_par_element` : 2 en float16, 1 en fp8.

    Rend un `int`. Lève `ValueError` si un argument est inférieur à 1.

    Exemple : Llama 3 8B en float16, `octets_par_token(32, 8, 128, 2)` rend `131072`, soit 128 Kio.
    """
    raise NotImplementedError("Pour chaque couche et chaque tête KV, le cache garde deux vecteurs de dim_tete éléments.")


def memoire_cache(memoire_go: float, poids_go: float, activations_go: float) -> int:
    """Ce qui reste au cache sur un GPU, en octets.

    Les trois arguments sont en Go (10⁹ octets) : la mémoire du GPU, ce qu'y prennent les poids, ce qu'y prennent les activations.

    Rend un `int`, arrondi à l'octet. Lève `ValueError` si un argument est négatif, ou s'il ne reste rien.

    Exemple : `memoire_cache(80, 16, 4)` rend `60000000000`, soit 60 Go (et 55,9 Gio).
    """
    raise NotImplementedError("Retranchez en Go, puis passez en octets ; le résultat est un entier.")


def sequences_max(memoire_cache: int, octets_par_token: int, longueur_moyenne: float) -> int:
    """Combien de séquences tiennent entières, en même temps, dans le cache.

    - `memoire_cache` : octets, au moins 0 ; `octets_par_token` : octets, au moins 1 ;
    - `longueur_moyenne` : tokens par séquence, prompt et réponse, plus de 0 ; pas forcément un entier.

    Rend un `int` : une séquence qui ne tient pas entière ne compte pas. Lève `ValueError` si un argument est hors de ces bornes.

    Exemple : `sequences_max(60_000_000_000, 131_072, 4000)` rend `114`.
    """
    raise NotImplementedError("Combien d'octets prend une séquence entière ? Combien de fois tient-elle ?")


def part_utile(longueurs: list[int], reservation: int) -> float:
    """La part d'un cache réservé d'avance qui contient vraiment des K et V.

    - `longueurs` : tokens de chaque séquence (une liste d'entiers, au moins 1) ;
    - `reservation` : tokens réservés pour chacune, la même place pour toutes.

    Rend un `float` entre 0 et 1. Lève `ValueError` si la liste est vide, ou si une longueur est inférieure à 1 ou dépasse la
    réservation.

    Exemple : « Oui. » (3 tokens) dans une place de 8 000, et une réponse de 5 997 : `part_utile([3, 5997], 8000)` rend `0.375`.
    """
    raise NotImplementedError("Combien de tokens en tout ? Combien de places réservées en tout ?")
