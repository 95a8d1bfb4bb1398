"""Ce qui ne peut pas être servi est refusé en français, avec le quoi et le comment, et le moteur continue pour les autres."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import minibatcher
from minibatcher import ConfigError, InvalidRequestError, MinibatcherError, ModelError, SamplingParams
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import Request
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput, StepPlan

LLM = functools.partial(minibatcher.LLM, device="cpu")
KV_BYTES = 2 * 2 * 2 * 32 * 4  # par token du petit modèle : couches × K et V × têtes × taille × octets
NAN = float("nan")


def greedy(max_tokens: int = 8, **params) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **params)


def tokens_of(llm: LLM, prompts: list, params: SamplingParams) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def check_empty(llm: LLM) -> None:
    manager = llm.engine.scheduler.kv_cache_manager
    manager.check_integrity([])
    assert manager.num_free_blocks == manager.num_blocks
    assert not llm.has_unfinished_requests()


def explains(problem: pytest.ExceptionInfo, *words: str) -> None:
    """Le message nomme chaque mot attendu, et c'est une phrase."""
    message = str(problem.value)
    assert all(word in message for word in words), message
    assert "." in message
    assert "Traceback" not in message


# Modèles


def edit_config(remove: str | None = None, **changes) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | changes
        config.pop(remove, None)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    return edit


def edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def truncate(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


SUPPORTED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
GATE = "model.layers.1.mlp.gate_proj.weight"
SHARD = "model-00002-of-00004.safetensors"
BAD_FOLDERS = {
    "config-absente": (remove("config.json"), ["config.json", "n'existe pas"]),
    "config-tronquee": (truncate("config.json", 100), ["config.json", "JSON"]),
    "config-liste": (lambda folder: (folder / "config.json").write_text("[1]"), ["config.json", "JSON"]),
    "config-binaire": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"), ["config.json", "JSON"]),
    "config-dossier": (lambda f: (f / "config.json").unlink() or (f / "config.json").mkdir(), ["config.json"]),
    "architecture-inconnue": (edit_config(architectures=["MambaForCausalLM"]), ["MambaForCausalLM", "vLLM", *SUPPORTED]),
    "architecture-absente": (edit_config(remove="architectures"), [*SUPPORTED]),
    "champ-absent": (edit_config(remove="hidden_size"), ["config.json", "hidden_size"]),
    "champ-texte": (edit_config(hidden_size="84"), ["config.json", "hidden_size", "'84'"]),
    "champ-nul": (edit_config(num_attention_heads=0), ["config.json", "num_attention_heads", "0"]),
    "tetes-indivisibles": (edit_config(num_key_value_heads=3), ["config.json", "num_key_value_heads"]),
    "activation-inconnue": (edit_config(hidden_act="gelu"), ["hidden_act", "gelu", "vLLM"]),
    "rope-inconnu": (edit_config(rope_parameters={"rope_type": "yarn", "factor": 2.0}), ["yarn", "llama3"]),
    "rope-incomplet": (edit_config(rope_parameters={"rope_type": "llama3"}), ["config.json", "factor"]),
    "poids-quantifies": (edit_config(quantization_config={"quant_method": "fp8"}), ["quantization_config", "fp8", "vLLM"]),
    "poids-absents": (remove("model.safetensors"), [".safetensors", "incomplet"]),
    "poids-tronques": (truncate("model.safetensors", 50_000), ["model.safetensors", "tronqué"]),
    "poids-vides": (truncate("model.safetensors", 0), ["model.safetensors", "tronqué"]),
    "tenseur-absent": (edit_weights(lambda weights: weights.pop(GATE)), [GATE, "incomplets"]),
    "tenseur-deforme": (edit_weights(lambda weights: weights.update({GATE: torch.zeros(96, 80)})), [GATE, "(96, 80)", "(96, 84)"]),
    "tokenizer-absent": (lambda f: [path.unlink() for path in f.glob("tokenizer*")], ["okenizer"]),
    "tokenizer-tronque": (truncate("tokenizer.json", 100), ["okenizer"]),
    "fichier-manquant": (remove(SHARD), [SHARD, "manque"]),
    "index-illisible": (truncate("model.safetensors.index.json", 50), ["model.safetensors.index.json"]),
    "index-liste": (lambda f: (f / "model.safetensors.index.json").write_text("[1]"), ["model.safetensors.index.json"]),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_a_bad_model_folder(tiny_model, tmp_path, name):
    spoil, words = BAD_FOLDERS[name]
    sharded = name in ("fichier-manquant", "index-illisible", "index-liste")
    folder = tmp_path / "modele"
    shutil.copytree(tiny_model(num_shards=3) if sharded else tiny_model(), folder)
    LLM(folder)
    spoil(folder)
    with pytest.raises(ModelError) as problem:
        LLM(folder)
    explains(problem, *words)


@pytest.mark.parametrize("model", ["/nulle/part", "./nulle-part", "nulle-part", "~/nulle/part", "a/b/c", None, 5])
def test_an_unknown_model(model):
    with pytest.raises(ModelError, match="introuvable") as problem:
        LLM(model)
    explains(problem, "dossier", "smollm2", repr(model))


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_hub_model_without_network_fails_in_seconds(tmp_path, offline):
    """Dans un autre processus : huggingface_hub lit son adresse à l'import. Le port 9 de la machine n'écoute pas."""
    code = """if True:
        import time
        from minibatcher import LLM, ModelError
        start = time.monotonic()
        try:
            LLM("auteur/modele")
        except ModelError as problem:
            print(round(time.monotonic() - start, 3), problem)
    """
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline}
    env |= {"NO_PROXY": "*", "PYTHONUTF8": "1"}
    env["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert "Impossible de joindre le hub" in done.stdout, done.stderr
    assert "auteur/modele" in done.stdout
    assert "smollm2" in done.stdout
    assert float(done.stdout.split()[0]) < 60


# Réglages


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_seq": 4}, ["max_num_seq", "max_num_seqs"]),
        ({"max_num_seqs": 0}, ["max_num_seqs", "0"]),
        ({"max_num_seqs": 2.5}, ["max_num_seqs", "2.5"]),
        ({"block_size": 0}, ["block_size", "0"]),
        ({"block_size": -16}, ["block_size", "-16"]),
        ({"max_num_batched_tokens": 0}, ["max_num_batched_tokens", "0"]),
        ({"max_num_batched_tokens": 100, "enable_chunked_prefill": False}, ["max_num_batched_tokens", "100", "256"]),
        ({"max_model_len": 257}, ["max_model_len", "257", "256"]),
        ({"max_model_len": 1}, ["max_model_len", "1"]),
        ({"kv_cache_memory": 255 * KV_BYTES}, ["max_model_len", "256", "240", "0.2 Mio"]),
        ({"kv_cache_memory": 0}, ["kv_cache_memory", "0"]),
        ({"kv_cache_memory": 10**15}, ["kv_cache_memory"]),
        ({"gpu_memory_utilization": 1e-9}, ["max_model_len", "256"]),
        ({"gpu_memory_utilization": 1.5}, ["gpu_memory_utilization", "1.5"]),
        ({"gpu_memory_utilization": NAN}, ["gpu_memory_utilization", "nan"]),
        ({"dtype": "int8"}, ["int8", "float32"]),
        ({"dtype": torch.int8}, ["int8", "float32"]),
        ({"dtype": ["float32"]}, ["['float32']"]),
        ({"device": "tpu"}, ["tpu", "cpu"]),
        ({"seed": None}, ["seed", "None"]),
        ({"enable_prefix_caching": "non"}, ["enable_prefix_caching", "'non'"]),
        ({"enable_chunked_prefill": None}, ["enable_chunked_prefill", "None"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_option(tiny_model, options, words):
    with pytest.raises(ConfigError) as problem:
        LLM(tiny_model(), **options)
    explains(problem, *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="il y a un GPU")
def test_no_gpu(tiny_model):
    with pytest.raises(ConfigError) as problem:
        LLM(tiny_model(), device="cuda")
    explains(problem, "GPU", "device='cpu'")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_tokens": 0}, ["max_tokens", "0"]),
        ({"max_tokens": -3}, ["max_tokens", "-3"]),
        ({"max_tokens": 2.5}, ["max_tokens", "2.5"]),
        ({"temperature": -0.5}, ["temperature", "-0.5", "greedy"]),
        ({"temperature": NAN}, ["temperature", "nan"]),
        ({"temperature": float("inf")}, ["temperature", "inf"]),
        ({"temperature": "chaud"}, ["temperature", "'chaud'"]),
        ({"top_p": 0}, ["top_p", "0"]),
        ({"top_p": 1.1}, ["top_p", "1.1"]),
        ({"top_k": -2}, ["top_k", "-2"]),
        ({"min_p": 2}, ["min_p", "2"]),
        ({"n": 0}, ["n ", "0"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"logprobs": -1}, ["logprobs", "-1"]),
        ({"min_tokens": 20}, ["min_tokens", "20", "16"]),
        ({"stop": ""}, ["stop"]),
        ({"stop": [""]}, ["stop"]),
        ({"stop": 5}, ["stop"]),
        ({"stop_token_ids": 5}, ["stop_token_ids"]),
        ({"stop_token_ids": [-1]}, ["stop_token_ids", "-1"]),
        ({"ignore_eos": "oui"}, ["ignore_eos", "'oui'"]),
        ({"maxtokens": 5}, ["maxtokens", "max_tokens"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_sampling_params(params, words):
    with pytest.raises(InvalidRequestError) as problem:
        SamplingParams(**params)
    explains(problem, *words)


# Requêtes

USER = {"role": "user", "content": "Bonjour"}
BAD_PROMPTS = {
    "vide": ("", {}, ["vide"]),
    "ids-vides": ({"prompt_token_ids": []}, {}, ["vide"]),
    "trop-long": ({"prompt_token_ids": [5] * 160}, {}, ["160", "max_model_len", "159"]),
    "reponse-trop-longue": ({"prompt_token_ids": [5] * 100}, {"max_tokens": 61}, ["100", "61", "max_model_len", "max_tokens"]),
    "token-trop-grand": ({"prompt_token_ids": [5, 300]}, {}, ["300", "299"]),
    "token-negatif": ({"prompt_token_ids": [5, -1]}, {}, ["-1", "299"]),
    "token-texte": ({"prompt_token_ids": "abc"}, {}, ["prompt_token_ids"]),
    "token-decimal": ({"prompt_token_ids": [5.0]}, {}, ["5.0"]),
    "ids-absents": ({"prompt_token_ids": None}, {}, ["prompt_token_ids"]),
    "ids-nombre": ({"prompt_token_ids": 5}, {}, ["prompt_token_ids"]),
    "pas-un-prompt": (5, {}, ["int", "prompt_token_ids"]),
    "rien": (None, {}, ["NoneType", "prompt_token_ids"]),
    "dictionnaire-vide": ({}, {}, ["dict", "prompt_token_ids"]),
    "arret-hors-vocabulaire": ("un", {"stop_token_ids": [300]}, ["stop_token_ids", "300"]),
}


@pytest.fixture(scope="module")
def llm(tiny_model) -> LLM:
    return LLM(tiny_model(), max_model_len=160)


@pytest.fixture
def in_flight(llm):
    """Une requête en cours pendant le test : elle doit finir exactement comme si elle était seule, et le moteur resservir."""
    (alone,) = tokens_of(llm, ["en cours"], greedy(6))
    llm.add_request("en cours", "en cours", greedy(6))
    llm.step()
    yield
    while llm.has_unfinished_requests():
        outputs = llm.step()
    assert outputs[-1].outputs[0].token_ids == alone
    assert tokens_of(llm, ["en cours"], greedy(6)) == [alone]
    check_empty(llm)


@pytest.mark.usefixtures("in_flight")
@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_a_bad_prompt(llm, name):
    prompt, params, words = BAD_PROMPTS[name]
    params = greedy(**params)
    num_steps = llm.engine.num_steps
    with pytest.raises(InvalidRequestError) as problem:
        llm.generate(["bon", "bon", prompt, "bon"], [greedy(), greedy(), params, greedy()], use_tqdm=False)
    explains(problem, "n° 3", *words)
    with pytest.raises(InvalidRequestError) as problem:
        llm.add_request("mauvaise", prompt, params)
    explains(problem, *words)
    assert llm.engine.num_steps == num_steps, "rien ne doit être calculé quand un prompt de la liste est mauvais"


@pytest.mark.usefixtures("in_flight")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None,), ["NoneType"]),
        ((5,), ["int"]),
        (("un", {"temperature": 0}), ["SamplingParams"]),
        (("un", 5), ["SamplingParams", "int"]),
        (("un", [5]), ["SamplingParams", "int"]),
        ((["un", "deux"], [greedy()]), ["2", "1", "sampling_params"]),
    ],
)
def test_bad_arguments_of_generate(llm, arguments, words):
    with pytest.raises(InvalidRequestError) as problem:
        llm.generate(*arguments, use_tqdm=False)
    explains(problem, *words)


@pytest.mark.usefixtures("in_flight")
@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, ["NoneType"]),
        (5, ["int"]),
        ("Bonjour", ["role", "content"]),
        ([5], ["role", "content"]),
        ([USER, "suite"], ["'suite'", "role", "content"]),
        ([{"role": "user"}], ["role", "content"]),
        ([{"role": "user", "content": None}], ["refuse"]),
        ([[USER], []], ["n° 2", "vide"]),
        ([[USER], [USER, {"content": "?"}]], ["n° 2", "role", "content"]),
    ],
)
def test_malformed_chat_messages(llm, messages, words):
    with pytest.raises(InvalidRequestError) as problem:
        llm.chat(messages, use_tqdm=False)
    explains(problem, *words)


def test_no_chat_template(tiny_model, tmp_path):
    shutil.copytree(tiny_model(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(InvalidRequestError) as problem:
        LLM(tmp_path).chat([USER])
    explains(problem, "gabarit", "generate")


@pytest.mark.usefixtures("in_flight")
def test_bad_request_ids(llm):
    for request_id, word in (("en cours", "déjà"), (5, "5")):
        with pytest.raises(InvalidRequestError) as problem:
            llm.add_request(request_id, "un", greedy())
        explains(problem, word)


def test_more_than_the_whole_cache():
    """`LLM` refuse d'emblée un tel cache ; le scheduler, lui, peut être construit ainsi."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=100), KVCacheManager(num_blocks=3, block_size=16))
    with pytest.raises(InvalidRequestError) as problem:
        scheduler.add_request(Request("a", [5] * 30, greedy(20)))
    explains(problem, "cache", "48", "49", "max_tokens")
    scheduler.add_request(Request("b", [5] * 30, greedy(19)))


# Une requête qui échoue seule


def raising(error: type[BaseException]) -> Callable:
    def fail(*args, **kwargs):
        raise error

    return fail


BAD_TOKEN = 250


@pytest.fixture(scope="module")
def nan_folder(tiny_model, tmp_path_factory) -> Path:
    """Un modèle dont un token a un plongement qui n'est pas un nombre."""
    folder = tmp_path_factory.mktemp("nan") / "modele"
    shutil.copytree(tiny_model(), folder)
    edit_weights(lambda weights: weights["model.embed_tokens.weight"][BAD_TOKEN].fill_(NAN))(folder)
    return folder


def nan_llm(nan_folder: Path, budget: int = 2048, prefix: bool = True, num_blocks: int = 12, **options) -> LLM:
    """Un petit cache, de `num_blocks` fois 16 tokens."""
    return LLM(
        nan_folder,
        max_num_batched_tokens=budget,
        enable_prefix_caching=prefix,
        max_model_len=64,
        kv_cache_memory=num_blocks * 16 * KV_BYTES,
        **options,
    )


def check_no_nan_left(llm: LLM, nan_folder: Path) -> None:
    """Tous les blocs resservent, à moitié pleins : chaque réponse est celle d'un moteur neuf."""
    check_empty(llm)
    manager = llm.engine.scheduler.kv_cache_manager
    prompts = [{"prompt_token_ids": [100 + i, 7]} for i in range(manager.num_blocks)]
    assert tokens_of(llm, prompts, greedy(3)) == tokens_of(LLM(nan_folder), prompts, greedy(3))
    check_empty(llm)


GOOD = [{"prompt_token_ids": list(range(first, first + length))} for first, length in ((10, 5), (60, 33), (110, 17), (160, 2))]
BAD = {"prompt_token_ids": [*range(200, 215), BAD_TOKEN, *range(215, 245)]}


@pytest.mark.parametrize("prefix", [True, False], ids=["prefixe", "sans-prefixe"])
@pytest.mark.parametrize("budget", [2048, 9], ids=["entier", "par-morceaux"])
def test_nan_logits_end_one_request(nan_folder, budget, prefix):
    alone = tokens_of(LLM(nan_folder), GOOD, greedy(10))
    llm = nan_llm(nan_folder, budget, prefix)  # les cinq ne tiennent pas ensemble dans les 12 blocs
    for _ in range(3):  # au deuxième tour, le préfixe de la mauvaise pourrait être en cache
        outputs = llm.generate([*GOOD[:2], BAD, *GOOD[2:], BAD], greedy(10, logprobs=0), use_tqdm=False)
        bad = [output.outputs[0] for output in (outputs.pop(5), outputs.pop(2))]
        assert [(only.finish_reason, only.token_ids, only.text) for only in bad] == [("error", [], "")] * 2
        assert all("NaN" in only.error for only in bad)
        assert [output.outputs[0].token_ids for output in outputs] == alone
        assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    check_no_nan_left(llm, nan_folder)


def test_nan_in_the_middle_of_an_answer(tiny_model, tmp_path):
    """Le token fatal est produit par la requête elle-même : elle garde ce qu'elle avait déjà dit."""
    tokens = tokens_of(LLM(tiny_model()), GOOD, greedy(10))
    fatal = next(token for token in tokens[1][3:] if all(token not in other for other in (*tokens[:1], *tokens[2:], tokens[1][:3])))
    folder = tmp_path / "modele"
    shutil.copytree(tiny_model(), folder)
    edit_weights(lambda weights: weights["model.embed_tokens.weight"][fatal].fill_(NAN))(folder)
    llm = nan_llm(folder)
    outputs = [output.outputs[0] for output in llm.generate(GOOD, greedy(10), use_tqdm=False)]
    failed = outputs.pop(1)
    assert (failed.finish_reason, failed.token_ids) == ("error", tokens[1][: tokens[1].index(fatal) + 1])
    assert [only.token_ids for only in outputs] == [tokens[0], *tokens[2:]]
    check_no_nan_left(llm, folder)


@pytest.mark.parametrize("prefix", [True, False], ids=["prefixe", "sans-prefixe"])
def test_nan_of_an_aborted_prompt(nan_folder, prefix):
    llm = nan_llm(nan_folder, 20, prefix)
    llm.add_request("mauvaise", BAD, greedy())
    llm.step()  # le premier morceau contient le token fatal ; le dernier n'est pas encore calculé
    llm.abort("mauvaise")
    check_no_nan_left(llm, nan_folder)


@pytest.mark.parametrize("prefix", [True, False], ids=["prefixe", "sans-prefixe"])
def test_nan_of_a_preempted_prompt(nan_folder, prefix):
    """La requête fautive est renvoyée en file au milieu de son prompt : ses blocs servent aussitôt à d'autres."""
    prompt = {"prompt_token_ids": list(range(10, 41))}  # deux blocs, presque pleins
    (alone,) = tokens_of(LLM(nan_folder), [prompt], greedy(20))
    llm = nan_llm(nan_folder, 17, prefix, num_blocks=4)
    llm.add_request("bonne", prompt, greedy(20))
    llm.step()
    llm.add_request("mauvaise", {"prompt_token_ids": [BAD_TOKEN] * 32}, greedy())
    finished = {}
    while llm.has_unfinished_requests():
        finished |= {output.request_id: output.outputs[0] for output in llm.step() if output.finished}
    assert finished["bonne"].token_ids == alone
    assert finished["mauvaise"].finish_reason == "error"
    check_no_nan_left(llm, nan_folder)


@pytest.mark.parametrize("prefix", [True, False], ids=["prefixe", "sans-prefixe"])
def test_nan_of_an_interrupted_step(nan_folder, monkeypatch, prefix):
    """Ctrl-C entre le calcul et le choix du token : K et V sont écrits, personne n'a encore vu les logits."""
    llm = nan_llm(nan_folder, prefix=prefix)
    with monkeypatch.context() as patch:
        patch.setattr("minibatcher.model.executor.sample", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(BAD, greedy(), use_tqdm=False)
    check_no_nan_left(llm, nan_folder)


# Interruptions


def interrupt(llm: LLM, monkeypatch, step: int, after: bool, error: BaseException | None = None) -> None:
    """Lève Ctrl-C (ou `error`) au milieu du pas `step` à venir : avant ou après que K et V sont écrits ; puis plus rien."""
    execute, countdown = llm.engine.executor.execute, iter(range(step, -1, -1))

    def failing(plan: StepPlan) -> StepOutput:
        now = next(countdown, None) == 0
        if now and not after:
            raise error or KeyboardInterrupt
        output = execute(plan)
        if now:
            raise error or KeyboardInterrupt
        return output

    monkeypatch.setattr(llm.engine.executor, "execute", failing)


@pytest.mark.parametrize("prefix", [True, False], ids=["prefixe", "sans-prefixe"])
@pytest.mark.parametrize("after", [False, True], ids=["avant", "apres"])
@pytest.mark.parametrize("step", [0, 1, 3, 12])
def test_ctrl_c_during_generate(nan_folder, monkeypatch, step, after, prefix):
    alone = tokens_of(LLM(nan_folder), GOOD, greedy(10))
    llm = nan_llm(nan_folder, budget=9, prefix=prefix, num_blocks=5, block_size=4)
    llm.add_request("en cours", GOOD[2], greedy(10))
    llm.step()
    interrupt(llm, monkeypatch, step, after)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(GOOD, greedy(10), use_tqdm=False)
    finished = []
    while llm.has_unfinished_requests():
        finished += [output for output in llm.step() if output.finished]
    assert [output.request_id for output in finished] == ["en cours"]
    assert finished[0].outputs[0].token_ids == alone[2]
    check_empty(llm)
    assert tokens_of(llm, GOOD, greedy(10)) == alone
    check_no_nan_left(llm, nan_folder)


def test_ctrl_c_at_any_line_of_the_scheduler(nan_folder):
    """Un vrai SIGINT à une ligne quelconque : jamais un bloc perdu, une empreinte sans contenu ou une file bancale."""
    alone = tokens_of(LLM(nan_folder), GOOD, greedy(10))
    files = ("scheduler.py", "kv_cache.py", "request.py", "engine.py")

    def run(interrupted_line: int) -> int:
        llm, lines = nan_llm(nan_folder, budget=9, num_blocks=5, block_size=4), 0

        def on_line(frame, event, argument):
            nonlocal lines
            lines += event == "line"
            if event == "line" and lines == interrupted_line:
                signal.raise_signal(signal.SIGINT)
            return on_line

        def on_call(frame, event, argument):
            name = frame.f_code.co_filename
            return on_line if name.endswith(files) and "minibatcher" in name else None

        before = sys.gettrace()
        sys.settrace(on_call)
        try:
            with pytest.raises(KeyboardInterrupt) if interrupted_line else contextlib.nullcontext():
                llm.generate(GOOD, greedy(10), use_tqdm=False)
        finally:
            sys.settrace(before)
        check_empty(llm)
        assert tokens_of(llm, GOOD, greedy(10)) == alone, f"après un Ctrl-C à la ligne exécutée n° {interrupted_line}"
        check_empty(llm)
        return lines

    num_lines = run(0)
    assert num_lines > 1000
    for line in range(1, num_lines, num_lines // 97):
        run(line)


def test_ctrl_c_gives_all_blocks_back(llm, monkeypatch):
    interrupt(llm, monkeypatch, step=3, after=True)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(GOOD, greedy(10), use_tqdm=False)
    check_empty(llm)


def test_another_exception_in_a_step(llm, monkeypatch):
    alone = tokens_of(llm, GOOD, greedy(10))
    interrupt(llm, monkeypatch, step=3, after=False, error=RuntimeError("panne"))
    with pytest.raises(RuntimeError, match="panne"):
        llm.generate(GOOD, greedy(10), use_tqdm=False)
    check_empty(llm)
    assert tokens_of(llm, GOOD, greedy(10)) == alone


def test_all_our_errors_have_one_base():
    assert all(issubclass(error, MinibatcherError) for error in (ConfigError, InvalidRequestError, ModelError))
