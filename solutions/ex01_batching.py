"""ex01 — lot statique, lot continu : compter les pas.

À chaque pas, chaque séquence en cours produit un token. `longueurs` donne, dans l'ordre d'arrivée, le nombre de tokens que chaque
requête doit produire (des entiers, au moins 1) ; `B` est le nombre de slots (un entier, au moins 1).
"""


def batching_statique(longueurs: list[int], B: int) -> tuple[int, float]:
    """Des lots de `B` requêtes, dans l'ordre ; le suivant n'entre que lorsque tout le lot a fini.

    Rend `(etapes, utilisation)` :

    - `etapes` (int) : le nombre total de pas ;
    - `utilisation` (float, entre 0 et 1) : tokens produits / (`B` × `etapes`). Un slot vide compte au dénominateur.

    Lève `ValueError` si `longueurs` est vide, ou si une longueur ou `B` est inférieure à 1. Ne modifie pas `longueurs`.

    Exemple : `batching_statique([3, 10, 5, 2], 4)` rend `(10, 0.5)` : dix pas, et 20 tokens sur 40 emplacements.
    """
    # début solution : Découpez longueurs en tranches de B requêtes ; combien de pas dure une tranche ?
    verifier(longueurs, B)
    etapes = 0
    for debut in range(0, len(longueurs), B):
        lot = longueurs[debut : debut + B]
        etapes += max(lot)
    utilisation = sum(longueurs) / (B * etapes)
    return etapes, utilisation
    # fin solution


def batching_continu(longueurs: list[int], B: int) -> tuple[int, float]:
    """À chaque pas, les séquences finies sortent et la file entre, dans l'ordre, dans les slots libres.

    Un slot libéré à la fin d'un pas sert dès le pas suivant. Arguments, résultat et erreurs de `batching_statique`.

    Exemple : `batching_continu([3, 10, 5, 2, 4, 7], 4)` rend `(10, 0.775)` : dix pas, et 31 tokens sur 40 emplacements.
    """
    # début solution : Gardez la file et, par slot occupé, les tokens qui restent ; avancez d'un pas à la fois.
    verifier(longueurs, B)
    file = list(longueurs)
    restants = []
    etapes = 0
    while file or restants:
        while file and len(restants) < B:
            restants.append(file.pop(0))
        etapes += 1
        restants = [reste - 1 for reste in restants if reste > 1]
    utilisation = sum(longueurs) / (B * etapes)
    return etapes, utilisation
    # fin solution


# début solution
def verifier(longueurs: list[int], B: int) -> None:
    """Lève `ValueError` si les arguments n'ont pas de sens."""
    if not longueurs:
        raise ValueError("longueurs est vide : donnez au moins une requête.")
    if min(longueurs) < 1:
        raise ValueError("Chaque requête doit produire au moins un token.")
    if B < 1:
        raise ValueError(f"B vaut {B} : il faut au moins un slot.")


# fin solution
