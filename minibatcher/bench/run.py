"""Servir une charge avec le vrai moteur, à l'heure dite : les mêmes requêtes que le simulateur, et un journal comme le sien."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from minibatcher.errors import ConfigError, require_int
from minibatcher.journal import Journal, scheduler_settings
from minibatcher.request import Request, SamplingParams
from minibatcher.serving.llm import LLM
from minibatcher.simulation.cost import Calibration, calibrate
from minibatcher.simulation.workload import WorkloadRequest, prompt_tokens, synthetic_workload, uniform_lengths


def run_workload(
    llm: LLM,
    workload: Sequence[WorkloadRequest],
    max_concurrency: int | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Journal:
    """Soumet chaque requête à sa date (secondes après le début), attend toutes les réponses ; rend le journal de cette charge.

    Chaque réponse compte exactement `num_output_tokens` tokens (la fin de texte est ignorée), greedy. Un prompt dont on n'a que
    la longueur est fait de tokens tirés au hasard, avec `seed`. `max_concurrency` : boucle fermée, comme pour `simulate`. Lève
    `InvalidRequestError`, avant de rien calculer, si une requête ne peut pas être servie.
    """
    if not workload:
        raise ConfigError("La charge est vide : il n'y a rien à servir.")
    if max_concurrency is not None:
        require_int("max_concurrency", max_concurrency, 1)
    engine = llm.engine
    if engine.has_unfinished_requests:
        raise ConfigError("Le moteur a déjà des requêtes en cours : attendez leur fin, ou annulez-les.")
    requests = []
    for item in workload:
        tokens = llm.tokenizer.encode(item.prompt) if item.prompt is not None and item.prompt_token_ids is None else None
        params = SamplingParams(temperature=0, max_tokens=item.num_output_tokens, ignore_eos=True)
        request = Request(item.request_id, tokens or prompt_tokens(item, llm.model_config.vocab_size, seed), params)
        engine.scheduler.check_request(request)
        requests.append((item.arrival, request))
    queue = deque(requests if max_concurrency is not None else sorted(requests, key=lambda pair: pair[0]))
    free_clients = max_concurrency or 0
    first_event, start = len(engine.events), engine.clock()
    try:
        while queue or engine.has_unfinished_requests:
            while queue and (free_clients if max_concurrency is not None else start + queue[0][0] <= engine.clock()):
                arrival, request = queue.popleft()
                engine.add_request(request)
                if max_concurrency is None:
                    # Arrivée pendant un pas, elle n'a pu être soumise qu'à sa fin ; mais elle attend depuis son heure.
                    engine.events[-1].time = start + arrival
                else:
                    free_clients -= 1
            if not engine.has_unfinished_requests:
                time.sleep(max(0.0, start + queue[0][0] - engine.clock()))
                continue
            finished = engine.step()
            free_clients += len(finished)
            if progress is not None and finished:
                progress(len(finished))
    except BaseException:
        engine.abort([request.request_id for _, request in requests])
        raise
    return Journal(scheduler_settings(engine.scheduler), engine.events[first_event:])


# Ce qu'un pas peut être : beaucoup de requêtes aux contextes courts, peu aux contextes longs, et entre les deux. Si tous les grands
# lots avaient de longs contextes, rien ne dirait lequel des deux coûte. (requêtes, prompts de… à…, réponses de… à…)
CALIBRATION_PHASES = ((40, 10, 60, 10, 100), (12, 300, 900, 10, 60), (24, 100, 300, 20, 80))


def run_calibration(llm: LLM, progress: Callable[[int], object] | None = None) -> Calibration:
    """Fait tourner le moteur sur une charge variée (une vingtaine de secondes avec SmolLM2 sur deux cœurs) et ajuste son coût."""
    events = []
    for number, (count, *limits) in enumerate(CALIBRATION_PHASES):
        prompts, outputs = uniform_lengths(count, *limits[:2], 2 * number), uniform_lengths(count, *limits[2:], 2 * number + 1)
        workload = synthetic_workload(count, prompts, outputs)
        events += run_workload(llm, workload, seed=number, progress=progress).events
    return calibrate(events)
