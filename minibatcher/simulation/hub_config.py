"""Lire les dimensions d'un modèle dans n'importe quel `config.json` de Hugging Face, ou dire pourquoi l'on ne peut pas."""

import json
from pathlib import Path

from minibatcher.errors import ConfigError


def read_fields(raw: dict, source: str) -> dict:
    """Les dimensions que `config.json` donne, aux noms de `ModelSheet`."""
    model_type = str(raw.get("model_type") or ("gpt2" if "n_embd" in raw else ""))
    _refuse_uncountable(raw, model_type, source)

    def read(*names: str, default: int | None = None, minimum: int = 1) -> int:
        """Le premier champ présent : chaque famille de modèles a ses noms."""
        value = next((raw[name] for name in names if raw.get(name) is not None), default)
        if value is None:
            raise ConfigError(f"{source} : il manque {names[0]}. Complétez le fichier, ou remplissez un ModelSheet à la main.")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ConfigError(f"{source} : {names[0]} vaut {value!r}, et non un entier d'au moins {minimum}. Le fichier est abîmé.")
        return value

    plain_mlp = model_type in _PLAIN_MLP
    if not plain_mlp and raw.get("hidden_act") not in ("silu", "swish") and not model_type.startswith("gemma"):
        raise ConfigError(
            f"{source} : rien ne dit si le MLP a deux ou trois matrices (model_type = {model_type!r}, hidden_act = "
            f"{raw.get('hidden_act')!r}). Remplissez un ModelSheet à la main."
        )
    hidden_size, num_heads = read("hidden_size", "n_embd"), read("num_attention_heads", "n_head", "num_heads")
    multi_query = raw.get("multi_query") and not raw.get("new_decoder_architecture")  # Falcon 7B, StarCoder
    num_experts = read(*filter(raw.get, _EXPERTS), default=0, minimum=0)
    expert_size = read("moe_intermediate_size", "intermediate_size") if num_experts else 0
    shared_size = read("n_shared_experts", default=0, minimum=0) * expert_size
    return {
        "vocab_size": read("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": expert_size
        or read("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * hidden_size if plain_mlp else None),
        "num_layers": read("num_hidden_layers", "n_layer", "num_layers"),
        "num_heads": num_heads,
        "num_kv_heads": 1 if multi_query else read("num_key_value_heads", "num_kv_heads", default=num_heads),
        "head_dim": read("head_dim", default=hidden_size // num_heads),
        "max_position_embeddings": read("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", model_type.startswith(_TIED_BY_DEFAULT))),
        "gated_mlp": not plain_mlp,
        "learned_positions": model_type in ("gpt2", "gpt_neo", "gpt_bigcode", "opt"),
        "num_experts": num_experts,
        "num_experts_per_token": read("num_experts_per_tok", "experts_per_token") if num_experts else 0,
        "shared_intermediate_size": read("shared_expert_intermediate_size", default=shared_size, minimum=0),
    }


# Ce que config.json ne dit pas toujours, relevé dans les classes de configuration de transformers 5.24.
_PLAIN_MLP = {"gpt2", "gpt_neo", "gptj", "gpt_neox", "gpt_bigcode", "opt", "bloom", "falcon", "phi", "starcoder2", "nemotron"}
_TIED_BY_DEFAULT = ("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "falcon", "starcoder2", "gemma", "cohere", "smollm3")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_DENSE_LAYERS = ("mlp_only_layers", "first_k_dense_replace", "intermediate_size_mlp")
_RECURRENT = ("state_size", "ssm_cfg", "mamba_d_state", "ssm_state_size", "attn_layer_period", "linear_key_head_dim", "lru_width")
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


def _refuse_uncountable(raw: dict, model_type: str, source: str) -> None:
    """Un chiffre faux serait pire que pas de chiffre."""
    layer_types = raw.get("layer_types")
    other_layers = isinstance(layer_types, list) and any(kind not in _ATTENTION for kind in layer_types)
    recurrent = model_type.startswith(("mamba", "rwkv")) or any(raw.get(field) for field in _RECURRENT)
    dense_layers = any(raw.get(field) for field in _DENSE_LAYERS) or raw.get("decoder_sparse_step") not in (None, 1)
    for found, what in (
        (raw.get("kv_lora_rank"), "une attention latente (MLA) : son cache n'a pas de têtes KV"),
        (recurrent or other_layers, "des couches récurrentes, dont la mémoire ne grandit pas avec la séquence"),
        (raw.get("is_encoder_decoder"), "un encodeur en plus du décodeur"),
        (raw.get("num_kv_shared_layers"), "des couches qui partagent leur cache"),
        (dense_layers and any(raw.get(field) for field in _EXPERTS), "des couches à experts mêlées à des couches denses"),
    ):
        if found:
            raise ConfigError(f"{source} décrit {what}. Ces fiches ne savent pas le compter.")


def read_json(path: Path) -> dict:
    """Le contenu d'un `config.json`. Lève `ConfigError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} n'existe pas : donnez le chemin d'un config.json ou de son dossier.") from None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path} n'est pas un fichier JSON lisible ({problem}) : téléchargez-le de nouveau.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} n'est pas un objet JSON : téléchargez-le de nouveau.")
    return content
