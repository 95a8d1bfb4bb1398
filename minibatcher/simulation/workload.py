"""Une charge : ce qui arrive, et quand. Le simulateur, le moteur réel et le générateur de charge lisent la même liste.

Une charge se fabrique (`synthetic_workload`) ou se lit (`minibatcher.simulation.traces`).
Toutes les arrivées à 0 : charge hors ligne, ou boucle fermée si celui qui l'exécute limite le nombre de clients.
"""

import hashlib
import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from minibatcher.errors import MinibatcherError, require_int

MAX_COUNT = 2**31 - 1


class WorkloadError(MinibatcherError, ValueError):
    """Une charge ne peut pas être lue, écrite ou fabriquée."""


@dataclass(slots=True)
class WorkloadRequest:
    """Une requête à venir. Lève `WorkloadError` si une valeur est impossible ou si deux champs se contredisent.

    - `arrival` : secondes depuis le début de la charge.
    - `num_output_tokens` : longueur qu'aura la réponse, cachée au scheduler.
    - `prefix_id`, `num_prefix_tokens` : le début du prompt, commun à toutes les requêtes de ce `prefix_id`.
    - `prompt`, `prompt_token_ids` : le texte et ses tokens, facultatifs : des longueurs suffisent au simulateur.
    """

    request_id: str
    arrival: float
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_id: str | None = None
    num_prefix_tokens: int = 0
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        for name in ("request_id", "prefix_id", "prompt"):
            value = getattr(self, name)
            if (value is not None or name == "request_id") and not is_text(value):
                raise WorkloadError(f"{name} doit être un texte non vide, en Unicode valide, et non {shown(value)}.")
        self.arrival = _number("arrival", self.arrival, zero=True)
        for name, minimum in (("num_prompt_tokens", 1), ("num_output_tokens", 1), ("num_prefix_tokens", 0)):
            _count(name, getattr(self, name), minimum)
        if self.num_prefix_tokens > self.num_prompt_tokens:
            lengths = f"num_prefix_tokens ({self.num_prefix_tokens}) dépasse num_prompt_tokens ({self.num_prompt_tokens})"
            raise WorkloadError(f"{lengths} : le préfixe fait partie du prompt, raccourcissez-le.")
        if (self.prefix_id is None) != (self.num_prefix_tokens == 0):
            raise WorkloadError("prefix_id et num_prefix_tokens vont ensemble : donnez les deux, ou aucun.")
        if self.prompt_token_ids is None:
            return
        if not isinstance(self.prompt_token_ids, list):
            raise WorkloadError(f"prompt_token_ids doit être une liste d'entiers, et non {shown(self.prompt_token_ids)}.")
        for token_id in self.prompt_token_ids:
            _count("un token de prompt_token_ids", token_id, 0)
        if len(self.prompt_token_ids) != self.num_prompt_tokens:
            lengths = f"{len(self.prompt_token_ids)} tokens dans prompt_token_ids"
            raise WorkloadError(f"num_prompt_tokens vaut {self.num_prompt_tokens}, pour {lengths} : corrigez l'un ou l'autre.")


def poisson_arrivals(num_requests: int, request_rate: float, seed: int) -> np.ndarray:
    """Arrivées au hasard, indépendantes, `request_rate` par seconde en moyenne : `gamma_arrivals` avec `burstiness=1`."""
    return gamma_arrivals(num_requests, request_rate, 1.0, seed)


def gamma_arrivals(num_requests: int, request_rate: float, burstiness: float, seed: int) -> np.ndarray:
    """Dates d'arrivée croissantes, en secondes (`num_requests` float64), le premier intervalle précédant la première requête.

    Sens de `vllm bench serve --request-rate --burstiness` : intervalles de loi gamma, de forme `burstiness` et de moyenne
    1/`request_rate`, donc de coefficient de variation 1/√`burstiness`. 1 : Poisson ; moins : rafales ; plus : régularité ;
    inf : intervalles constants. `request_rate=inf` : tout arrive à 0. vLLM dilate ensuite les dates pour que la dernière
    tombe à `num_requests`/`request_rate` ; ici non, le débit obtenu fluctue autour du débit demandé.
    """
    _count("num_requests", num_requests, 1)
    rate = _number("request_rate", request_rate, infinite=True)
    shape = _number("burstiness", burstiness, infinite=True)
    rng = _rng(seed, "arrivals")
    with np.errstate(over="ignore", invalid="ignore"):
        # Tirés en unités d'intervalle moyen : à graine égale, changer le débit ne fait que dilater le temps.
        gaps = np.ones(num_requests) if shape == math.inf else rng.standard_gamma(shape, num_requests) / shape
        arrivals = np.cumsum(gaps) / rate
    if not np.isfinite(arrivals).all():
        raise WorkloadError(f"request_rate={rate} et burstiness={shape} donnent des dates infinies : prenez moins extrême.")
    return arrivals


def lognormal_lengths(num_requests: int, mean: float, cv: float, low: int, high: int, seed: int) -> np.ndarray:
    """Longueurs log-normales, arrondies puis ramenées dans [`low`, `high`] (`num_requests` int64).

    `mean` (tokens) et `cv` (écart type / moyenne) sont ceux de la loi avant cette coupe, qui les déplace si elle mord.
    Deux tirages de même graine varient ensemble : donnez aux prompts et aux réponses des graines différentes.
    """
    rng = _lengths_rng(num_requests, low, high, seed, "lognormal")
    variance = 2 * math.log(math.hypot(1, _number("cv", cv, zero=True)))  # ln(1 + cv²)
    logs = math.log(_number("mean", mean)) - variance / 2 + math.sqrt(variance) * rng.standard_normal(num_requests)
    with np.errstate(over="ignore"):
        return np.rint(np.clip(np.exp(logs), low, high)).astype(np.int64)


def uniform_lengths(num_requests: int, low: int, high: int, seed: int) -> np.ndarray:
    """Longueurs équiprobables de `low` à `high` compris (`num_requests` int64) ; même avis sur les graines."""
    return _lengths_rng(num_requests, low, high, seed, "uniform").integers(low, high, num_requests, endpoint=True)


def synthetic_workload(
    num_requests: int,
    prompt_lengths: ArrayLike,
    output_lengths: ArrayLike,
    arrivals: ArrayLike = 0.0,
    num_prefix_tokens: int = 0,
    num_prefixes: int = 1,
    seed: int = 0,
) -> list[WorkloadRequest]:
    """Une charge à partir de longueurs et d'arrivées : un nombre, le même pour toutes, ou une suite de `num_requests` nombres.

    `num_prefix_tokens` s'ajoute à `prompt_lengths` (comme `--random-prefix-len` de vLLM) ; `seed` tire le préfixe de chaque
    requête parmi `num_prefixes`.
    """
    _count("num_requests", num_requests, 1)
    _count("num_prefix_tokens", num_prefix_tokens, 0)
    _count("num_prefixes", num_prefixes, 1)
    if num_prefixes > 1 and num_prefix_tokens == 0:
        raise WorkloadError(f"num_prefixes vaut {num_prefixes} sans préfixe : donnez aussi num_prefix_tokens.")
    prompts = _column("prompt_lengths", prompt_lengths, num_requests, "iu", 1)
    outputs = _column("output_lengths", output_lengths, num_requests, "iu", 1)
    dates = _column("arrivals", arrivals, num_requests, "iuf", 0)
    drawn = _rng(seed, "prefix").integers(num_prefixes, size=num_requests)
    prefixes = [f"prefix-{i}" if num_prefix_tokens else None for i in drawn]
    return [
        WorkloadRequest(f"request-{i}", date, num_prefix_tokens + prompt, output, prefix, num_prefix_tokens)
        for i, (date, prompt, output, prefix) in enumerate(zip(dates, prompts, outputs, prefixes, strict=True))
    ]


def repeat_workload(requests: Sequence[WorkloadRequest], times: int) -> list[WorkloadRequest]:
    """La charge jouée `times` fois bout à bout, au même débit ; la copie k de `x` s'appelle `x#k` (k à partir de 1).

    Une copie commence un intervalle moyen après la fin de la précédente (aussitôt, si tout arrivait à la même date). Les
    préfixes restent communs ; un `prompt` donné revient tel quel, et le cache de préfixe le retrouvera.
    """
    _count("times", times, 1)
    if not requests:
        raise WorkloadError("Charge vide : il n'y a rien à répéter.")
    span = max(r.arrival for r in requests) - min(r.arrival for r in requests)
    period = span * len(requests) / max(len(requests) - 1, 1)
    return [
        replace(r, request_id=f"{r.request_id}#{k}", arrival=r.arrival + (k - 1) * period)
        for k in range(1, times + 1)
        for r in requests
    ]


def prompt_tokens(request: WorkloadRequest, vocab_size: int, seed: int) -> list[int]:
    """Les tokens du prompt : `prompt_token_ids` s'ils sont donnés, sinon `num_prompt_tokens` entiers de [0, `vocab_size`).

    Le préfixe ne dépend que de `seed` et `prefix_id`, la suite que de `seed` et `request_id` (SHAKE-256, le même partout).
    Une requête qui porte un texte est refusée : c'est au tokenizer du modèle de l'encoder.
    """
    _count("vocab_size", vocab_size, 1)
    require_int("seed", seed, 0, WorkloadError)
    if request.prompt_token_ids is not None:
        return list(request.prompt_token_ids)
    if request.prompt is not None:
        raise WorkloadError(f"La requête {request.request_id!r} porte un texte : encodez-le, ou retirez-le (prompt=None).")

    def draw(name: str, count: int) -> list[int]:
        words = np.frombuffer(hashlib.shake_256(f"{seed}/{name}".encode()).digest(4 * count), "<u4").astype(np.uint64)
        return (words * np.uint64(vocab_size) >> np.uint64(32)).tolist()

    own = request.num_prompt_tokens - request.num_prefix_tokens
    return draw(f"prefix/{request.prefix_id}", request.num_prefix_tokens) + draw(f"request/{request.request_id}", own)


def _count(name: str, value: int, minimum: int) -> None:
    require_int(name, value, minimum, WorkloadError)
    if value > MAX_COUNT:
        raise WorkloadError(f"{name} vaut {shown(value)} : donnez au plus {MAX_COUNT}.")


def _number(name: str, value: object, zero: bool = False, infinite: bool = False) -> float:
    valid = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not valid or not (0 < value <= sys.float_info.max or (zero and value == 0) or (infinite and value == math.inf)):
        what = "positif ou nul" if zero else "strictement positif"
        raise WorkloadError(f"{name} doit être un nombre {what}{', ou inf' if infinite else ' et fini'}, et non {shown(value)}.")
    return float(value)


def _rng(seed: int, name: str) -> np.random.Generator:
    # Le nom sépare les tirages de fonctions différentes : une graine donnée partout ne lie pas arrivées et longueurs.
    require_int("seed", seed, 0, WorkloadError)
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _lengths_rng(num_requests: int, low: int, high: int, seed: int, name: str) -> np.random.Generator:
    _count("num_requests", num_requests, 1)
    _count("low", low, 1)
    _count("high", high, low)
    return _rng(seed, name)


def _column(name: str, values: ArrayLike, num_requests: int, kinds: str, low: int) -> list:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in kinds or array.shape not in ((), (num_requests,)):
        what = "nombre" if "f" in kinds else "entier"
        raise WorkloadError(f"{name} doit être un {what} ou une suite de {num_requests} {what}s, et non {shown(values)}.")
    if not (array >= low).all():
        raise WorkloadError(f"{name} contient {array[~(array >= low)].flat[0]} : {low} est le minimum.")
    return np.broadcast_to(array, num_requests).tolist()


def is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
