"""Une requête : ce qui est demandé, et où elle en est.

Trois longueurs suffisent à la décrire : les tokens du prompt, les tokens connus (prompt et réponse), et les tokens
**calculés**, dont les clés et valeurs sont dans le cache. Servir une requête, c'est faire rattraper `num_tokens` par
`num_computed_tokens` ; prefill et decode ne sont que deux façons de nommer ce rattrapage.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from minibatcher.errors import InvalidRequestError, UnknownOptionsRefused, require_bool, require_int

# Sous cette température, diviser les logits déborderait : c'est du greedy, comme dans vLLM (`_SAMPLING_EPS`).
GREEDY_BELOW = 1e-5


class RequestStatus(Enum):
    """Où se trouve la requête dans le scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(str, Enum):
    """Pourquoi une requête s'est terminée (valeurs de `finish_reason`, comme dans vLLM)."""

    STOP = "stop"  # token de fin, token d'arrêt ou chaîne d'arrêt
    LENGTH = "length"  # max_tokens ou max_model_len atteint
    ABORT = "abort"  # annulée par qui l'a demandée
    ERROR = "error"  # le calcul a échoué pour cette requête seule


@dataclass
class SamplingParams(UnknownOptionsRefused):
    """Comment choisir les tokens d'une requête, et quand s'arrêter (mêmes noms et défauts que vLLM).

    - `n` : nombre de réponses indépendantes pour le prompt.
    - `temperature` : 0 pour le token le plus probable (greedy), sinon les logits sont divisés par cette valeur.
    - `top_k` : ne garder que les k tokens les plus probables (0 ou -1 : tous).
    - `top_p` : ne garder que les plus probables, jusqu'à ce que leur somme atteigne p (1 : tous).
    - `min_p` : écarter les tokens dont la probabilité est inférieure à min_p fois celle du meilleur.
    - `seed` : graine propre à la requête ; son tirage ne dépend alors pas des autres requêtes du lot.
    - `max_tokens` : nombre maximal de tokens produits (`None` : jusqu'à `max_model_len`).
    - `min_tokens` : aucun arrêt avant ce nombre de tokens.
    - `stop` : chaînes qui arrêtent la réponse (elles n'y figurent pas).
    - `stop_token_ids` : tokens qui arrêtent la réponse.
    - `ignore_eos` : continuer après le token de fin du modèle.
    - `logprobs` : nombre de logarithmes de probabilité à rendre par token produit (`None` : aucun).

    Lève `InvalidRequestError` si une valeur est impossible ou un champ inconnu.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None

    error = InvalidRequestError

    def __post_init__(self) -> None:
        def number(name: str, low: float, high: float, why: str) -> None:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
                raise InvalidRequestError(f"{name} doit être un nombre fini, et non {value!r}.")
            if not low <= value <= high:
                raise InvalidRequestError(f"{name} vaut {value} : {why}.")

        def integer(name: str, minimum: int, optional: bool = False) -> None:
            value = getattr(self, name)
            if not (optional and value is None):
                require_int(name, value, minimum, InvalidRequestError)

        def listed(value: object, name: str, what: str) -> list:
            if value is not None and (isinstance(value, (str, bytes)) or not isinstance(value, Iterable)):
                raise InvalidRequestError(f"{name} doit être {what}, et non {value!r}.")
            return list(value or [])

        number("temperature", 0.0, math.inf, "donnez 0 (greedy) ou un nombre positif")
        number("top_p", 0.0, 1.0, "donnez un nombre entre 0 (exclu) et 1")
        if self.top_p == 0:
            raise InvalidRequestError("top_p vaut 0 : aucun token ne resterait. Donnez un nombre entre 0 (exclu) et 1.")
        number("min_p", 0.0, 1.0, "donnez un nombre entre 0 et 1")
        integer("n", 1)
        integer("top_k", -1)
        integer("seed", 0, optional=True)
        integer("max_tokens", 1, optional=True)
        integer("min_tokens", 0)
        integer("logprobs", 0, optional=True)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) dépasse max_tokens ({self.max_tokens}) : baissez l'un ou montez l'autre."
            )
        require_bool("ignore_eos", self.ignore_eos, InvalidRequestError)
        self.stop = [self.stop] if isinstance(self.stop, str) else listed(self.stop, "stop", "une chaîne ou une liste de chaînes")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise InvalidRequestError("stop doit être une chaîne non vide, ou une liste de chaînes non vides.")
        self.stop_token_ids = listed(self.stop_token_ids, "stop_token_ids", "une liste d'entiers")
        for token in self.stop_token_ids:
            require_int("stop_token_ids", token, 0, InvalidRequestError)

    @property
    def greedy(self) -> bool:
        """Vrai si le token le plus probable est toujours choisi."""
        return self.temperature < GREEDY_BELOW


class Request:
    """Une requête en cours. Le scheduler la fait avancer ; l'exécuteur ne fait que la lire.

    - `token_ids` : prompt puis tokens produits, dans l'ordre.
    - `num_computed_tokens` : nombre de tokens dont K et V sont dans le cache.
    - `num_cached_tokens` : tokens trouvés dans le cache de préfixe à la première admission.
    - `block_hashes` : empreintes des blocs pleins déjà calculées (tenues par `KVCacheManager`).
    """

    __slots__ = (
        "block_hashes",
        "eos_token_id",
        "error",
        "finish_reason",
        "logprobs",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "request_id",
        "sampling_params",
        "status",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams | None = None,
        eos_token_id: int | list[int] | None = None,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.sampling_params = params = sampling_params or SamplingParams()
        self.eos_token_id = eos_token_id
        eos = [] if eos_token_id is None else [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
        self.stop_token_ids = frozenset(params.stop_token_ids + ([] if params.ignore_eos else eos))
        self.max_num_tokens = math.inf if params.max_tokens is None else self.num_prompt_tokens + params.max_tokens
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.block_hashes: list[bytes] = []
        self.logprobs: list[Any] = []
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens connus : prompt et réponse."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def append(self, token_id: int) -> FinishReason | None:
        """Ajoute un token produit ; rend la raison de la fin, ou `None` si la requête continue."""
        token_ids = self.token_ids
        token_ids.append(token_id)
        num_tokens = len(token_ids)
        if token_id in self.stop_token_ids and num_tokens - self.num_prompt_tokens >= self.sampling_params.min_tokens:
            return FinishReason.STOP
        if num_tokens >= self.max_num_tokens:
            return FinishReason.LENGTH
        return None

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, prompt={self.num_prompt_tokens}, "
            f"tokens={self.num_tokens}, calculés={self.num_computed_tokens})"
        )
