"""Exécuter pour de faux : l'horloge avance de ce que le pas aurait duré, et chaque requête reçoit un token.

Le moteur, le scheduler et le gestionnaire de blocs sont ceux du vrai modèle, à la ligne près.
"""

from collections.abc import Callable

from minibatcher.request import Request, SamplingParams
from minibatcher.scheduler import StepOutput, StepPlan
from minibatcher.simulation.cost import StepLoad

# Une requête simulée répond toujours le même token, jusqu'à celui-ci, qui la termine.
END_TOKEN = 0
_STOP_AT_END = SamplingParams(temperature=0, max_tokens=None, stop_token_ids=[END_TOKEN])


class VirtualClock:
    """L'heure qu'il est dans la simulation, en secondes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedRequest(Request):
    """Une requête dont on connaît d'avance la longueur de la réponse ; le scheduler, lui, ne la lit pas.

    `answer_token` : le token qu'elle reçoit à chaque pas ; `final_num_tokens` : longueur de la séquence, token de fin compris.
    """

    __slots__ = ("answer_token", "final_num_tokens")

    def __init__(self, request_id: str, prompt_token_ids: list[int], num_output_tokens: int, answer_token: int) -> None:
        super().__init__(request_id, prompt_token_ids, _STOP_AT_END)
        self.answer_token = answer_token
        self.final_num_tokens = self.num_prompt_tokens + num_output_tokens


class SimulatedExecutor:
    """Rend un token par requête qui a rattrapé ses tokens connus, et avance `clock` de `duration(charge)` secondes.

    Les requêtes sont des `SimulatedRequest`. `duration` est le plus souvent `CostModel.duration`.
    """

    def __init__(self, duration: Callable[[StepLoad], float], clock: VirtualClock) -> None:
        self.duration = duration
        self.clock = clock

    def execute(self, plan: StepPlan) -> StepOutput:
        self.clock.now += self.duration(self.load(plan))
        return StepOutput(self.answers(plan))

    def load(self, plan: StepPlan) -> StepLoad:
        """Ce que le pas coûte à calculer."""
        num_tokens = context = pairs = 0
        for request, count in zip(plan.requests, plan.num_tokens, strict=True):
            start = request.num_computed_tokens
            num_tokens += count
            context += start + count
            if count > 1:
                pairs += count * start + count * (count + 1) // 2
        return StepLoad(num_tokens, len(plan.requests), context, pairs)

    def answers(self, plan: StepPlan) -> list[int | None]:
        """Un token par requête qui aura rattrapé ses tokens connus, `None` pour les autres."""
        token_ids: list[int | None] = []
        for request, count in zip(plan.requests, plan.num_tokens, strict=True):
            known = len(request.token_ids)
            if request.num_computed_tokens + count < known:
                token_ids.append(None)
            else:
                token_ids.append(request.answer_token if known + 1 < request.final_num_tokens else END_TOKEN)
        return token_ids
