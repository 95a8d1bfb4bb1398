"""Les mêmes mots que transformers, quel que soit le lot : le modèle embarqué, 32 prompts, 128 tokens greedy, float32.

Un désaccord n'est admis que là où les deux meilleurs logits de transformers sont à moins de `NEAR_TIE` : deux ordres d'addition
différents y suffisent à changer le premier. Il est compté dans le rapport, et la suite de cette réponse n'est plus comparée.
"""

import json
import os

import pytest
import torch
import transformers

from minibatcher import LLM, SamplingParams
from minibatcher.bench.prompts import demo_messages
from minibatcher.engine import StepEvent

NUM_TOKENS = 128
NEAR_TIE = 1e-4
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4  # couches × K et V × têtes KV × taille d'une tête × octets
# 96 blocs de 16 : un quart de ce que les 32 réponses demanderaient ensemble.
SMALL_CACHE = {"kv_cache_memory": 96 * 16 * BYTES_PER_TOKEN}

# Chaque valeur de chaque réglage apparaît, et les voisinages qui pourraient se gêner : petit budget et grand lot (prompts en
# morceaux à côté des decodes), préemptions avec et sans cache de préfixe, petit lot qui se renouvelle. max_num_seqs = 1, quatre
# fois plus lent, n'est donné qu'une fois : seul, ni le budget ni la taille du cache n'y changent grand-chose.
COMBINATIONS = {
    "lot-32-budget-2048": {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "enable_prefix_caching": True},
    "lot-32-budget-16": {"max_num_seqs": 32, "max_num_batched_tokens": 16, "enable_prefix_caching": False},
    "lot-4-budget-64": {"max_num_seqs": 4, "max_num_batched_tokens": 64, "enable_prefix_caching": True},
    "preemptions": {"max_num_seqs": 32, "max_num_batched_tokens": 64, "enable_prefix_caching": True, **SMALL_CACHE},
    "preemptions-sans-prefixe": {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "enable_prefix_caching": False, **SMALL_CACHE},
    "lot-1": {"max_num_seqs": 1, "max_num_batched_tokens": 2048, "enable_prefix_caching": False},
}


def generate(folder, **options) -> tuple[list[dict], list[StepEvent]]:
    """Les réponses de minibatcher aux 32 prompts, et les pas qu'il a faits."""
    llm = LLM(folder, dtype="float32", device="cpu", max_model_len=256, **options)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.chat(demo_messages(), params, use_tqdm=False)
    manager = llm.engine.scheduler.kv_cache_manager
    assert manager.num_free_blocks == manager.num_blocks
    return outputs, [event for event in llm.engine.events if isinstance(event, StepEvent)]


@pytest.fixture(scope="module")
def answers(smollm2, reference, pytestconfig) -> list[dict]:
    """Les réponses de transformers, une par une ; gardées dans le cache de pytest tant que les versions ne changent pas.

    Quatre prompts sont servis token par token par `generate`. Pour les autres, transformers relit d'un coup la réponse de
    minibatcher et dit ce qu'il aurait choisi à chaque position (voir `Reference.greedy`) : même définition, dix fois plus vite.
    """
    key = f"{smollm2.name}-torch-{torch.__version__}-transformers-{transformers.__version__}-{NUM_TOKENS}.json"
    path = pytestconfig.cache.mkdir("minibatcher") / key
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    model, answers = reference(smollm2), []
    for number, draft in enumerate(generate(smollm2)[0]):
        by_generate = number % 8 == 0
        token_ids, gaps = model.greedy(draft.prompt_token_ids, NUM_TOKENS, () if by_generate else draft.outputs[0].token_ids)
        answers.append({"prompt_token_ids": draft.prompt_token_ids, "token_ids": token_ids, "gaps": gaps})
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(answers), encoding="utf-8")
    partial.rename(path)
    return answers


def near_ties(token_ids: list[int], answer: dict) -> int:
    """Nombre de désaccords admis (0 ou 1) ; échoue sur un désaccord net."""
    assert len(token_ids) == len(answer["token_ids"]) == NUM_TOKENS
    for position, (ours, expected) in enumerate(zip(token_ids, answer["token_ids"], strict=True)):
        if ours != expected:
            gap = answer["gaps"][position]
            assert gap < NEAR_TIE, (
                f"position {position} : token {ours} au lieu de {expected}, écart des deux meilleurs logits {gap}"
            )
            return 1
    return 0


def test_the_reference_goes_past_the_end_token(answers):
    ended = [answer["token_ids"].index(2) for answer in answers if 2 in answer["token_ids"]]
    assert ended, "aucune réponse ne contient le token de fin : ignore_eos n'est pas éprouvé"
    assert min(ended) < NUM_TOKENS - 1


@pytest.mark.parametrize("name", COMBINATIONS)
def test_same_words_as_transformers(smollm2, answers, accepted_near_ties, name):
    options = COMBINATIONS[name]
    outputs, steps = generate(smollm2, **options)
    assert [output.prompt_token_ids for output in outputs] == [answer["prompt_token_ids"] for answer in answers]
    ties = [near_ties(output.outputs[0].token_ids, answer) for output, answer in zip(outputs, answers, strict=True)]
    accepted_near_ties[name] = sum(ties), len(ties)
    # La combinaison a bien éprouvé ce qu'elle annonce.
    assert max(sum(step.scheduled.values()) for step in steps) <= options["max_num_batched_tokens"]
    assert any(output.num_cached_tokens for output in outputs) == options["enable_prefix_caching"]
    num_preemptions = sum(len(step.preempted) for step in steps)
    if "kv_cache_memory" in options:
        assert num_preemptions >= 10
    else:
        assert num_preemptions == 0
        assert max(len(step.scheduled) for step in steps) == min(options["max_num_seqs"], options["max_num_batched_tokens"])
