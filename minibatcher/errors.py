"""Les erreurs du paquet : une phrase qui dit ce qui ne va pas, et quoi faire."""

from dataclasses import fields


class MinibatcherError(Exception):
    """Base des erreurs que `minibatcher` lève lui-même ; leur message s'adresse à la personne, en français."""


class ConfigError(MinibatcherError, ValueError):
    """Un réglage du moteur est impossible (taille nulle, cache trop petit…)."""


class InvalidRequestError(MinibatcherError, ValueError):
    """Une requête ne peut pas être servie ; les autres n'en savent rien."""


class ModelError(MinibatcherError, RuntimeError):
    """Un modèle est introuvable, incomplet ou d'une architecture inconnue."""


class UnknownOptionsRefused:
    """Pour une dataclass : un champ inconnu est refusé en nommant ceux qui existent.

    `error` est la classe de l'erreur levée.
    """

    error: type[MinibatcherError] = ConfigError

    def __new__(cls, *args, **kwargs):
        known = [f.name for f in fields(cls) if f.init]
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            raise cls.error(
                f"{cls.__name__} : option inconnue {', '.join(map(repr, unknown))}. Options connues : {', '.join(known)}."
            )
        return super().__new__(cls)


def require_bool(name: str, value: object, error: type[MinibatcherError] = ConfigError) -> None:
    """Refuse une valeur qui n'est ni `True` ni `False` : « non » serait vrai."""
    if not isinstance(value, bool):
        raise error(f"{name} doit valoir True ou False, et non {value!r}.")


def require_int(name: str, value: object, minimum: int, error: type[MinibatcherError] = ConfigError) -> None:
    """Refuse une valeur qui n'est pas un entier au moins égal à `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{name} doit être un entier, et non {value!r}.")
    if value < minimum:
        raise error(f"{name} vaut {value} : donnez un entier supérieur ou égal à {minimum}.")
