# Erreur : le résultat est une liste
# Retour : doit être un tuple


def batching_statique(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        raise ValueError("arguments impossibles")
    etapes = 0
    for debut in range(0, len(longueurs), B):
        etapes += max(longueurs[debut : debut + B])
    return [etapes, sum(longueurs) / (B * etapes)]


def batching_continu(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        raise ValueError("arguments impossibles")
    file, restants, etapes = list(longueurs), [], 0
    while file or restants:
        while file and len(restants) < B:
            restants.append(file.pop(0))
        etapes += 1
        restants = [reste - 1 for reste in restants if reste > 1]
    return etapes, sum(longueurs) / (B * etapes)
