"""Le modèle à slots avec un cache limité : réserver la mémoire, préempter quand elle manque, et ce que cela coûte.

Le prefill n'y coûte pas de temps : un prompt ne fait qu'occuper de la mémoire.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from minibatcher.errors import ConfigError, require_bool, require_int
from minibatcher.simulation.slots import SlotRun, Stay, as_int, as_lengths, fill_occupancy


@dataclass(frozen=True)
class Paged:
    """À la demande, par blocs de `block_size` tokens placés n'importe où : vLLM. `block_size=1` : token par token."""

    block_size: int = 16

    def __post_init__(self) -> None:
        require_int("block_size", self.block_size, 1)

    def places(self, num_tokens: int, prompt: int, output: int) -> int:
        """Emplacements réservés par une séquence qui a `num_tokens` tokens."""
        return -(-num_tokens // self.block_size) * self.block_size


@dataclass(frozen=True)
class Contiguous:
    """D'un seul tenant et d'avance, dès l'admission : les trois Orca de l'article vLLM (SOSP 2023, figure 2 et § 6.1).

    `policy` : combien réserver. `"max"` : `max_model_len`, quoi qu'il arrive ; `"pow2"` : le prompt, et pour la réponse la
    puissance de deux au-dessus de sa longueur ; `"oracle"` : la longueur exacte, que personne ne connaît d'avance.

    Les adresses sont simulées, avec l'allocateur buddy que l'article prête à Orca : des cases d'une puissance de deux, alignées.
    Ce qui dépasse dans la case, et les trous trop petits entre deux cases, sont perdus : c'est la fragmentation externe.
    """

    policy: str = "max"
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in ("max", "pow2", "oracle"):
            raise ConfigError(f"policy vaut {self.policy!r} ; politiques connues : max, pow2, oracle.")
        if self.policy == "max":
            require_int("max_model_len", self.max_model_len, 1)

    def places(self, num_tokens: int, prompt: int, output: int) -> int:
        """Emplacements réservés, les mêmes du début à la fin."""
        if self.policy == "max":
            return self.max_model_len
        return prompt + (_power_of_two(output) if self.policy == "pow2" else output)


@dataclass(slots=True)
class _Sequence:
    index: int
    prompt: int
    output: int
    produced: int = 0
    lost: int = 0  # tokens que la dernière préemption a jetés, et que la prochaine admission recalcule
    reserved: int = 0
    segment: tuple[int, int] | None = None  # si contigu : adresses [début, fin)
    slot: int = 0
    entered: int = 0

    @property
    def known(self) -> int:
        return self.prompt + self.produced


class _Memory:
    """Les `capacity` emplacements du cache, et qui les tient."""

    def __init__(self, capacity: int, allocation: Paged | Contiguous) -> None:
        self.capacity, self.allocation, self.used = capacity, allocation, 0
        self.segments: list[tuple[int, int]] = []

    def reserve(self, sequence: _Sequence, num_tokens: int) -> bool:
        """Garantit la place de `num_tokens` tokens ; `False`, sans rien changer, si elle manque."""
        missing = self.allocation.places(num_tokens, sequence.prompt, sequence.output) - sequence.reserved
        if missing and isinstance(self.allocation, Contiguous):
            sequence.segment = self._find_hole(missing)
            if sequence.segment is None:
                return False
            insort(self.segments, sequence.segment)
        elif self.used + missing > self.capacity:
            return False
        sequence.reserved += missing
        self.used += missing
        return True

    def release(self, sequence: _Sequence) -> None:
        self.used -= sequence.reserved
        sequence.reserved = 0
        if sequence.segment is not None:
            self.segments.remove(sequence.segment)
            sequence.segment = None

    def _find_hole(self, size: int) -> tuple[int, int] | None:
        """La première case libre de cette taille, arrondie à une puissance de deux et alignée sur elle."""
        size, start = _power_of_two(size), 0
        for taken_start, taken_end in [*self.segments, (self.capacity, self.capacity)]:
            if start + size <= taken_start:
                return start, start + size
            start = -(-taken_end // size) * size
        return None


@dataclass
class MemoryRun(SlotRun):
    """Un chronogramme à mémoire limitée. Tableaux d'entiers, une case par pas ; mémoire en tokens de cache.

    - `num_tokens` : tokens demandés ; `capacity` : taille du cache ;
    - `num_preemptions` ; `dropped_tokens` : tokens de cache que les préemptions ont jetés ;
    - `num_running` : séquences qui produisent un token à ce pas ; `recomputed_tokens` : tokens jetés que ce pas recalcule ;
    - `used_tokens` : emplacements réservés ; `useful_tokens` : ceux qui contiennent un token ; `future_tokens` : ceux qui en
      contiendront un, mais pas encore (les autres réservés ne serviront jamais : fragmentation interne) ;
    - `blocked` : booléens, la file attend de la mémoire alors qu'un slot est libre.
    """

    num_tokens: int
    capacity: int
    num_preemptions: int
    dropped_tokens: int
    num_running: np.ndarray
    recomputed_tokens: np.ndarray
    used_tokens: np.ndarray
    useful_tokens: np.ndarray
    future_tokens: np.ndarray
    blocked: np.ndarray

    @property
    def tokens_per_step(self) -> float:
        """Débit utile : tokens demandés par pas. Ce qui a été produit puis jeté n'y compte pas."""
        return self.num_tokens / self.num_steps

    @property
    def useful_share(self) -> float:
        """Part des emplacements réservés qui contient vraiment des K et V, moyenne sur les pas."""
        return float(self.useful_tokens.sum() / self.used_tokens.sum())

    def memory_shares(self) -> dict[str, float]:
        """Les quatre parts du cache entier, de somme 1, en moyenne sur les pas où la mémoire manque (tous, si jamais).

        `useful`, `future` (réservation), `internal` (fragmentation interne) et `free`, que la file ne peut pas prendre
        (fragmentation externe et reste) : les couleurs de la figure 2 de l'article vLLM.
        """
        steps = self.blocked if self.blocked.any() else np.ones(self.num_steps, dtype=bool)
        parts = {
            "useful": self.useful_tokens,
            "future": self.future_tokens,
            "internal": self.used_tokens - self.useful_tokens - self.future_tokens,
            "free": self.capacity - self.used_tokens,
        }
        return {name: float(tokens[steps].mean()) / self.capacity for name, tokens in parts.items()}

    def duration(self, step: float, sequence: float = 0.0, kv_token: float = 0.0, recomputed_token: float = 0.0) -> float:
        """Secondes en tout : `step` par pas, plus tant par séquence en cours, par token de cache lu et par token recalculé."""
        counts = (self.num_running.sum(), self.useful_tokens.sum(), self.recomputed_tokens.sum())
        costs = (sequence, kv_token, recomputed_token)
        return float(step * self.num_steps + sum(cost * count for cost, count in zip(costs, counts, strict=True)))


TOKEN_BY_TOKEN = Paged(block_size=1)


def memory_limited(
    lengths: Iterable[int],
    num_slots: int,
    capacity: int,
    *,
    prompt_lengths: Iterable[int] | None = None,
    allocation: Paged | Contiguous = TOKEN_BY_TOKEN,
    restart: bool = False,
) -> MemoryRun:
    """Batching continu dans un cache de `capacity` tokens, avec préemption de la dernière admise. Lève `ConfigError`.

    - `lengths` : tokens à produire, au moins 1 ; `prompt_lengths` : tokens en mémoire dès l'admission, 0 par défaut ;
    - `allocation` : comment la mémoire est réservée ;
    - `restart` : faux, une préemptée garde ses tokens et n'en recalcule que K et V (recompute, comme vLLM) ; vrai, elle les perd
      et doit les produire de nouveau, ce que fait le premier simulateur qu'on écrit.

    Règles de vLLM V1. Pendant un pas, une séquence tient une place par token connu, plus une pour celui qu'elle produit. Les
    séquences en cours d'abord, de la plus ancienne à la plus récente ; quand une place manque, la dernière admise rend les siennes
    et retourne en tête de file. Un pas qui a préempté n'admet personne. Sinon la file entre dans l'ordre, tant qu'il reste un slot
    et la place de toute la séquence ; la première qui ne tient pas arrête les autres.
    """
    num_slots, capacity = as_int("num_slots", num_slots), as_int("capacity", capacity)
    require_bool("restart", restart)
    sequences = _sequences(lengths, prompt_lengths, capacity, allocation)
    batch = _Batch(sequences, num_slots, _Memory(capacity, allocation), restart)
    while batch.waiting or batch.running:
        num_preempted = batch.grow()
        recomputed = 0 if num_preempted else batch.admit()
        batch.produce(recomputed)
    num_tokens, num_steps = sum(sequence.output for sequence in sequences), len(batch.steps)
    columns = np.array(batch.steps, dtype=np.int64).T
    return MemoryRun(
        num_steps,
        num_tokens / (num_slots * num_steps),
        fill_occupancy(batch.stays, num_steps, num_slots),
        num_tokens,
        capacity,
        batch.num_preemptions,
        batch.dropped_tokens,
        *columns[:5],
        blocked=columns[5].astype(bool),
    )


class _Batch:
    """Les séquences en cours, de la plus anciennement à la plus récemment admise, et la file derrière elles."""

    def __init__(self, sequences: list[_Sequence], num_slots: int, memory: _Memory, restart: bool) -> None:
        self.waiting, self.running = deque(sequences), []
        self.free_slots = list(range(num_slots))
        self.memory, self.restart = memory, restart
        self.num_preemptions = self.dropped_tokens = 0
        self.stays: list[Stay] = []
        self.steps: list[tuple[int, ...]] = []  # les colonnes de MemoryRun, de num_running à blocked

    def grow(self) -> int:
        """Une place de plus pour chaque séquence en cours ; rend le nombre de préemptions qu'il a fallu."""
        before, index = self.num_preemptions, 0
        while index < len(self.running):
            if self.memory.reserve(self.running[index], self.running[index].known + 1):
                index += 1
            else:
                self._preempt(self.running.pop())
        return self.num_preemptions - before

    def _preempt(self, sequence: _Sequence) -> None:
        self._leave(sequence, len(self.steps))
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1
        self.dropped_tokens += sequence.known
        if self.restart:
            sequence.produced = 0
        sequence.lost = sequence.known

    def admit(self) -> int:
        """La file entre tant qu'elle tient ; rend le nombre de tokens que les revenantes font recalculer."""
        recomputed = 0
        while self.waiting and self.free_slots and self.memory.reserve(self.waiting[0], self.waiting[0].known + 1):
            sequence = self.waiting.popleft()
            sequence.slot, sequence.entered = heappop(self.free_slots), len(self.steps)
            self.running.append(sequence)
            recomputed += sequence.lost
        return recomputed

    def produce(self, recomputed: int) -> None:
        """Un token pour chacune, et le pas est fini : on le note, puis sortent celles qui ont tout produit."""
        for sequence in self.running:
            sequence.produced += 1
        useful = sum(sequence.known for sequence in self.running)
        future = sum(min(sequence.reserved, sequence.prompt + sequence.output) for sequence in self.running) - useful
        blocked = bool(self.waiting and self.free_slots)
        self.steps.append((len(self.running), recomputed, self.memory.used, useful, future, blocked))
        for sequence in self.running:
            if sequence.produced == sequence.output:
                self._leave(sequence, len(self.steps))
        self.running = [sequence for sequence in self.running if sequence.produced < sequence.output]

    def _leave(self, sequence: _Sequence, step: int) -> None:
        self.memory.release(sequence)
        heappush(self.free_slots, sequence.slot)
        self.stays.append((sequence.index, sequence.slot, sequence.entered, step))


def _sequences(lengths: Iterable[int], prompt_lengths: Iterable[int] | None, capacity: int, allocation) -> list[_Sequence]:
    lengths = as_lengths("lengths", lengths)
    prompts = [0] * len(lengths) if prompt_lengths is None else as_lengths("prompt_lengths", prompt_lengths, minimum=0)
    if len(prompts) != len(lengths):
        raise ConfigError(f"lengths a {len(lengths)} éléments et prompt_lengths {len(prompts)} : il en faut un par requête.")
    if not isinstance(allocation, Paged | Contiguous):
        raise ConfigError(f"allocation doit être un Paged(...) ou un Contiguous(...), et non {allocation!r}.")
    for index, (prompt, output) in enumerate(zip(prompts, lengths, strict=True)):
        total = prompt + output
        places = allocation.places(total, prompt, output)
        needed = _power_of_two(places) if isinstance(allocation, Contiguous) else places
        if needed > capacity:
            raise ConfigError(
                f"La requête {index} ({total} tokens, prompt compris) occupe {needed} places du cache, qui n'en a que {capacity}. "
                "Raccourcissez-la ou agrandissez capacity."
            )
        if places < total:
            raise ConfigError(
                f"La requête {index} ({total} tokens, prompt compris) dépasse max_model_len = {allocation.max_model_len}. "
                "Raccourcissez-la ou montez max_model_len."
            )
    return [_Sequence(index, prompt, output) for index, (prompt, output) in enumerate(zip(prompts, lengths, strict=True))]


def _power_of_two(size: int) -> int:
    """La plus petite puissance de deux au moins égale à `size`."""
    return 1 << (size - 1).bit_length()
