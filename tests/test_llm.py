"""L'interface de vLLM : `generate`, `chat`, `add_request`/`step`/`abort`, et le choix des tokens."""

import functools
import itertools
import json
import math
import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
import torch
from transformers import AutoTokenizer, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import minibatcher
from minibatcher import CompletionOutput, RequestOutput, SamplingParams
from minibatcher.engine import StepEvent
from minibatcher.model.sampling import filter_logits
from minibatcher.scheduler import StepOutput, StepPlan
from minibatcher.serving.detokenizer import Detokenizer

TEXT = "Où est le cœur ? À 12 €, naïf 🙂🙃 : 日本語. Fin."
KV_BYTES = 2 * 2 * 2 * 32 * 4  # par token du petit modèle : couches × K et V × têtes × taille × octets
LLM = functools.partial(minibatcher.LLM, device="cpu")


class Recital:
    """Un exécuteur qui récite `token_ids`, quel que soit le prompt."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = token_ids

    def execute(self, plan: StepPlan) -> StepOutput:
        pairs = zip(plan.requests, plan.num_tokens, strict=True)
        caught_up = [(request, request.num_computed_tokens + count == request.num_tokens) for request, count in pairs]
        return StepOutput([self.token_ids[request.num_output_tokens] if done else None for request, done in caught_up])


@pytest.fixture(scope="module")
def llm(tiny_model) -> LLM:
    return LLM(tiny_model())


@pytest.fixture
def reciter(tiny_model) -> LLM:
    """Un `LLM` qui répond toujours `TEXT`, puis le token de fin."""
    llm = LLM(tiny_model())
    llm.engine.executor = Recital([*llm.tokenizer.encode(TEXT), 1, *[5] * 100])
    return llm


@pytest.fixture(autouse=True)
def blocks_all_free(request):
    """Après chaque test, le moteur partagé est vide et tous ses blocs sont rendus."""
    yield
    if "llm" in request.fixturenames:
        check_empty(request.getfixturevalue("llm"))


def check_empty(llm: LLM) -> None:
    manager = llm.engine.scheduler.kv_cache_manager
    manager.check_integrity([])
    assert manager.num_free_blocks == manager.num_blocks
    assert not llm.has_unfinished_requests()


def greedy(max_tokens: int | None = 8, **params) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **params)


def answer(llm: LLM, prompt: str | dict, params: SamplingParams) -> CompletionOutput:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]


def stream(llm: LLM, max_steps: int = 1000) -> dict[str, list[RequestOutput]]:
    """Avance jusqu'à la fin ; rend, par requête, tous ses états successifs."""
    seen: dict[str, list[RequestOutput]] = {}
    while llm.has_unfinished_requests() and max_steps:
        max_steps -= 1
        for output in llm.step():
            seen.setdefault(output.request_id, []).append(output)
    return seen


# generate et chat


def test_fields_are_named_as_in_vllm():
    names = ["index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason"]
    assert [f.name for f in fields(CompletionOutput)][: len(names)] == names
    names = {"request_id", "prompt", "prompt_token_ids", "outputs", "finished", "num_cached_tokens"}
    assert names <= {f.name for f in fields(RequestOutput)}


def test_generate_answers_in_order(llm):
    prompts = ["un", {"prompt": "deux"}, {"prompt_token_ids": [7, 8, 9]}, "quatre"]
    # Des longueurs différentes : les requêtes finissent dans un autre ordre que celui des prompts.
    outputs = llm.generate(prompts, [greedy(9), greedy(2), greedy(5), greedy(1)], use_tqdm=False)
    assert [output.prompt for output in outputs] == ["un", "deux", None, "quatre"]
    encode = llm.tokenizer.encode
    assert [output.prompt_token_ids for output in outputs] == [encode("un"), encode("deux"), [7, 8, 9], encode("quatre")]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 2, 5, 1]
    assert len({output.request_id for output in outputs}) == 4
    for prompt, output in zip(prompts, outputs, strict=True):
        (only,) = output.outputs
        assert output.finished
        assert only.finished()
        assert (only.index, only.finish_reason, only.stop_reason, only.error) == (0, "length", None, None)
        assert (only.logprobs, only.cumulative_logprob) == (None, None)
        assert only.text == llm.tokenizer.decode(only.token_ids, skip_special_tokens=True)
        assert answer(llm, prompt, greedy(len(only.token_ids))).token_ids == only.token_ids


def test_a_single_prompt_and_no_params(llm):
    (output,) = llm.generate("bonjour", use_tqdm=False)
    assert len(output.outputs[0].token_ids) <= 16
    assert llm.generate([], use_tqdm=False) == []


def test_num_cached_tokens(tiny_model):
    llm = LLM(tiny_model(), block_size=4)
    prompt = {"prompt_token_ids": list(range(2, 15))}
    counts = [llm.generate(prompt, greedy(1), use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert counts == [0, 12]
    llm.reset_prefix_cache()
    assert llm.generate(prompt, greedy(1), use_tqdm=False)[0].num_cached_tokens == 0


def test_chat_applies_the_template_of_the_model(llm):
    first, second = [[{"role": "user", "content": text}] for text in ("Où ?", "Pourquoi ?")]
    (alone,) = llm.chat(first, greedy(), use_tqdm=False)
    assert llm.tokenizer.decode(alone.prompt_token_ids) == "<s>user : Où ?\n<s>assistant : "
    both = llm.chat([first, second], greedy(), use_tqdm=False)
    assert both[0].outputs == alone.outputs
    assert "Pourquoi" in llm.tokenizer.decode(both[1].prompt_token_ids)


@pytest.mark.parametrize("use_tqdm", [True, False])
def test_progress_bar(llm, capfd, use_tqdm):
    llm.generate("un", greedy(1), use_tqdm=use_tqdm)
    out, err = capfd.readouterr()
    assert out == ""
    assert bool(err) == use_tqdm


# Tirage


def test_several_answers(llm):
    params = SamplingParams(n=3, seed=5, max_tokens=10, ignore_eos=True)
    first, second = llm.generate(["un", "un"], params, use_tqdm=False)
    assert [completion.index for completion in first.outputs] == [0, 1, 2]
    assert first.outputs == second.outputs
    assert len({tuple(completion.token_ids) for completion in first.outputs}) == 3
    (same,) = llm.generate("un", greedy(n=2), use_tqdm=False)
    assert same.outputs[0].token_ids == same.outputs[1].token_ids == answer(llm, "un", greedy()).token_ids


def test_a_seed_fixes_the_answer_whatever_the_batch(tiny_model):
    params = [
        SamplingParams(seed=seed, max_tokens=20, ignore_eos=True, temperature=0.5 + seed / 2, top_k=seed * 10, top_p=1 - seed / 20)
        for seed in range(6)
    ]
    prompts = [{"prompt_token_ids": list(range(10, 15 + i))} for i in range(6)]
    alone = [answer(LLM(tiny_model()), prompt, param).token_ids for prompt, param in zip(prompts, params, strict=True)]
    # 10 blocs de 4 pour six réponses qui en prendraient 42, à côté de six autres sans graine.
    llm = LLM(tiny_model(), block_size=4, max_model_len=40, kv_cache_memory=10 * 4 * KV_BYTES, max_num_batched_tokens=9)
    others = [SamplingParams(max_tokens=3, ignore_eos=True)] * 6
    together = llm.generate([*prompts, *prompts], [*params, *others], use_tqdm=False)[:6]
    assert [output.outputs[0].token_ids for output in together] == alone
    assert sum(len(event.preempted) for event in llm.engine.events if isinstance(event, StepEvent)) >= 5
    check_empty(llm)


def test_the_engine_seed_fixes_requests_without_seed(tiny_model):
    def run(seed: int) -> list[list[int]]:
        llm = LLM(tiny_model(), seed=seed)
        outputs = llm.generate(["un", "un"], SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    assert run(0) == run(0) != run(1)
    assert run(0)[0] != run(0)[1]


def settings(**values) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([value]) for name, value in values.items()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 7, math.inf, 0.0),
        (1.0, 1, math.inf, 0.0),
        (1.0, 300, 0.7, 0.0),
        (1.0, 300, 1e-6, 0.0),
        (1.0, 300, math.inf, 0.05),
        (1.0, 300, math.inf, 1.0),
        (2.5, 40, 0.9, 0.0),
        (0.7, 8, 0.6, 0.0),
        (1.5, 20, 0.8, 0.1),
    ],
)
def test_filters_equal_those_of_transformers(seed, temperature, top_k, top_p, min_p):
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(seed)) * 2
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if min_p:  # l'ordre est celui de vLLM : min_p, top_k, puis top_p sur ce qui reste
        expected = MinPLogitsWarper(min_p)(None, expected)
    expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    rows = {name: value.expand(3) for name, value in settings(top_k=top_k, top_p=top_p, min_p=min_p).items()}
    ours = filter_logits(logits, torch.full((3,), temperature), **rows)
    assert torch.equal(ours.isfinite(), expected.isfinite())
    torch.testing.assert_close(ours.softmax(dim=-1), expected.softmax(dim=-1))


def test_each_row_has_its_own_filters():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    one, three = (
        filter_logits(logits[i : i + 1], torch.ones(1), **settings(top_k=k, top_p=math.inf, min_p=0.0)) for i, k in ((0, 1), (1, 3))
    )
    both = filter_logits(logits, torch.ones(2), torch.tensor([1, 3]), torch.full((2,), math.inf), torch.zeros(2))
    torch.testing.assert_close(both, torch.cat([one, three]))
    assert both.isfinite().sum(dim=-1).tolist() == [1, 3]


@pytest.mark.parametrize("filters", [{}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.2}], ids=["tout", "top_k", "top_p", "min_p"])
def test_draws_follow_the_probabilities(tiny_model, reference, filters):
    """Le khi-deux de 3 000 tirages, à graines consécutives, reste sous le seuil à 0,1 %."""
    llm = LLM(tiny_model(), max_num_seqs=512)
    num_draws = 3000
    params = SamplingParams(n=num_draws, seed=0, max_tokens=1, temperature=1.3, ignore_eos=True, **filters)
    (output,) = llm.generate({"prompt_token_ids": [5, 6]}, params, use_tqdm=False)
    drawn = torch.tensor([completion.token_ids[0] for completion in output.outputs])
    logits = reference(tiny_model()).logits([5, 6], [0])
    rows = settings(**{"top_k": 300, "top_p": math.inf, "min_p": 0.0, **filters})
    expected = filter_logits(logits, torch.tensor([1.3]), **rows)[0].softmax(dim=-1) * num_draws
    counts = drawn.bincount(minlength=300).float()
    assert counts[expected == 0].sum() == 0
    frequent = expected >= 5
    expected = torch.cat([expected[frequent], expected[~frequent].sum()[None]])
    counts = torch.cat([counts[frequent], counts[~frequent].sum()[None]])
    degrees = len(expected) - (2 if expected[-1] == 0 else 1)
    chi2 = ((counts - expected) ** 2 / expected.clamp_min(1e-9)).sum().item()
    # Seuil à 0,1 % (approximation de Wilson et Hilferty : 3,09 écarts-types).
    threshold = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert degrees >= 3
    assert chi2 < threshold


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-40, 1e-300])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "top_k": 5}], ids=["tout", "filtre"])
def test_a_tiny_temperature_is_greedy(llm, temperature, filters):
    params = SamplingParams(temperature=temperature, max_tokens=8, ignore_eos=True, seed=0, **filters)
    assert answer(llm, "bonjour", params).token_ids == answer(llm, "bonjour", greedy()).token_ids


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.99}], ids=["tout", "filtre"])
def test_a_huge_temperature_draws_anything_but_the_forbidden(llm, filters):
    forbidden = list(range(150))
    params = SamplingParams(
        temperature=1e300, min_tokens=60, max_tokens=60, ignore_eos=True, stop_token_ids=forbidden, seed=0, **filters
    )
    drawn = answer(llm, "bonjour", params).token_ids
    assert not set(drawn) & set(forbidden)
    assert len(set(drawn)) > 30, "le hasard doit changer d'une position à l'autre"


@pytest.mark.parametrize("logprobs", [0, 1, 5])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_logprobs_are_those_of_the_model(llm, tiny_model, reference, logprobs, temperature):
    params = SamplingParams(temperature=temperature, top_k=50, seed=3, max_tokens=12, ignore_eos=True, logprobs=logprobs)
    output = llm.generate("bonjour", params, use_tqdm=False)[0]
    only = output.outputs[0]
    expected = reference(tiny_model()).logits(output.prompt_token_ids, only.token_ids).log_softmax(dim=-1)
    assert len(only.logprobs) == 12
    for token, entry, row in zip(only.token_ids, only.logprobs, expected, strict=True):
        best = row.topk(logprobs).indices.tolist()
        assert set(entry) == {*best, token}
        ranks = row.argsort(descending=True).tolist()
        for token_id, logprob in entry.items():
            assert logprob.logprob == pytest.approx(row[token_id].item(), abs=1e-4)
            assert logprob.rank == ranks.index(token_id) + 1
            assert logprob.decoded_token == llm.tokenizer.decode([token_id])
    total = sum(row[token].item() for token, row in zip(only.token_ids, expected, strict=True))
    assert only.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_logprobs_for_those_who_ask(llm):
    wants, ignores = llm.generate(["un", "deux"], [greedy(logprobs=2), greedy()], use_tqdm=False)
    assert len(wants.outputs[0].logprobs) == 8
    assert ignores.outputs[0].logprobs is None


# Arrêts


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("cœur", "Où est le ", "cœur"),  # à cheval sur plusieurs tokens
        ("Où", "", "Où"),
        (["🙃", "🙂"], "Où est le cœur ? À 12 €, naïf ", "🙂"),  # la première rencontrée
        (["œur", "cœur"], "Où est le ", "cœur"),  # la même fin : celle qui commence le plus tôt
        (["cœur", "œur"], "Où est le ", "cœur"),
        ("Fin.", TEXT.removesuffix("Fin."), "Fin."),
        ("absente", TEXT, None),  # le token de fin arrête
    ],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["d-un-coup", "au-fil"])
def test_stop_strings(reciter, stop, text, reason, streamed):
    params = SamplingParams(max_tokens=200, stop=stop)
    if streamed:
        reciter.add_request("a", "un", params)
        states = stream(reciter)["a"]
        assert all(text.startswith(state.outputs[0].text) for state in states), "le texte montré a été repris"
        only = states[-1].outputs[0]
    else:
        only = answer(reciter, "un", params)
    assert (only.text, only.finish_reason, only.stop_reason) == (text, "stop", reason)
    # Les tokens vont jusqu'à celui qui achève la chaîne d'arrêt, compris.
    seen = reciter.tokenizer.decode(only.token_ids, skip_special_tokens=True)
    before = reciter.tokenizer.decode(only.token_ids[:-1], skip_special_tokens=True)
    if reason is not None:
        assert reason in seen
        assert reason not in before
    check_empty(reciter)


def test_the_stop_may_be_where_the_length_ends(reciter):
    num_tokens = len(reciter.tokenizer.encode("Où est"))
    only = answer(reciter, "un", SamplingParams(max_tokens=num_tokens, stop="est"))
    assert (only.text, only.finish_reason, only.stop_reason) == ("Où ", "stop", "est")


def test_a_start_of_stop_string_is_shown_at_the_end(reciter):
    num_tokens = len(reciter.tokenizer.encode("Où est le cœ"))
    reciter.add_request("a", "un", SamplingParams(max_tokens=num_tokens, stop="cœurs"))
    texts = [state.outputs[0].text for state in stream(reciter)["a"]]
    assert "c" not in texts[-2]
    assert texts[-1] == "Où est le cœ"


def test_min_tokens_delays_stop_strings(reciter):
    num_tokens = len(reciter.tokenizer.encode("Où est"))
    only = answer(reciter, "un", SamplingParams(max_tokens=200, stop=["Où", "e"], min_tokens=num_tokens))
    assert only.text == "Où est l"
    assert only.stop_reason == "e"


def test_stop_tokens_and_end_token(reciter):
    token_ids = reciter.tokenizer.encode(TEXT)
    only = answer(reciter, "un", SamplingParams(max_tokens=200))
    assert (only.text, only.token_ids, only.finish_reason, only.stop_reason) == (TEXT, [*token_ids, 1], "stop", None)
    stop = token_ids[7]
    only = answer(reciter, "un", SamplingParams(max_tokens=200, stop_token_ids=[299, stop]))
    position = token_ids.index(stop)
    assert (only.token_ids, only.finish_reason, only.stop_reason) == (token_ids[: position + 1], "stop", stop)
    assert only.text == reciter.tokenizer.decode(token_ids[:position])
    only = answer(reciter, "un", SamplingParams(max_tokens=len(token_ids) + 5, ignore_eos=True))
    assert (len(only.token_ids), only.finish_reason) == (len(token_ids) + 5, "length")


def test_end_tokens_of_generation_config_come_first(tiny_model, tmp_path, llm):
    free = answer(llm, "bonjour", greedy(20)).token_ids
    shutil.copytree(tiny_model(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, free[3]]}), encoding="utf-8")
    only = answer(LLM(tmp_path), "bonjour", SamplingParams(temperature=0, max_tokens=20))
    assert (only.token_ids, only.finish_reason) == (free[: free.index(free[3]) + 1], "stop")


def test_min_tokens_forbids_stop_tokens(llm):
    free = answer(llm, "bonjour", greedy(20)).token_ids
    stop = free[3]
    assert answer(llm, "bonjour", greedy(20, stop_token_ids=[stop])).token_ids == free[: free.index(stop) + 1]
    delayed = answer(llm, "bonjour", greedy(20, stop_token_ids=[stop], min_tokens=10)).token_ids
    assert delayed[: free.index(stop)] == free[: free.index(stop)]
    assert stop not in delayed[:10]
    assert len(delayed) >= 10
    # Les logprobs restent ceux du modèle : un token interdit y garde sa probabilité.
    only = answer(llm, "bonjour", greedy(20, stop_token_ids=[stop], min_tokens=10, logprobs=1))
    assert only.token_ids == delayed
    assert only.logprobs[free.index(stop)][stop].rank == 1


def test_no_max_tokens(tiny_model):
    llm = LLM(tiny_model(), max_model_len=50)
    only = answer(llm, {"prompt_token_ids": [3] * 20}, greedy(None))
    assert (len(only.token_ids), only.finish_reason) == (30, "length")


# Au fil de l'eau


def test_streaming_equals_generate(llm):
    prompts = ["un", "deux mots", "et trois mots", "quatre", "cinq"]
    params = [greedy(30, stop=["q", "0"]), greedy(12), SamplingParams(seed=1, max_tokens=25), greedy(3, n=2), greedy(1)]
    expected = llm.generate(prompts, params, use_tqdm=False)
    seen: dict[str, list[RequestOutput]] = {}
    for number, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
        llm.add_request(f"r{number}", prompt, param)  # chacune arrive pendant que les précédentes avancent
        for output in llm.step():
            seen.setdefault(output.request_id, []).append(output)
    for name, states in stream(llm).items():
        seen.setdefault(name, []).extend(states)
    for number, output in enumerate(expected):
        states = seen[f"r{number}"]
        assert [state.finished for state in states] == [False] * (len(states) - 1) + [True]
        assert states[-1].outputs == output.outputs
        for index, completion in enumerate(output.outputs):
            texts = [state.outputs[index].text for state in states]
            assert all(completion.text.startswith(text) for text in texts), "un texte déjà montré a changé"
            counts = [len(state.outputs[index].token_ids) for state in states]
            assert all(0 <= after - before <= 1 for before, after in itertools.pairwise(counts))


def test_streamed_text_never_cuts_a_character(reciter):
    reciter.add_request("a", "un", SamplingParams(max_tokens=200))
    texts = [state.outputs[0].text for state in stream(reciter)["a"]]
    assert texts[-1] == TEXT
    assert len(set(texts)) > 20
    assert all(TEXT.startswith(text) for text in texts)


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_incremental_text_of_any_tokens(model, tiny_model, request):
    """Des octets quelconques, souvent impossibles en UTF-8, des numéros hors du vocabulaire : le texte ne fait que s'allonger."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model() if model == "tiny" else request.getfixturevalue("smollm2"))
    rng = random.Random(0)
    for _ in range(200):
        token_ids = [rng.randrange(rng.choice([280, len(tokenizer) + 5])) for _ in range(30)]
        full = tokenizer.decode(token_ids, skip_special_tokens=True)
        detokenizer = Detokenizer(tokenizer)
        for token_id in token_ids:
            detokenizer.push([token_id])
            assert full.startswith(detokenizer.text)
        assert detokenizer.finish() == full


def test_abort(tiny_model):
    llm = LLM(tiny_model(), max_num_seqs=3, block_size=4)
    alone = answer(llm, "un", greedy(20)).token_ids
    llm.reset_prefix_cache()
    llm.add_request("reste", "un", greedy(20))
    llm.add_request("part", "deux mots", greedy(100, n=2))
    llm.add_request("attend", "trois", greedy(20))  # encore en file : trois places seulement
    llm.step()
    llm.step()
    manager = llm.engine.scheduler.kv_cache_manager
    free = manager.num_free_blocks
    llm.abort(["part", "attend", "inconnue"])
    assert manager.num_free_blocks > free
    states = stream(llm)
    assert set(states) == {"reste"}
    assert states["reste"][-1].outputs[0].token_ids == alone
    check_empty(llm)
    llm.abort("reste")  # déjà finie : sans effet
    llm.add_request("part", "deux", greedy(2))  # le nom est de nouveau libre
    assert stream(llm)["part"][-1].finished
    llm.add_request("a", "un", greedy(20))
    llm.abort("a")
    assert llm.step() == []
    check_empty(llm)


def test_generate_in_another_thread(llm):
    """Un serveur ou un carnet peut faire tourner le moteur hors du fil principal, où les signaux n'existent pas."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        there = pool.submit(answer, llm, "un", greedy()).result()
    assert there.token_ids == answer(llm, "un", greedy()).token_ids


def test_generate_while_others_are_in_flight(llm):
    alone = answer(llm, "un", greedy(5)).token_ids
    llm.add_request("avant", "un", greedy(5))
    llm.add_request("longue", "un", greedy(60))
    llm.step()
    assert len(answer(llm, "deux mots", greedy(30)).token_ids) == 30
    states = stream(llm)
    assert states["avant"][-1].finished
    assert states["avant"][-1].outputs[0].token_ids == alone
    assert len(states["longue"][-1].outputs[0].token_ids) == 60
