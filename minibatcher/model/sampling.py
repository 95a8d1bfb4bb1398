"""Choisir le token suivant de chaque requête, pour tout le lot d'un coup.

Le tirage d'une requête ne dépend que de sa graine et de la position du token : ni du lot, ni d'une préemption, ni d'un pas rejoué.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibatcher.request import Request


@dataclass
class Logprob:
    """Logarithme (népérien) de probabilité d'un token, et son rang (1 pour le plus probable)."""

    logprob: float
    rank: int
    decoded_token: str | None = None


def sample(logits: Tensor, requests: list[Request]) -> tuple[list[int | None], list[dict[int, Logprob] | None] | None]:
    """Un token par ligne de `logits` [R, vocab_size] ; `requests[i]` est la requête de la ligne `i`.

    Rend les tokens (`None` si les logits d'une ligne ne sont pas des nombres finis), et les logprobs s'il en est demandé.
    Les logprobs sont ceux du modèle, avant température et filtres, comme dans vLLM.
    """
    logprobs = None
    if any(request.sampling_params.logprobs is not None for request in requests):
        raw = logits.clone()  # les filtres modifient logits sur place
    _forbid_early_stop(logits, requests)
    best, tokens = logits.float().max(dim=-1)
    drawn = [i for i, request in enumerate(requests) if not request.sampling_params.greedy]
    if drawn:
        tokens[drawn] = _draw(logits[drawn].float(), [requests[i] for i in drawn])
    # Un NaN l'emporte dans max : le voir ne demande pas d'autre lecture. Une ligne de -inf n'a pas de token non plus.
    failed = (~best.isfinite()).tolist()
    chosen = [None if bad else token for token, bad in zip(tokens.tolist(), failed, strict=True)]
    if any(request.sampling_params.logprobs is not None for request in requests):
        logprobs = _logprobs(raw, chosen, requests)
    return chosen, logprobs


def _forbid_early_stop(logits: Tensor, requests: list[Request]) -> None:
    for row, request in enumerate(requests):
        if request.stop_token_ids and request.num_output_tokens < request.sampling_params.min_tokens:
            logits[row, list(request.stop_token_ids)] = float("-inf")


def filter_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Divise par la température, puis met à -inf les tokens écartés par min_p et top_k, puis par top_p sur ce qui reste.

    `logits` [R, V] en float32 ; un réglage par ligne, de forme [R]. Le token le plus probable reste toujours.
    """
    logits = logits / temperature[:, None]
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    removed = (ranks >= top_k[:, None]) | (probabilities < min_p[:, None] * probabilities[:, :1])
    probabilities = probabilities.masked_fill(removed, 0.0)
    probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    removed |= probabilities.cumsum(dim=-1) - probabilities >= top_p[:, None]
    removed[:, 0] = False
    return logits.masked_fill(torch.zeros_like(removed).scatter(-1, order, removed), float("-inf"))


def _draw(logits: Tensor, requests: list[Request]) -> Tensor:
    params = [request.sampling_params for request in requests]
    vocab_size = logits.shape[-1]
    hottest = torch.finfo(torch.float32).max  # au-delà, un logit à -inf (token interdit) deviendrait -inf / inf, un NaN
    temperature = torch.tensor([min(p.temperature, hottest) for p in params], device=logits.device)
    if any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params):
        top_k = torch.tensor([p.top_k if p.top_k > 0 else vocab_size for p in params], device=logits.device)
        top_p, min_p = (torch.tensor([getattr(p, name) for p in params], device=logits.device) for name in ("top_p", "min_p"))
        # « Pas de top_p » ne doit rien écarter, même si la somme arrondie atteint 1 avant le dernier token.
        logits = filter_logits(logits, temperature, top_k, torch.where(top_p < 1, top_p, torch.inf), min_p)
    else:
        logits = logits / temperature[:, None]
    # Course exponentielle : diviser chaque probabilité par un bruit exponentiel et prendre le maximum, c'est tirer selon elles.
    noise = torch.empty_like(logits, device="cpu")
    generator = torch.Generator()
    for row, request in enumerate(requests):
        generator.manual_seed(hash((request.sampling_params.seed, request.num_tokens)) & (2**63 - 1))
        noise[row].exponential_(generator=generator)
    return (logits.softmax(dim=-1) / noise.to(logits.device)).argmax(dim=-1)


def _logprobs(logits: Tensor, tokens: list[int | None], requests: list[Request]) -> list[dict[int, Logprob] | None]:
    results: list[dict[int, Logprob] | None] = [None] * len(requests)
    for row, (token, request) in enumerate(zip(tokens, requests, strict=True)):
        count = request.sampling_params.logprobs
        if count is None or token is None:
            continue
        values = logits[row].float().log_softmax(dim=-1)
        top, ids = values.topk(min(count, len(values)))
        entry = {i: Logprob(v, rank) for rank, (i, v) in enumerate(zip(ids.tolist(), top.tolist(), strict=True), start=1)}
        if token not in entry:
            entry[token] = Logprob(values[token].item(), int((values > values[token]).sum()) + 1)
        results[row] = entry
    return results
