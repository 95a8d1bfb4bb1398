"""L'exécuteur réel : transforme un plan du scheduler en tenseurs, calcule, choisit les tokens."""

import ctypes
import itertools
import sys

import torch

from minibatcher.model.attention import KVCache, cut_rectangles
from minibatcher.model.decoder import Decoder, StepInput
from minibatcher.model.sampling import sample
from minibatcher.request import Request
from minibatcher.scheduler import StepOutput, StepPlan


def keep_freed_memory() -> None:
    """Sous Linux (glibc) : garder la mémoire libérée pour le prochain pas plutôt que la rendre au système.

    Chaque pas redemande les mêmes tenseurs ; les rendre puis les reprendre coûte un défaut de page par 4 Kio, ce qui se voit dans
    un grand prefill. Sans effet ailleurs.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_mmap_threshold, 2**30)


class ModelExecutor:
    """Exécute les plans avec un décodeur et son cache.

    Le cache compte `num_blocks` blocs, ceux que le scheduler numérote. Une requête dont les logits ne sont pas des nombres finis
    échoue seule.
    """

    def __init__(self, decoder: Decoder, num_blocks: int) -> None:
        if decoder.embedding.device.type == "cpu":
            keep_freed_memory()
        self.decoder = decoder
        self.caches: list[KVCache] = decoder.new_caches(num_blocks)
        self.block_size = decoder.attention.block_size
        self.device = decoder.embedding.device

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepOutput:
        """Un pas. Rend, dans l'ordre du plan, le token de chaque requête qui a rattrapé ses tokens connus."""
        output = StepOutput([None] * len(plan.requests))
        if not plan.requests:
            return output
        try:
            return self._execute(plan, output)
        except BaseException:
            for request in plan.requests:  # ces blocs seront rendus sans que personne n'ait vu ce qu'ils contiennent
                self._scrub(plan, request)
            raise

    def _execute(self, plan: StepPlan, output: StepOutput) -> StepOutput:
        step, order = self.prepare(plan)
        logits = self.decoder(step, self.caches)
        # Un NaN gagne tous les tokens qui le suivent : le dernier d'un morceau de prompt le montre déjà. La requête s'arrête à ce
        # pas, avant que ses blocs ne passent à une autre.
        ready, partial = [], []
        for row, i in enumerate(order):
            request = plan.requests[i]
            caught_up = request.num_computed_tokens + plan.num_tokens[i] == request.num_tokens
            (ready if caught_up else partial).append(row)
        failed = []
        if partial:
            finite = logits[partial].amax(dim=-1).isfinite().tolist()
            failed += [order[row] for row, is_finite in zip(partial, finite, strict=True) if not is_finite]
            logits = logits[ready]
        if ready:
            sampled = [order[row] for row in ready]
            tokens, logprobs = sample(logits, [plan.requests[i] for i in sampled])
            if logprobs is not None:
                output.logprobs = [None] * len(plan.requests)
            for row, i in enumerate(sampled):
                output.token_ids[i] = tokens[row]
                if tokens[row] is None:
                    failed.append(i)
                if logprobs is not None:
                    output.logprobs[i] = logprobs[row]
        for i in failed:
            request = plan.requests[i]
            output.errors[request.request_id] = (
                "Le modèle a produit des logits qui ne sont pas des nombres finis (NaN ou infini) pour cette requête."
            )
            self._scrub(plan, request)
        return output

    def _scrub(self, plan: StepPlan, request: Request) -> None:
        for cache in self.caches:
            cache.scrub(plan.block_tables[request.request_id])

    def prepare(self, plan: StepPlan) -> tuple[StepInput, list[int]]:
        """Les tenseurs du plan, et l'ordre (indices dans le plan) où les requêtes y sont rangées.

        Chaque requête a une ligne de logits : celle de son dernier token, même au milieu d'un prompt.
        """
        block_size = self.block_size
        starts = [request.num_computed_tokens for request in plan.requests]
        counts = plan.num_tokens
        tables = [plan.block_tables[request.request_id] for request in plan.requests]
        # Requêtes semblables côte à côte, pour que chaque rectangle d'attention soit une tranche du lot.
        shapes = [(count, -(-(start + count) // block_size)) for start, count in zip(starts, counts, strict=True)]
        order = sorted(range(len(shapes)), key=shapes.__getitem__)

        token_ids, positions, slots, last_rows, first_rows = [], [], [], [], []
        for i in order:
            request, start, count, table = plan.requests[i], starts[i], counts[i], tables[i]
            first_rows.append(len(token_ids))
            token_ids += request.token_ids[start : start + count]
            positions += range(start, start + count)
            slots += [table[p // block_size] * block_size + p % block_size for p in range(start, start + count)]
            last_rows.append(len(token_ids) - 1)
        rectangles = []
        for first, last in cut_rectangles([shapes[i] for i in order]):
            members = order[first:last]
            args = ([values[i] for i in members] for values in (starts, counts, tables))
            rectangles.append(self.decoder.attention.rectangle(first_rows[first], *args, like=self.decoder.embedding))

        flat = torch.tensor(list(itertools.chain(token_ids, positions, slots, last_rows)), dtype=torch.int64).to(self.device)
        total = len(token_ids)
        token_ids, positions, slots, last_rows = flat.split([total, total, total, len(order)])
        step = StepInput(token_ids, positions, self.decoder.attention.vectors(slots), last_rows, rectangles)
        return step, order
