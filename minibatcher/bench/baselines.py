"""Les points de comparaison : transformers, requête par requête puis en lot statique.

Chaque mesure rend les mêmes choses : les tokens de chaque requête, et ses dates (`RequestMetrics`), pour que le même calcul donne
débit, TTFT et TPOT à tous.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.utils.logging import disable_progress_bar

from minibatcher.metrics import RequestMetrics, request_metrics
from minibatcher.request import FinishReason, SamplingParams
from minibatcher.serving.llm import LLM
from minibatcher.serving.outputs import RequestOutput


@dataclass
class Run:
    """Une mesure : `token_ids[i]` et `requests[i]` sont la réponse et les dates du i-ème prompt."""

    token_ids: list[list[int]]
    requests: list[RequestMetrics]


class _TokenClock(StoppingCriteria):
    """N'arrête rien : note l'heure de chaque token."""

    def __init__(self, on_token: Callable[[], None] | None = None) -> None:
        self.times: list[float] = []
        self.on_token = on_token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        self.times.append(time.perf_counter())
        if self.on_token is not None:
            self.on_token()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class TransformersBaseline:
    """`transformers.generate`, en greedy et float32 sur CPU, sans s'arrêter au token de fin (comme `ignore_eos=True`)."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        disable_progress_bar()  # elle parle anglais, et ne dure qu'un instant
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
        self.pad = self.model.generation_config.pad_token_id or 0
        self.model.generation_config = GenerationConfig(pad_token_id=self.pad)

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[list[int]], max_tokens: int, batch_size: int, on_token: Callable[[int], None] | None = None
    ) -> Run:
        """Sert les prompts par lots de `batch_size` ; un lot commence quand le précédent est fini.

        Toutes les requêtes arrivent au début : le TTFT de celles qui attendent compte leur attente. `on_token(n)` est appelé à
        chaque pas, avec le nombre de tokens produits.
        """
        start = time.perf_counter()
        run = Run([], [])
        for first in range(0, len(prompts), batch_size):
            batch = list(prompts[first : first + batch_size])
            width = max(map(len, batch))
            ids = torch.tensor([[self.pad] * (width - len(p)) + p for p in batch])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
            clock = _TokenClock(None if on_token is None else partial(on_token, len(batch)))
            begin = time.perf_counter()
            out = self.model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=max_tokens,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
            for row, prompt in enumerate(batch):
                run.token_ids.append(out[row, width:].tolist())
                run.requests.append(
                    RequestMetrics(
                        request_id=str(first + row),
                        arrival=start,
                        num_prompt_tokens=len(prompt),
                        first_scheduled=begin,
                        token_times=list(clock.times),
                        end=clock.times[-1],
                        finish_reason=FinishReason.LENGTH,
                    )
                )
        return run


def run_minibatcher(llm: LLM, prompts: Sequence[list[int]], max_tokens: int, on_token: Callable[[int], None] | None = None) -> Run:
    """La même charge par `LLM` ; le cache de préfixe est vidé d'abord. Avec `on_token`, pas à pas, pour montrer l'avancement."""
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    first_event = len(llm.engine.events)
    whole = on_token is None
    outputs = llm.generate(inputs, params, use_tqdm=False) if whole else _step_by_step(llm, inputs, params, on_token)
    metrics = request_metrics(llm.engine.events[first_event:])
    return Run([o.outputs[0].token_ids for o in outputs], [metrics[o.request_id] for o in outputs])


def _step_by_step(llm: LLM, inputs: list[dict], params: SamplingParams, on_token: Callable[[int], None]) -> list[RequestOutput]:
    finished = {}
    for i, prompt in enumerate(inputs):
        llm.add_request(f"mesure-{i}", prompt, params)
    while llm.has_unfinished_requests():
        produced = llm.step()
        finished.update({output.request_id: output for output in produced if output.finished})
        on_token(len(produced))
    return [finished[f"mesure-{i}"] for i in range(len(inputs))]
