"""Le décodeur contre transformers, sur de petits modèles aléatoires de chaque architecture : mêmes logits, mêmes tokens.

Les logits d'un pas se voient par leurs `logprobs`, demandés pour tout le vocabulaire. Chaque comparaison passe par la réponse
entière : si chaque token est le premier choix de transformers sachant les précédents, la réponse est celle de transformers.
"""

import functools
import itertools

import pytest
import torch

import minibatcher
from minibatcher import SamplingParams
from minibatcher.engine import StepEvent

LLM = functools.partial(minibatcher.LLM, device="cpu")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS = {
    "llama": {},
    "llama-lie": {"tied": True},
    "llama-biais": {"bias": True},
    "llama-rope3": {"rope_scaling": LLAMA3},
    "llama-quatre-fichiers": {"num_shards": 3},
    "qwen2": {"architecture": "Qwen2"},
    "qwen2-lie": {"architecture": "Qwen2", "tied": True},
    "qwen3": {"architecture": "Qwen3"},
    "qwen3-lie": {"architecture": "Qwen3", "tied": True},
    "qwen3-biais": {"architecture": "Qwen3", "bias": True},
}
TOLERANCE = 1e-4


def prompts_of(*lengths: int) -> list[dict]:
    """Des prompts de ces longueurs, tous différents dès leur premier token."""
    generator = torch.Generator().manual_seed(sum(lengths))
    return [
        {"prompt_token_ids": [2 + i, *torch.randint(300, (n - 1,), generator=generator).tolist()]} for i, n in enumerate(lengths)
    ]


def check_against(reference, llm: LLM, prompts: list[dict], max_tokens: int = 8) -> list[StepEvent]:
    """Compare chaque logit et chaque token à ceux de transformers ; rend les pas."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=300)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for output in outputs:
        answer = output.outputs[0]
        expected = reference.logits(output.prompt_token_ids, answer.token_ids)
        ours = torch.tensor([[entry[token].logprob for token in range(300)] for entry in answer.logprobs])
        torch.testing.assert_close(ours, expected.log_softmax(dim=-1), rtol=0, atol=TOLERANCE)
        assert answer.token_ids == expected.argmax(dim=-1).tolist()
        assert len(answer.token_ids) == max_tokens
    manager = llm.engine.scheduler.kv_cache_manager
    assert manager.num_free_blocks == manager.num_blocks
    return [event for event in llm.engine.events if isinstance(event, StepEvent)]


def is_mixed(step: StepEvent) -> bool:
    """Vrai si le pas calcule à la fois un morceau de prompt et un token de réponse."""
    decoding = [name for name, count in step.scheduled.items() if count == 1 and name not in step.admitted]
    return bool(decoding) and max(step.scheduled.values()) > 1


@pytest.mark.parametrize("budget", [2048, 7], ids=["entier", "par-morceaux"])
@pytest.mark.parametrize("name", MODELS)
def test_same_logits(tiny_model, reference, name, budget):
    folder = tiny_model(**MODELS[name])
    steps = check_against(reference(folder), LLM(folder, max_num_batched_tokens=budget), prompts_of(1, 2, 15, 16, 17, 60))
    assert any(map(is_mixed, steps)) == (budget == 7)


def test_four_files_are_really_read(tiny_model):
    assert len(list(tiny_model(num_shards=3).glob("*.safetensors"))) > 2


def test_same_tokens_as_generate(tiny_model, reference):
    folder = tiny_model()
    (prompt,) = prompts_of(20)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    (output,) = LLM(folder).generate(prompt, params, use_tqdm=False)
    assert output.outputs[0].token_ids == reference(folder).greedy(prompt["prompt_token_ids"], 40)[0]


def test_the_reference_does_not_trust_its_draft(tiny_model, reference):
    model = reference(tiny_model())
    expected, gaps = model.greedy([5, 6, 7], 20)
    for draft in (expected, [*expected[:7], 0, *expected[8:]], [0] * 20):
        token_ids, other_gaps = model.greedy([5, 6, 7], 20, draft)
        assert token_ids == expected
        assert other_gaps == pytest.approx(gaps, abs=1e-4)


@pytest.mark.parametrize(("head_dim", "group"), list(itertools.product([32, 64, 80, 128], [1, 2, 3, 7])))
def test_head_sizes_and_groups(tiny_model, reference, head_dim, group):
    folder = tiny_model(head_dim=head_dim, group=group)
    check_against(reference(folder), LLM(folder, max_num_batched_tokens=16), prompts_of(3, 20, 30), max_tokens=4)


def test_single_kv_head(tiny_model, reference):
    folder = tiny_model(num_kv_heads=1, group=3)
    check_against(reference(folder), LLM(folder, max_num_batched_tokens=16), prompts_of(3, 20, 30), max_tokens=4)


@pytest.mark.parametrize("prefix", [True, False], ids=["prefixe", "sans-prefixe"])
@pytest.mark.parametrize("block_size", [1, 2, 16, 32])
def test_very_different_contexts_in_mixed_steps(tiny_model, reference, block_size, prefix):
    folder = tiny_model()
    llm = LLM(folder, block_size=block_size, max_num_batched_tokens=24, enable_prefix_caching=prefix)
    steps = check_against(reference(folder), llm, prompts_of(1, 3, 200, 16, 33, 100, 2, 240), max_tokens=16)
    assert any(map(is_mixed, steps))
    again = check_against(reference(folder), llm, prompts_of(1, 3, 200, 16, 33, 100, 2, 240), max_tokens=16)[len(steps) :]
    assert any(sum(step.admitted.values()) for step in again) == prefix


@pytest.mark.parametrize("prefix", [True, False], ids=["prefixe", "sans-prefixe"])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize(("block_size", "k"), [(4, 2), (4, 3), (1, 5), (16, 2)])
def test_preempted_around_a_block_boundary(tiny_model, reference, block_size, k, offset, prefix):
    """La plus récente est renvoyée en file avec exactement `k × block_size + offset` tokens calculés, dont deux de sa réponse."""
    folder = tiny_model()
    computed = k * block_size + offset
    # Au troisième pas de decode, la plus ancienne commence un bloc : il n'en reste pas, elle prend ceux de l'autre.
    old_length = (k + 1) * block_size - 2 if block_size > 1 else k + 1
    old_blocks, young_blocks = -(-(old_length + 2) // block_size), -(-computed // block_size)
    capacity = (old_blocks + young_blocks) * block_size
    llm = LLM(
        folder,
        block_size=block_size,
        enable_prefix_caching=prefix,
        max_model_len=capacity,
        kv_cache_memory=capacity * 2 * 2 * 2 * 32 * 4,  # 2 couches × K et V × 2 têtes × 32 × 4 octets
    )
    steps = check_against(reference(folder), llm, prompts_of(old_length, computed - 2), max_tokens=5)
    preempted_at = [i for i, step in enumerate(steps) if "1" in step.preempted]
    assert preempted_at, "personne n'a été préempté"
    assert sum(step.scheduled["1"] for step in steps[: preempted_at[0]]) == computed


def test_the_last_positions(tiny_model, reference):
    folder = tiny_model()
    check_against(reference(folder), LLM(folder, max_num_batched_tokens=100), prompts_of(251, 250), max_tokens=5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays_close(tiny_model, reference, dtype):
    folder = tiny_model()
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=300)
    for output in LLM(folder, dtype=dtype).generate(prompts_of(3, 20, 30), params, use_tqdm=False):
        answer = output.outputs[0]
        ours = torch.tensor([answer.logprobs[0][token].logprob for token in range(300)])
        expected = reference(folder).logits(output.prompt_token_ids, answer.token_ids)[0].log_softmax(dim=-1)
        assert (ours - expected).abs().max() < (0.1 if dtype == "float16" else 1)
