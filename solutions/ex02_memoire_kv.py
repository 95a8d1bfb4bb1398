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
    # début solution : Pour chaque couche et chaque tête KV, le cache garde deux vecteurs de dim_tete éléments.
    if min(couches, tetes_kv, dim_tete, octets_par_element) < 1:
        raise ValueError("Les dimensions du modèle et la taille d'un élément sont des entiers, au moins 1.")
    vecteurs = 2 * couches * tetes_kv  # K et V
    return vecteurs * dim_tete * octets_par_element
    # fin solution


def memoire_cache(memoire_go: float, poids_go: float, activations_go: float) -> int:
    """Ce qui reste au cache sur un GPU, en octets.

    Les trois arguments sont en Go (10⁹ octets) : la mémoire du GPU, ce qu'y prennent les poids, ce qu'y prennent les activations.

    Rend un `int`, arrondi à l'octet. Lève `ValueError` si un argument est négatif, ou s'il ne reste rien.

    Exemple : `memoire_cache(80, 16, 4)` rend `60000000000`, soit 60 Go (et 55,9 Gio).
    """
    # début solution : Retranchez en Go, puis passez en octets ; le résultat est un entier.
    if min(memoire_go, poids_go, activations_go) < 0:
        raise ValueError("Une mémoire ne peut pas être négative.")
    reste_go = memoire_go - poids_go - activations_go
    if reste_go <= 0:
        raise ValueError("Poids et activations ne laissent rien au cache : il faut un GPU plus grand ou un modèle plus petit.")
    return round(reste_go * 10**9)
    # fin solution


def sequences_max(memoire_cache: int, octets_par_token: int, longueur_moyenne: float) -> int:
    """Combien de séquences tiennent entières, en même temps, dans le cache.

    - `memoire_cache` : octets, au moins 0 ; `octets_par_token` : octets, au moins 1 ;
    - `longueur_moyenne` : tokens par séquence, prompt et réponse, plus de 0 ; pas forcément un entier.

    Rend un `int` : une séquence qui ne tient pas entière ne compte pas. Lève `ValueError` si un argument est hors de ces bornes.

    Exemple : `sequences_max(60_000_000_000, 131_072, 4000)` rend `114`.
    """
    # début solution : Combien d'octets prend une séquence entière ? Combien de fois tient-elle ?
    if memoire_cache < 0 or octets_par_token < 1 or longueur_moyenne <= 0:
        raise ValueError("La mémoire ne peut pas être négative, ni un token ou une séquence ne rien peser.")
    octets_par_sequence = octets_par_token * longueur_moyenne
    return int(memoire_cache // octets_par_sequence)
    # fin solution


def part_utile(longueurs: list[int], reservation: int) -> float:
    """La part d'un cache réservé d'avance qui contient vraiment des K et V.

    - `longueurs` : tokens de chaque séquence (une liste d'entiers, au moins 1) ;
    - `reservation` : tokens réservés pour chacune, la même place pour toutes.

    Rend un `float` entre 0 et 1. Lève `ValueError` si la liste est vide, ou si une longueur est inférieure à 1 ou dépasse la
    réservation.

    Exemple : « Oui. » (3 tokens) dans une place de 8 000, et une réponse de 5 997 : `part_utile([3, 5997], 8000)` rend `0.375`.
    """
    # début solution : Combien de tokens en tout ? Combien de places réservées en tout ?
    if not longueurs:
        raise ValueError("longueurs est vide : donnez au moins une séquence.")
    for longueur in longueurs:
        if not 1 <= longueur <= reservation:
            raise ValueError(f"Une séquence de {longueur} tokens n'entre pas dans une réservation de {reservation}.")
    reserves = reservation * len(longueurs)
    return sum(longueurs) / reserves
    # fin solution
