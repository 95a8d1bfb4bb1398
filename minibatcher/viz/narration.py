"""Dire en une phrase ce qui se passe à un pas : qui sort, qui entre, qui attend. Du texte simple, sans balises."""

from collections.abc import Sequence

import numpy as np

from minibatcher.engine import StepEvent
from minibatcher.simulation.slots import SlotRun
from minibatcher.viz.style import enumerate_in_french, french_number, plural

MAX_NAMES = 8  # au-delà, on compte au lieu de nommer


def tell_slots(run: SlotRun, done: int, names: Sequence[str]) -> str:
    """Ce qui se passe dans `run` quand `done` pas sont faits : fins, entrées, file. `names[i]` : le nom de la requête `i`."""
    occupancy = run.occupancy
    if done > run.num_steps:
        return f"Tout est servi depuis le pas {french_number(run.num_steps)}."
    before = occupancy[done - 1] if done else np.full(occupancy.shape[1], -1)
    now = occupancy[done] if done < run.num_steps else np.full(occupancy.shape[1], -1)
    changed = before != now
    left, entered = (sorted(row[changed & (row >= 0)].tolist()) for row in (before, now))
    coming = set(occupancy[done:].ravel().tolist()) - {-1}
    preempted = [names[request] for request in left if request in coming]
    finished = [names[request] for request in left if request not in coming]
    if done == run.num_steps:
        return f"{_who(finished, 'finit', 'finissent')}\u202f: tout est servi."
    text = _turnover(finished, preempted, [names[request] for request in entered], bool((before[now >= 0] < 0).any()))
    num_empty = int((now < 0).sum())
    if num_empty:
        text += f" {plural(num_empty, 'slot vide')} sur {french_number(len(now))}."
    waiting = sorted(coming - set(now.tolist()))
    return f"{text} {_queue([names[request] for request in waiting])}"


def _turnover(finished: list[str], preempted: list[str], entered: list[str], filled: bool) -> str:
    """« A finit, F prend son slot. » ; `filled` : l'une des entrées prend un slot qui était vide."""
    clauses = []
    if preempted:
        clauses.append(f"{_who(preempted, 'est préemptée', 'sont préemptées')}.")
    if len(finished) == len(entered) and finished and not filled and not preempted:
        taking = ("prend son slot", "prennent leurs slots")
        clauses.append(f"{_who(finished, 'finit', 'finissent')}, {_who(entered, *taking)}.")
    elif finished and not entered:
        staying = "son slot reste vide" if len(finished) == 1 else "leurs slots restent vides"
        clauses.append(f"{_who(finished, 'finit', 'finissent')}, {staying}.")
    else:
        if finished:
            clauses.append(f"{_who(finished, 'finit', 'finissent')}.")
        if entered:
            clauses.append(f"{_who(entered, 'entre', 'entrent')}.")
    return " ".join(clauses) or "Personne ne sort, personne n’entre."


def tell_step(event: StepEvent) -> str:
    """Ce qu'a fait ce pas du moteur : tokens calculés, entrées, préemptions, fins, file, blocs."""
    num_tokens = sum(event.scheduled.values())
    verb = "calcule" if len(event.scheduled) < 2 else "calculent"
    clauses = [f"{plural(len(event.scheduled), 'requête')} {verb} {plural(num_tokens, 'token')}."]
    if event.preempted:
        clauses.append(f"{_who(event.preempted, 'est préemptée', 'sont préemptées')}.")
    if event.admitted:
        cached = sum(event.admitted.values())
        found = f" ({plural(cached, 'token')} déjà en cache)" if cached else ""
        clauses.append(f"{_who(list(event.admitted), 'entre', 'entrent')}{found}.")
    if event.finished:
        clauses.append(f"{_who(list(event.finished), 'finit', 'finissent')}.")
    clauses.append(f"{french_number(event.num_waiting)} en file, {plural(event.num_free_blocks, 'bloc libre')}.")
    return " ".join(clauses)


def _who(names: Sequence[str], one: str, many: str) -> str:
    who = enumerate_in_french(list(names)) if len(names) <= MAX_NAMES else plural(len(names), "requête")
    return f"{who} {one if len(names) == 1 else many}"


def _queue(names: list[str]) -> str:
    if not names:
        return "La file est vide."
    if len(names) > MAX_NAMES:
        return f"{plural(len(names), 'requête')} attendent en file."
    return f"En file\u202f: {enumerate_in_french(names)}."
