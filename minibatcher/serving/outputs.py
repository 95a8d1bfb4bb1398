"""Ce que le moteur rend, aux noms de vLLM (`vllm/outputs.py`)."""

from dataclasses import dataclass


@dataclass
class CompletionOutput:
    """Une réponse.

    `stop_reason` : la chaîne ou le token qui l'a arrêtée ; `error` : ce qui a échoué, si `finish_reason` vaut « error ».
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """Tout ce qu'une requête a produit jusqu'ici, une `CompletionOutput` par réponse demandée (`n`)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
