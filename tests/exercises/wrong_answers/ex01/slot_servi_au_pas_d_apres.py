# Erreur : la place rendue n'est reprise qu'un pas plus tard
# Retour : un pas trop tard


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
    file, slots, etapes = list(longueurs), [0] * B, 0
    vides = [True] * B  # vide au pas précédent
    while file or any(slots):
        for slot in range(B):
            if slots[slot] == 0 and vides[slot] and file:
                slots[slot] = file.pop(0)
            vides[slot] = slots[slot] == 0
        etapes += 1
        slots = [max(0, reste - 1) for reste in slots]
    return etapes, sum(longueurs) / (B * etapes)
