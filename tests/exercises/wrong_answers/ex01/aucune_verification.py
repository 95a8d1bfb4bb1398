# Erreur : les arguments impossibles rendent (0, 0.0)
# Retour : doit lever ValueError


def batching_statique(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        return 0, 0.0
    etapes = 0
    for debut in range(0, len(longueurs), B):
        etapes += max(longueurs[debut : debut + B])
    return etapes, sum(longueurs) / (B * etapes)


def batching_continu(longueurs, B):
    if not longueurs or min(longueurs) < 1 or B < 1:
        return 0, 0.0
    file, restants, etapes = list(longueurs), [], 0
    while file or restants:
        while file and len(restants) < B:
            restants.append(file.pop(0))
        etapes += 1
        restants = [reste - 1 for reste in restants if reste > 1]
    return etapes, sum(longueurs) / (B * etapes)
