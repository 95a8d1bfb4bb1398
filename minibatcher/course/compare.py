"""Comparer ce qui est rendu à ce qui est attendu, le type d'abord ; l'écrire sans rien exécuter qui vienne de la personne.

Un objet dont `__eq__` répond toujours True, un `int` ou un `tuple` dérivé ne passent pas : seuls les types exacts sont comparés.
"""

import math
import reprlib
from collections.abc import Sequence

ANSWER_MODULE = "reponse_"  # début du nom de module d'une réponse, qui ne dit rien à personne
_KINDS = {
    int: "un entier (int)",
    float: "un nombre à virgule (float)",
    bool: "un booléen (bool)",
    str: "une chaîne (str)",
    tuple: "un tuple",
    list: "une liste (list)",
    dict: "un dictionnaire (dict)",
    type(None): "None",
}
_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxtuple, _short.maxdict, _short.maxstring, _short.maxlong = 4, 12, 12, 8, 80, 40
_short.fillvalue = "…"


def type_name(value: object) -> str:
    """Le nom du type, avec son module s'il n'est pas de Python : « numpy.int64 »."""
    cls = type(value)
    # Par `type` lui-même : une métaclasse pourrait répondre n'importe quoi.
    name = type.__dict__["__name__"].__get__(cls)
    module = type.__dict__["__module__"].__get__(cls)
    hidden = type(module) is not str or module in ("builtins", "__main__") or module.startswith(ANSWER_MODULE)
    return name if hidden else f"{module}.{name}"


def kind(value: object) -> str:
    """Le type, pour une phrase : « un entier (int) »."""
    return _KINDS.get(type(value)) or f"un objet de type {type_name(value)}"


def show(value: object) -> str:
    """La valeur telle qu'on l'écrirait en Python, raccourcie ; un objet d'un autre type n'est que nommé."""
    try:
        return _short.repr(value) if _is_plain(value) else f"<{type_name(value)}>"
    except ValueError:  # un entier de plus de 4 300 chiffres
        return f"<{type_name(value)} trop grand pour être affiché>"


def _is_plain(value: object, depth: int = 4) -> bool:
    """Rien que des types de Python, du moins dans ce que `show` affichera."""
    if type(value) in (tuple, list):
        return depth == 0 or all(_is_plain(item, depth - 1) for item in value[:13])
    if type(value) is dict:
        return depth == 0 or all(_is_plain(part, depth - 1) for item in list(value.items())[:9] for part in item)
    return type(value) in _KINDS


def wrong_type(expected: type, value: object, name: str) -> str | None:
    """La phrase qui dit que `value` n'est pas exactement du type `expected`, ou None."""
    if type(value) is expected:
        return None
    wanted = _KINDS.get(expected, expected.__name__)
    if value is None:
        return f"{name} doit être {wanted}, et rien n'est rendu (None) : manque-t-il un return ?"
    advice = ""
    if expected is int and type(value) is float:
        advice = " : la division / rend toujours un float"
    elif type_name(value).startswith("numpy."):
        advice = f" : convertissez avec {expected.__name__}(…)"
    return f"{name} doit être {wanted}, et non {kind(value)}{advice}."


def difference(
    expected: object, got: object, name: str = "le résultat", tolerance: float = 1e-9, labels: Sequence[str] = ()
) -> str | None:
    """La phrase qui dit en quoi `got` n'est pas `expected`, ou None s'ils sont égaux (flottants : à `tolerance` relative près).

    `name` : comment appeler la valeur ; `labels` : comment appeler ses éléments, si c'est un tuple.
    """
    if problem := wrong_type(type(expected), got, name):
        return problem
    if isinstance(expected, float):
        if math.isnan(got):
            return f"{name} n'est pas un nombre (nan)."
        return None if math.isclose(expected, got, rel_tol=tolerance, abs_tol=1e-12) else f"{name} n'a pas la bonne valeur."
    if isinstance(expected, (tuple, list)):
        if len(got) != len(expected):
            return f"{name} doit avoir {len(expected)} éléments, et non {len(got)}."
        names = labels or [f"{name}[{index}]" for index in range(len(expected))]
        problems = (difference(*item, tolerance) for item in zip(expected, got, names, strict=True))
        return next(filter(None, problems), None)
    if isinstance(expected, dict):
        if not all(type(key) in _KINDS for key in got) or list(map(repr, got)) != list(map(repr, expected)):
            return f"{name} n'a pas les bonnes clés, ou pas dans le bon ordre."
        problems = (difference(expected[key], got[key], f"{name}[{key!r}]", tolerance) for key in expected)
        return next(filter(None, problems), None)
    return None if expected == got else f"{name} n'a pas la bonne valeur."
