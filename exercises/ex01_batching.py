# Exercice ex01, généré depuis solutions/ex01_batching.py : ce fichier est réécrit quand la solution change.
# Répondez dans une copie, mes_exercices/ex01_batching.py, puis vérifiez-la : minibatcher check ex01
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
    raise NotImplementedError("Découpez longueurs en tranches de B requêtes ; combien de pas dure une tranche ?")


def batching_continu(longueurs: list[int], B: int) -> tuple[int, float]:
    """À chaque pas, les séquences finies sortent et la file entre, dans l'ordre, dans les slots libres.

    Un slot libéré à la fin d'un pas sert dès le pas suivant. Arguments, résultat et erreurs de `batching_statique`.

    Exemple : `batching_continu([3, 10, 5, 2, 4, 7], 4)` rend `(10, 0.775)` : dix pas, et 31 tokens sur 40 emplacements.
    """
    raise NotImplementedError("Gardez la file et, par slot occupé, les tokens qui restent ; avancez d'un pas à la fois.")
