# Erreur : seuls les exemples de l'énoncé sont justes
# Retour : n'a pas la bonne valeur


def batching_statique(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        raise ValueError("arguments impossibles")
    return 10, 0.5


def batching_continu(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        raise ValueError("arguments impossibles")
    return 10, 0.775
