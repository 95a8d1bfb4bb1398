# Erreur : chaque requête est attribuée d'avance à un slot, à tour de rôle
# Retour : à tour de rôle


def batching_statique(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        raise ValueError("arguments impossibles")
    etapes = 0
    for debut in range(0, len(longueurs), B):
        etapes += max(longueurs[debut : debut + B])
    return etapes, sum(longueurs) / (B * etapes)


def batching_continu(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        raise ValueError("arguments impossibles")
    totaux = [0] * B
    for numero, longueur in enumerate(longueurs):
        totaux[numero % B] += longueur
    return max(totaux), sum(longueurs) / (B * max(totaux))
