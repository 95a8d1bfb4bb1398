"""Sauter d'un coup une longue suite de pas tous pareils : chacun reçoit un token, personne n'entre, ne sort ni ne manque de blocs.

Le résultat est, au bit près, celui de la marche pas à pas : mêmes blocs pris dans le même ordre, même horloge, même journal. Seul
le chemin est plus court, parce que le scheduler n'est plus consulté pour redire la même chose.
"""

import math

from minibatcher.engine import EngineCore, StepEvent
from minibatcher.policies import POLICIES
from minibatcher.scheduler import Scheduler
from minibatcher.simulation.cost import StepLoad
from minibatcher.simulation.executor import SimulatedExecutor


def skip_identical_steps(engine: EngineCore, executor: SimulatedExecutor, until: float) -> int:
    """Avance d'autant de pas identiques que possible, le dernier commençant avant `until` (secondes) ; rend leur nombre.

    Rend 0 si le prochain pas n'est pas un simple decode de toutes les requêtes en cours, ou si la politique n'est pas une des
    nôtres : il faut alors appeler `engine.step()`.
    """
    scheduler = engine.scheduler
    running = scheduler.running
    num_steps = _num_identical_steps(scheduler)
    if not num_steps:
        return 0
    starts = [request.num_computed_tokens for request in running]
    lengths = [len(request.token_ids) for request in running]

    # Combien de pas avant `until`, et quand chacun finit : le calcul de l'exécuteur, token de contexte par token de contexte.
    clock, num_seqs = executor.clock, len(running)
    load = StepLoad(num_seqs, num_seqs, sum(starts) + num_seqs, 0)
    times = [clock.now]
    while len(times) <= num_steps and times[-1] < until:
        times.append(times[-1] + executor.duration(load))
        load.context += num_seqs
    num_steps = len(times) - 1

    for request in running:
        request.token_ids.extend([request.answer_token] * num_steps)
    num_steps, free_blocks = _allocate(scheduler, starts, num_steps)
    for request, start, length in zip(running, starts, lengths, strict=True):
        request.num_computed_tokens = start + num_steps
        del request.token_ids[length + num_steps :]
    if num_steps:
        clock.now = times[num_steps]
        _log(engine, times, free_blocks, num_steps)
    return num_steps


def _num_identical_steps(scheduler: Scheduler) -> int:
    """Pas de decode certains, tant que l'horloge et les blocs le permettent ; 0 si le prochain n'en est pas un."""
    running, waiting, config = scheduler.running, scheduler.waiting, scheduler.config
    if type(scheduler) not in POLICIES.values() or not running or len(running) > config.max_num_batched_tokens:
        return 0
    if waiting and len(running) < config.max_num_seqs and scheduler.may_enter(waiting[0]):
        manager = scheduler.kv_cache_manager
        # Sans cache de préfixe, la tête de file n'entrera pas tant que personne ne rend de blocs.
        if manager.enable_prefix_caching or manager.num_blocks_for(waiting[0].num_tokens) <= manager.num_free_blocks:
            return 0
    fewest = math.inf  # tokens qui manquent à la première qui finira : le pas qui la finit revient au scheduler
    for request in running:
        known = len(request.token_ids)
        fewest = min(fewest, request.final_num_tokens - known)
        if known - request.num_computed_tokens != 1 or fewest < 3:
            return 0
    return fewest - 1


def _allocate(scheduler: Scheduler, starts: list[int], num_steps: int) -> tuple[int, list[int]]:
    """Prend les blocs de ces pas dans l'ordre où le scheduler les aurait pris.

    Rend le nombre de pas entiers qui ont eu leurs blocs, et le nombre de blocs libres à chacun.
    """
    manager = scheduler.kv_cache_manager
    block_size, running = manager.block_size, scheduler.running
    busy: list[tuple[int, int]] = []  # (pas, rang) où une table s'agrandit ou un bloc se remplit
    for rank, start in enumerate(starts):
        busy += [(step, rank) for step in range(-start % block_size, num_steps, block_size)]
        if manager.enable_prefix_caching and block_size > 1:
            busy += [(step, rank) for step in range((-start - 1) % block_size, num_steps, block_size)]
    busy.sort()
    changes = [(0, manager.num_free_blocks)]  # (pas, blocs libres à partir de lui)
    for step, rank in busy:
        running[rank].num_computed_tokens = starts[rank] + step
        if not manager.allocate(running[rank], 1):
            # Ce pas devra préempter : il revient au scheduler. Il redemandera, sans effet, les blocs que l'on vient d'y prendre.
            num_steps = step
            break
        changes.append((step, manager.num_free_blocks))
    free_blocks = [0] * num_steps
    for (step, free), (following, _) in zip(changes, [*changes[1:], (num_steps, 0)], strict=True):
        free_blocks[step:following] = [free] * (min(following, num_steps) - step)
    return num_steps, free_blocks


def _log(engine: EngineCore, times: list[float], free_blocks: list[int], num_steps: int) -> None:
    scheduler = engine.scheduler
    running, num_waiting = scheduler.running, len(scheduler.waiting)
    # Les mêmes objets pour tous ces pas : un journal se lit, il ne se modifie pas.
    scheduled = {request.request_id: 1 for request in running}
    sampled = {request.request_id: request.answer_token for request in running}
    admitted, preempted, finished = {}, [], {}
    num_running, first = len(running), engine.num_steps
    for step in range(num_steps):
        engine.events.append(
            StepEvent(
                first + step,
                times[step],
                times[step + 1],
                scheduled,
                sampled,
                admitted,
                preempted,
                finished,
                free_blocks[step],
                num_running,
                num_waiting,
            )
        )
    engine.num_steps += num_steps
