"""Les fiches : comparées aux chiffres publiés, aux modèles de transformers et aux calculs du cours."""

import json

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from minibatcher.errors import ConfigError
from minibatcher.model.config import ModelConfig
from minibatcher.simulation.hardware import HARDWARE, Hardware, get_hardware, this_cpu
from minibatcher.simulation.sheets import (
    MODELS,
    ModelSheet,
    get_model,
    kv_bytes_per_token,
    kv_cache_bytes,
    max_num_sequences,
    weight_bytes,
)

LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def without(name: str) -> dict:
    return {key: value for key, value in LLAMA.items() if key != name}


# Modèles.


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Llama 2 7B", 6.738e9),
        ("Llama 3 8B", 8.030e9),
        ("Llama 3.2 1B", 1.236e9),
        ("Qwen2.5 0.5B", 0.494e9),
        ("Qwen2.5 1.5B", 1.544e9),
        ("Qwen2.5 7B", 7.616e9),
        ("Qwen3 0.6B", 0.596e9),
        ("SmolLM2 135M", 134.5e6),
        ("Mistral 7B", 7.242e9),
    ],
)
def test_published_parameter_counts(name, published):
    model = MODELS[name]
    assert model.num_parameters == pytest.approx(published, rel=0.001)
    assert model.num_active_parameters == model.num_parameters
    assert "/" in model.source


def test_kv_bytes_per_token_of_the_course():
    assert kv_bytes_per_token(MODELS["Llama 3 8B"]) == 128 * 1024
    assert kv_bytes_per_token(MODELS["Llama 2 7B"]) == 512 * 1024
    assert kv_bytes_per_token(MODELS["Qwen2.5 1.5B"]) == 28 * 1024


def test_kv_cache_dtypes():
    model = MODELS["Llama 3 8B"]
    assert kv_bytes_per_token(model, "bfloat16") == kv_bytes_per_token(model, "float16")
    assert kv_bytes_per_token(model, "float32") == 256 * 1024
    assert kv_bytes_per_token(model, "fp8") == 64 * 1024
    # 32 couches × 8 têtes KV × 2 (K et V) vecteurs de 128 octets et de 2 octets d'échelle.
    assert kv_bytes_per_token(model, "int8") == 32 * 8 * 2 * (128 + 2)


def test_flops():
    model = ModelSheet.from_config(LLAMA)
    attention, mlp, logits = 64 * 64 * 2 + 64 * 16 * 2, 3 * 64 * 160, 64 * 1000
    assert model.flops_per_token == 2 * (3 * (attention + mlp) + logits)
    assert model.num_parameters == 3 * (attention + mlp) + 2 * logits
    assert model.flops_per_pair == 4 * 8 * 8 * 3
    assert MODELS["Llama 3 8B"].flops_per_token == pytest.approx(15.0e9, rel=0.01)


SMALL = {"vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 1024}
CONFIGS = {
    "llama": {**SMALL, "num_key_value_heads": 2},
    "mistral": {**SMALL, "num_key_value_heads": 4, "head_dim": 32},
    "qwen2": {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {**SMALL, "num_key_value_heads": 2, "head_dim": 128},
    "gemma2": {**SMALL, "num_key_value_heads": 2, "head_dim": 96},
    "phi3": {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0},
    "mixtral": {**SMALL, "num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 3},
    "qwen3_moe": {**SMALL, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 6, "moe_intermediate_size": 96},
    "qwen2_moe": {**SMALL, "num_experts": 6, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 200},
    "gpt2": {"vocab_size": 4096, "n_embd": 512, "n_layer": 2, "n_head": 8},
    "gpt_neox": SMALL,
    "gptj": {"vocab_size": 4096, "n_embd": 512, "n_layer": 2, "n_head": 8, "rotary_dim": 32},
    "gpt_bigcode": {"vocab_size": 4096, "n_embd": 512, "n_layer": 2, "n_head": 8, "multi_query": True},
    "opt": {"vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "ffn_dim": 1024}
    | {"word_embed_proj_dim": 512},
    "falcon": {"vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8},
    "bloom": {"vocab_size": 4096, "hidden_size": 512, "n_layer": 2, "n_head": 8, "seq_length": 2048},
    "phi": SMALL,
    "starcoder2": {**SMALL, "num_key_value_heads": 2},
    "nemotron": {**SMALL, "num_key_value_heads": 2, "head_dim": 64},
    "cohere": {**SMALL, "num_key_value_heads": 2},
    "smollm3": {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0},
}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_parameter_count_is_that_of_transformers(model_type, tmp_path):
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    sheet = ModelSheet.from_config(tmp_path)
    assert sheet.num_parameters == pytest.approx(model.num_parameters(), rel=0.01)
    assert sheet.name == tmp_path.name


def test_cache_size_is_that_of_transformers():
    for model_type in ("llama", "qwen3", "gemma2", "mixtral", "gpt2"):
        config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.inference_mode():
            cache = model(torch.zeros(1, 5, dtype=torch.long), use_cache=True).past_key_values
        elements = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
        assert ModelSheet.from_config(config.to_dict()).kv_elements_per_token == elements / 5


def test_agrees_with_the_engine_config(tiny_model):
    folder = tiny_model(architecture="Qwen3", head_dim=16, tied=True)
    sheet, config = ModelSheet.from_config(folder), ModelConfig.from_folder(folder)
    for name in ModelSheet.__dataclass_fields__:
        if hasattr(config, name):
            assert getattr(sheet, name) == getattr(config, name)
    assert (sheet.num_parameters, sheet.kv_elements_per_token) == (config.num_parameters, config.kv_elements_per_token)


def test_published_mixtures_of_experts():
    mixtral = ModelSheet.from_config(
        {
            "model_type": "mixtral",
            "hidden_act": "silu",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 32768,
        }
    )
    assert mixtral.num_parameters == pytest.approx(46.7e9, rel=0.01)
    assert mixtral.num_active_parameters == pytest.approx(12.9e9, rel=0.01)
    assert mixtral.flops_per_token == pytest.approx(2 * (12.9e9 - 32000 * 4096), rel=0.01)
    qwen = ModelSheet.from_config(
        {
            "model_type": "qwen3_moe",
            "hidden_act": "silu",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "max_position_embeddings": 40960,
        }
    )
    assert qwen.num_parameters == pytest.approx(30.5e9, rel=0.01)
    assert qwen.num_active_parameters == pytest.approx(3.3e9, rel=0.02)


def test_shared_experts_always_work():
    experts = {**LLAMA, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    without_shared = ModelSheet.from_config({**experts, "n_routed_experts": 8})
    shared = ModelSheet.from_config({**experts, "n_routed_experts": 8, "n_shared_experts": 3})
    assert shared.shared_intermediate_size == 3 * 32
    for name in ("num_parameters", "num_active_parameters"):
        assert getattr(shared, name) - getattr(without_shared, name) == 3 * (3 * 64 * 3 * 32)


def test_gpt2_and_falcon():
    gpt2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    sheet = ModelSheet.from_config(gpt2)
    assert sheet.num_parameters == pytest.approx(124.4e6, rel=0.01)
    assert (sheet.intermediate_size, sheet.num_kv_heads, sheet.head_dim, sheet.gated_mlp) == (3072, 12, 64, False)
    del gpt2["model_type"]
    assert ModelSheet.from_config(gpt2).num_parameters == sheet.num_parameters
    falcon = {**without("num_key_value_heads"), "model_type": "falcon", "num_kv_heads": 8}
    assert ModelSheet.from_config({**falcon, "multi_query": True}).num_kv_heads == 1
    assert ModelSheet.from_config({**falcon, "multi_query": True, "new_decoder_architecture": True}).num_kv_heads == 8


def test_defaults_and_nested_text_config():
    assert ModelSheet.from_config(without("num_key_value_heads")).num_kv_heads == 8
    assert ModelSheet.from_config(LLAMA).head_dim == 8
    assert ModelSheet.from_config({**LLAMA, "head_dim": 32}).head_dim == 32
    assert not ModelSheet.from_config(LLAMA).tie_word_embeddings
    assert ModelSheet.from_config({**LLAMA, "model_type": "gemma3_text"}).tie_word_embeddings
    nested = {"model_type": "llava", "hidden_size": 5, "tie_word_embeddings": True, "text_config": LLAMA}
    sheet = ModelSheet.from_config(nested)
    assert (sheet.hidden_size, sheet.tie_word_embeddings) == (64, True)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "deux ou trois matrices"),
        ({**LLAMA, "hidden_act": "gelu", "model_type": "bert"}, "model_type = 'bert'"),
        (without("hidden_size"), "il manque hidden_size"),
        (without("vocab_size"), "il manque vocab_size"),
        (without("intermediate_size"), "il manque intermediate_size"),
        (without("num_hidden_layers"), "il manque num_hidden_layers"),
        (without("num_attention_heads"), "il manque num_attention_heads"),
        (without("max_position_embeddings"), "il manque max_position_embeddings"),
        ({**LLAMA, "num_local_experts": 8}, "il manque num_experts_per_tok"),
        ({**LLAMA, "hidden_size": "64"}, "hidden_size vaut '64'"),
        ({**LLAMA, "hidden_size": 0}, "hidden_size vaut 0"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers vaut True"),
        ({**LLAMA, "num_attention_heads": [8, 4]}, "num_attention_heads vaut"),
        ({**LLAMA, "num_attention_heads": 100}, "head_dim vaut 0"),
        ({**LLAMA, "num_experts": "8"}, "vaut '8'"),
        ({**LLAMA, "kv_lora_rank": 512}, "MLA"),
        ({**LLAMA, "text_config": {"kv_lora_rank": 512}}, "MLA"),
        ({**LLAMA, "model_type": "mamba2"}, "récurrentes"),
        ({**LLAMA, "mamba_d_state": 16}, "récurrentes"),
        ({**LLAMA, "layer_types": ["full_attention", "linear_attention"]}, "récurrentes"),
        ({**LLAMA, "layer_types": [["full_attention"]]}, "récurrentes"),
        ({**LLAMA, "is_encoder_decoder": True}, "encodeur"),
        ({**LLAMA, "num_kv_shared_layers": 10}, "partagent leur cache"),
        ({**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0]}, "couches denses"),
        ({**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2}, "couches denses"),
        ({**LLAMA, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1}, "couches denses"),
    ],
)
def test_what_cannot_be_counted_is_refused(config, said):
    with pytest.raises(ConfigError, match=said):
        ModelSheet.from_config(config)


def test_alternating_window_layers_are_counted():
    sheet = ModelSheet.from_config({**LLAMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})
    assert sheet.kv_elements_per_token == 2 * 3 * 2 * 8


def test_files(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert ModelSheet.from_config(path) == ModelSheet.from_config(str(tmp_path)) == get_model(tmp_path) == get_model(str(path))
    assert get_model(path).source == str(path)
    for content, said in ((b'{"a": ', "lisible"), (b"\xff\xfe\x00", "lisible"), (b"[1]", "objet JSON"), (b"", "lisible")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            get_model(tmp_path)
    path.unlink()
    known = tmp_path / "Meta-Llama-3-8B-Instruct"  # un modèle local l'emporte sur la fiche de même nom
    known.mkdir()
    (known / "config.json").write_text(json.dumps(LLAMA))
    assert get_model(known).hidden_size == 64
    with pytest.raises(ConfigError, match=r"config\.json n'existe pas"):
        get_model(tmp_path)
    with pytest.raises(ConfigError, match="n'existe pas"):
        get_model(tmp_path / "autre.json")


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA, "text_config", "layer_types", "num_experts", "head_dim", "kv_lora_rank", "multi_query"]),
        st.none() | st.integers(-3, 300) | st.text(max_size=3) | st.lists(st.integers(), max_size=2) | st.just("silu"),
    )
)
def test_any_json_gives_a_sheet_or_a_config_error(changes):
    try:
        sheet = ModelSheet.from_config({**LLAMA, "num_experts_per_tok": 2, **changes})
    except ConfigError:
        return
    assert sheet.num_parameters > 0


# Noms.


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Llama 3 8B", "Llama 3 8B"),
        ("llama-3-8b", "Llama 3 8B"),
        ("LLAMA3_8B", "Llama 3 8B"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama 3 8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama 2 7B"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5 1.5B"),
        ("qwen 2.5 0.5b", "Qwen2.5 0.5B"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2 135M"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "Mistral 7B"),
    ],
)
def test_model_names_are_tolerant(name, found):
    assert get_model(name) is MODELS[found]


@pytest.mark.parametrize("name", ["GPT-5", "", "mistral", "Qwen2.5 15B", "org/modele"])
def test_unknown_model(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        get_model(name)
    assert all(known in str(error.value) for known in MODELS)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("T4", "T4"),
        ("Tesla T4", "T4"),
        ("nvidia l4", "L4"),
        ("a100 80gb", "A100-80"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("A100_40", "A100-40"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h 200", "H200"),
    ],
)
def test_hardware_names_are_tolerant(name, found):
    assert get_hardware(name) is HARDWARE[found]


@pytest.mark.parametrize("name", ["A100", "H100 PCIe", "T40", "", None])
def test_unknown_hardware(name):
    with pytest.raises(ConfigError) as error:
        get_hardware(name)
    assert all(known in str(error.value) for known in HARDWARE)


# Machines.


def test_datasheets():
    t4, l4, a100, h100, h200 = (get_hardware(name) for name in ("T4", "L4", "A100-80", "H100", "H200"))
    assert (t4.memory_bytes, t4.bandwidth, t4.flops["float16"], t4.flops["int8"]) == (16e9, 320e9, 65e12, 130e12)
    assert "bfloat16" not in t4.flops
    assert "fp8" not in t4.flops
    assert (l4.memory_bytes, l4.bandwidth, l4.flops["float16"]) == (24e9, 300e9, 121e12)
    assert (a100.bandwidth, a100.flops["bfloat16"]) == (2039e9, 312e12)
    assert "fp8" not in a100.flops
    assert (h100.bandwidth, h200.bandwidth, h200.memory_bytes) == (3350e9, 4800e9, 141e9)
    assert h100.flops == h200.flops
    for hardware in HARDWARE.values():
        assert hardware.source.startswith("https://")
        # Dense : deux fois moins d'octets, deux fois plus d'opérations, partout.
        for dtype in {"fp8", "int8"} & hardware.flops.keys():
            assert hardware.flops[dtype] == pytest.approx(2 * hardware.flops["float16"], rel=0.01)


def test_this_cpu():
    cpu = this_cpu()
    assert cpu.memory_bytes > 1e8
    assert 1e8 < cpu.bandwidth < 1e13
    assert 1e8 < cpu.flops["float32"] < 1e15
    assert "mesuré" in cpu.source


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "16", None, True])
def test_impossible_hardware_is_refused(value):
    for changes in ({"memory_bytes": value}, {"bandwidth": value}, {"flops": {"float16": value}}):
        with pytest.raises(ConfigError, match=r"Rêve : .* plus grand que 0"):
            Hardware(**{"name": "Rêve", "memory_bytes": 1, "bandwidth": 1, "flops": {}, "source": "", **changes})


# Ce qui tient en mémoire.


def test_sequences_of_the_course():
    # « Environ 60 Go » de cache : en Go, 114 et 28 ; en Gio, 122 et 30.
    llama_3, llama_2 = MODELS["Llama 3 8B"], MODELS["Llama 2 7B"]
    assert [max_num_sequences(model, 60e9, 4000) for model in (llama_3, llama_2)] == [114, 28]
    assert [max_num_sequences(model, 60 * 2**30, 4000) for model in (llama_3, llama_2)] == [122, 30]
    assert kv_bytes_per_token(llama_3) * 4000 == pytest.approx(524e6, rel=0.001)
    assert max_num_sequences(llama_3, 60e9, 4000, "fp8") == 228
    assert max_num_sequences(llama_3, 0, 1) == 0


def test_kv_cache_bytes():
    llama, qwen = MODELS["Llama 3 8B"], MODELS["Qwen2.5 1.5B"]
    assert weight_bytes(llama) == 2 * llama.num_parameters
    assert weight_bytes(llama, "float32") == 4 * llama.num_parameters
    assert kv_cache_bytes(llama, HARDWARE["A100-80"]) == int(0.9 * 80e9 - 2 * llama.num_parameters - 1e9)
    left = kv_cache_bytes(qwen, HARDWARE["T4"], "float16", gpu_memory_utilization=1, activation_bytes=0)
    assert left == 16e9 - 2 * qwen.num_parameters


def test_weights_that_do_not_fit():
    with pytest.raises(ConfigError, match=r"Llama 3 8B .* T4 : 16,1 Go de poids .* 2,7 Go de plus que 90 % de 16,0 Go"):
        kv_cache_bytes(MODELS["Llama 3 8B"], HARDWARE["T4"])
    assert kv_cache_bytes(MODELS["Llama 3 8B"], HARDWARE["T4"], "int8") > 5e9


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model, gpu: kv_bytes_per_token(model, "fp4"), "kv_cache_dtype vaut 'fp4' ; types connus : float32"),
        (lambda model, gpu: weight_bytes(model, None), "dtype vaut None"),
        (lambda model, gpu: kv_cache_bytes(model, gpu, "half"), "dtype vaut 'half'"),
        (lambda model, gpu: kv_cache_bytes(model, gpu, gpu_memory_utilization=0), "gpu_memory_utilization"),
        (lambda model, gpu: kv_cache_bytes(model, gpu, gpu_memory_utilization=90), "1 au plus"),
        (lambda model, gpu: kv_cache_bytes(model, gpu, gpu_memory_utilization="0.9"), "nombre fini"),
        (lambda model, gpu: kv_cache_bytes(model, gpu, activation_bytes=-1), "activation_bytes"),
        (lambda model, gpu: max_num_sequences(model, -1, 10), "cache_bytes"),
        (lambda model, gpu: max_num_sequences(model, 1e9, 0), "mean_length"),
        (lambda model, gpu: max_num_sequences(model, float("nan"), 10), "cache_bytes"),
        (lambda model, gpu: max_num_sequences(model, 1e9, 10, "q4"), "kv_cache_dtype"),
    ],
)
def test_bad_settings_are_refused(call, said):
    with pytest.raises(ConfigError, match=said):
        call(MODELS["SmolLM2 135M"], HARDWARE["T4"])


@given(st.integers(0, 10**12), st.floats(1, 1e5), st.sampled_from(list(MODELS)))
def test_sequences_fill_the_cache_without_overflowing(cache_bytes, mean_length, name):
    each = kv_bytes_per_token(MODELS[name]) * mean_length
    count = max_num_sequences(MODELS[name], cache_bytes, mean_length)
    assert count * each <= cache_bytes * (1 + 1e-9)
    assert cache_bytes < (count + 1) * each * (1 + 1e-9)
