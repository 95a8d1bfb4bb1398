"""Combien de temps dure un pas : quelques coefficients, tirés de fiches techniques ou ajustés sur un vrai journal.

Un pas relit tous les poids une fois, quel que soit le nombre de tokens : tant que le calcul de ces tokens prend moins de temps que
cette lecture, ils sont gratuits. Au-delà, c'est le calcul qui compte. C'est le modèle du toit (roofline, Williams et al., 2009).
S'y ajoutent l'attention, qui relit le cache de chaque requête, et des frais fixes.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path

import numpy as np

from minibatcher.engine import ArrivalEvent, Event, StepEvent
from minibatcher.errors import ConfigError, UnknownOptionsRefused
from minibatcher.simulation.hardware import Hardware
from minibatcher.simulation.sheets import (
    ModelSheet,
    kv_bytes_per_token,
    weight_bytes,
)


@dataclass(slots=True)
class StepLoad:
    """Ce qu'un pas calcule, en nombres entiers.

    - `num_tokens`, `num_seqs` : tokens calculés, requêtes du pas ;
    - `context` : tokens de cache relus, par toutes les requêtes ensemble ;
    - `pairs` : pour celles qui calculent plusieurs tokens, nombre de couples (token calculé, token regardé).
    """

    num_tokens: int = 0
    num_seqs: int = 0
    context: int = 0
    pairs: int = 0

    def add(self, start: int, count: int) -> None:
        """Une requête de plus : `start` tokens déjà en cache, `count` à calculer."""
        self.num_tokens += count
        self.num_seqs += 1
        self.context += start + count
        if count > 1:
            self.pairs += count * start + count * (count + 1) // 2


@dataclass(frozen=True)
class CostModel(UnknownOptionsRefused):
    """Durée d'un pas, en secondes :

        overhead + max(weights, num_tokens × per_token) + num_seqs × per_seq + context × per_context_token + pairs × per_pair

    - `overhead` : frais fixes d'un pas ; `weights` : lire tous les poids une fois ;
    - `per_token` : les produits d'un token ; `per_seq` : les logits et le tirage d'une requête ;
    - `per_context_token` : lire K et V d'un token ; `per_pair` : calculer l'attention d'un couple, dans un prefill.
    """

    overhead: float
    weights: float
    per_token: float
    per_seq: float
    per_context_token: float
    per_pair: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value < 0:
                raise ConfigError(f"CostModel.{name} doit être un nombre fini de secondes, positif ou nul, et non {value!r}.")

    @classmethod
    def from_sheets(
        cls,
        model: ModelSheet,
        hardware: Hardware,
        dtype: str = "float16",
        kv_cache_dtype: str | None = None,
        bandwidth_efficiency: float = 0.8,
        compute_efficiency: float = 0.6,
        overhead: float = 0.0005,
    ) -> "CostModel":
        """D'après les fiches. `kv_cache_dtype` : celui des poids si rien n'est dit. Chaque token paie ses logits, même au milieu
        d'un prompt, où le moteur s'en passe : quelques pour cent de trop.

        Aucun programme n'atteint les crêtes des fiches : `bandwidth_efficiency` et `compute_efficiency` sont les parts atteintes,
        `overhead` (secondes) ce que coûte de préparer un pas. Les valeurs par défaut sont des ordres de grandeur, pas des mesures ;
        `calibrate` en donne de vraies, sur une machine donnée. Lève `ConfigError`.
        """
        for name, value in (("bandwidth_efficiency", bandwidth_efficiency), ("compute_efficiency", compute_efficiency)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise ConfigError(f"{name} vaut {value!r} : donnez une part entre 0 (exclu) et 1.")
        if dtype not in hardware.flops:
            raise ConfigError(
                f"{hardware.name} ne calcule pas en {dtype} d'après sa fiche. Au choix : {', '.join(hardware.flops)}."
            )
        bandwidth, flops = hardware.bandwidth * bandwidth_efficiency, hardware.flops[dtype] * compute_efficiency
        return cls(
            overhead=overhead,
            weights=weight_bytes(model, dtype) / bandwidth,
            per_token=model.flops_per_token / flops,
            per_seq=0.0,
            per_context_token=kv_bytes_per_token(model, kv_cache_dtype or dtype) / bandwidth,
            per_pair=model.flops_per_pair / flops,
        )

    def duration(self, load: StepLoad) -> float:
        """Durée du pas, en secondes ; 0 s'il est vide."""
        if not load.num_seqs:
            return 0.0
        linear = max(self.weights, load.num_tokens * self.per_token)
        attention = load.context * self.per_context_token + load.pairs * self.per_pair
        return self.overhead + linear + load.num_seqs * self.per_seq + attention

    def save(self, path: str | Path) -> None:
        """Écrit les coefficients en JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "CostModel":
        """Relit ce que `save` a écrit. Lève `ConfigError`."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            missing = {f.name for f in fields(cls)} - content.keys()
        except (OSError, ValueError, AttributeError) as problem:
            raise ConfigError(f"{path} n'est pas un modèle de coût lisible ({problem}).") from None
        if missing:
            raise ConfigError(f"{path} n'est pas un modèle de coût : il y manque {', '.join(sorted(missing))}.")
        return cls(**content)


@dataclass
class Calibration:
    """Un modèle de coût ajusté, et ce qu'il vaut sur les pas mis de côté, qu'il n'a pas vus.

    Erreurs relatives, sans signe : médiane et 95e centile par pas ; `total_error` : sur la somme de leurs durées, avec son signe.
    """

    cost_model: CostModel
    num_fitted: int
    num_unseen: int
    median_error: float
    p95_error: float
    total_error: float


def step_loads(events: Iterable[Event]) -> list[tuple[StepLoad, float]]:
    """La charge et la durée (secondes) de chaque pas non vide d'un journal."""
    position: dict[str, int] = {}
    steps = []
    for event in events:
        if isinstance(event, ArrivalEvent):
            position[event.request_id] = 0
        elif isinstance(event, StepEvent) and event.scheduled:
            position |= event.admitted
            load = StepLoad()
            for request_id, count in event.scheduled.items():
                load.add(position[request_id], count)
                position[request_id] += count
            steps.append((load, event.duration))
    return steps


def calibrate(events: Iterable[Event], unseen_share: float = 0.25) -> Calibration:
    """Ajuste un `CostModel` sur le journal d'un moteur réel ; un pas sur `1 / unseen_share` sert à juger, pas à ajuster.

    Moindres carrés sur les erreurs relatives (un pas court compte autant qu'un long), coefficients positifs ou nuls. Il faut un
    journal varié (prefills et decodes, petits et grands lots) d'au moins vingt pas ; lève `ConfigError` sinon.
    """
    if not 0 < unseen_share <= 0.5:
        raise ConfigError(f"unseen_share vaut {unseen_share!r} : donnez une part entre 0 (exclu) et 0.5.")
    steps = [(load, duration) for load, duration in step_loads(events) if duration > 0]
    if len(steps) < 20:
        raise ConfigError(
            f"Le journal n'a que {len(steps)} pas : il en faut au moins 20, de tailles variées, pour ajuster un coût."
        )
    stride = round(1 / unseen_share)
    unseen = steps[stride - 1 :: stride]
    fitted = [step for number, step in enumerate(steps, 1) if number % stride]
    # L'endroit où le calcul dépasse la lecture des poids est le seul paramètre qui ne soit pas linéaire : on les essaie tous.
    knees = sorted({load.num_tokens for load, _ in fitted})
    _, model = min((_fit(fitted, knee) for knee in knees), key=lambda candidate: candidate[0])
    predicted = np.array([model.duration(load) for load, _ in unseen])
    measured = np.array([duration for _, duration in unseen])
    errors = np.abs(predicted / measured - 1)
    return Calibration(
        cost_model=model,
        num_fitted=len(fitted),
        num_unseen=len(unseen),
        median_error=float(np.median(errors)),
        p95_error=float(np.percentile(errors, 95)),
        total_error=float(predicted.sum() / measured.sum() - 1),
    )


def _fit(steps: list[tuple[StepLoad, float]], knee: int) -> tuple[float, CostModel]:
    """Le meilleur modèle dont le calcul dépasse la lecture des poids à partir de `knee` tokens, et son erreur moyenne."""
    features = np.array(
        [(1, max(knee, load.num_tokens), load.num_seqs, load.context, load.pairs) for load, _ in steps], dtype=float
    )
    relative = features / np.array([duration for _, duration in steps])[:, None]
    coefficients = _positive_least_squares(relative, np.ones(len(steps)))
    overhead, per_token, per_seq, per_context_token, per_pair = map(float, coefficients)
    model = CostModel(overhead, knee * per_token, per_token, per_seq, per_context_token, per_pair)
    return float(np.abs(relative @ coefficients - 1).mean()), model


def _positive_least_squares(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Moindres carrés à coefficients positifs ou nuls : le plus négatif est retiré, et l'on recommence."""
    kept = list(range(features.shape[1]))
    result = np.zeros(features.shape[1])
    while kept:
        # Colonnes ramenées à la même échelle : elles vont de 1 à des millions.
        scale = np.abs(features[:, kept]).max(axis=0)
        scale[scale == 0] = 1.0
        solution = np.linalg.lstsq(features[:, kept] / scale, target, rcond=None)[0]
        if solution.min() >= 0:
            result[kept] = solution / scale
            break
        kept.pop(int(solution.argmin()))
    return result
