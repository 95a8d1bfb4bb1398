# Erreur : le résultat est en Ko (milliers d'octets)
# Retour : Ko


def octets_par_token(couches, tetes_kv, dim_tete, octets_par_element):
    if min(couches, tetes_kv, dim_tete, octets_par_element) < 1:
        raise ValueError("au moins 1")
    return 2 * couches * tetes_kv * dim_tete * octets_par_element // 1000


def memoire_cache(memoire_go, poids_go, activations_go):
    reste = memoire_go - poids_go - activations_go
    if min(memoire_go, poids_go, activations_go) < 0 or reste <= 0:
        raise ValueError("il ne reste rien")
    return round(reste * 10**9)


def sequences_max(memoire_cache, octets_par_token, longueur_moyenne):
    if memoire_cache < 0 or octets_par_token < 1 or longueur_moyenne <= 0:
        raise ValueError("tailles impossibles")
    return int(memoire_cache // (octets_par_token * longueur_moyenne))


def part_utile(longueurs, reservation):
    if not longueurs or min(longueurs) < 1 or max(longueurs) > reservation:
        raise ValueError("longueurs impossibles")
    return sum(longueurs) / (len(longueurs) * reservation)
