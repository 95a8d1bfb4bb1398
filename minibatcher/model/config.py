"""La fiche d'un modèle, lue dans le `config.json` de Hugging Face."""

import json
from dataclasses import dataclass
from pathlib import Path

from minibatcher.errors import ModelError

# Ce que chaque architecture change à la même pile de couches : biais sur Q, K, V ; normalisation de Q et K par tête.
SUPPORTED_ARCHITECTURES = {
    "LlamaForCausalLM": {"qkv_bias": False, "qk_norm": False},
    "Qwen2ForCausalLM": {"qkv_bias": True, "qk_norm": False},
    "Qwen3ForCausalLM": {"qkv_bias": False, "qk_norm": True},
}


@dataclass(frozen=True)
class RopeScaling:
    """Étirement des fréquences de RoPE, à la façon de Llama 3.1."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions d'un décodeur. Tailles en nombre d'éléments."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def kv_elements_per_token(self) -> int:
        """Éléments de K et V par token, toutes couches comprises."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Nombre de poids, biais et normalisations mis à part (moins d'un millième)."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * layer + embeddings

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Lit `folder/config.json` (et `generation_config.json` pour les tokens de fin). Lève `ModelError`."""
        raw = _read_json(folder / "config.json")
        architecture = (raw.get("architectures") or ["(non précisée)"])[0]
        if architecture not in SUPPORTED_ARCHITECTURES:
            raise ModelError(
                f"Architecture {architecture} inconnue ({folder}). minibatcher sait servir : "
                f"{', '.join(sorted(SUPPORTED_ARCHITECTURES))}. Pour les autres, utilisez vLLM."
            )
        refuse_unsupported(raw, folder)
        try:
            rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
            hidden_size, num_heads = _size(raw, "hidden_size", folder), _size(raw, "num_attention_heads", folder)
            num_kv_heads = _size(raw, "num_key_value_heads", folder, default=num_heads)
            if num_heads % num_kv_heads:
                raise ModelError(
                    f"{folder / 'config.json'} : num_attention_heads ({num_heads}) n'est pas un multiple de num_key_value_heads "
                    f"({num_kv_heads})."
                )
            traits = SUPPORTED_ARCHITECTURES[architecture]
            return cls(
                architecture=architecture,
                vocab_size=_size(raw, "vocab_size", folder),
                hidden_size=hidden_size,
                intermediate_size=_size(raw, "intermediate_size", folder),
                num_layers=_size(raw, "num_hidden_layers", folder),
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=_size(raw, "head_dim", folder, default=hidden_size // num_heads),
                max_position_embeddings=_size(raw, "max_position_embeddings", folder),
                rms_norm_eps=raw["rms_norm_eps"],
                rope_theta=rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0,
                rope_scaling=_rope_scaling(rope, folder),
                tie_word_embeddings=raw.get("tie_word_embeddings", False),
                qkv_bias=raw.get("attention_bias", traits["qkv_bias"]) if architecture != "Qwen2ForCausalLM" else True,
                qk_norm=traits["qk_norm"],
                dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
                eos_token_ids=_eos_token_ids(raw, folder),
            )
        except KeyError as missing:
            raise ModelError(f"{folder / 'config.json'} n'indique pas {missing} : le fichier est incomplet.") from None


def refuse_unsupported(raw: dict, folder: Path) -> None:
    """Refuse ce qu'un modèle d'une architecture connue pourrait demander et que le décodeur ne fait pas."""
    wanted = {
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "mlp_bias": (raw.get("mlp_bias", False), False),
        "use_sliding_window": (raw.get("use_sliding_window", False), False),
        "quantization_config": (raw.get("quantization_config"), None),
    }
    for name, (value, supported) in wanted.items():
        if value != supported:
            raise ModelError(
                f"{folder / 'config.json'} demande {name} = {value!r} ; minibatcher ne connaît que {supported!r}. "
                "Pour ce modèle, utilisez vLLM."
            )


def _rope_scaling(rope: dict, folder: Path) -> RopeScaling | None:
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type == "default":
        return None
    if rope_type != "llama3":
        raise ModelError(f"{folder / 'config.json'} : RoPE de type {rope_type!r} inconnu. minibatcher connaît : default, llama3.")
    return RopeScaling(
        factor=rope["factor"],
        low_freq_factor=rope["low_freq_factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_max_position_embeddings=rope["original_max_position_embeddings"],
    )


def _eos_token_ids(raw: dict, folder: Path) -> tuple[int, ...]:
    # generation_config.json l'emporte, comme dans vLLM et transformers : les modèles de conversation y déclarent leurs fins.
    path = folder / "generation_config.json"
    eos = _read_json(path).get("eos_token_id") if path.is_file() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)


def _size(raw: dict, name: str, folder: Path, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if value is None:
        raise KeyError(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{folder / 'config.json'} : {name} vaut {value!r}, et non un entier positif. Le fichier est abîmé.")
    return value


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} n'existe pas : {path.parent} n'est pas un dossier de modèle Hugging Face complet.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise ModelError(f"{path} n'est pas un fichier JSON lisible ({problem}) : téléchargez-le de nouveau.") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} n'est pas un objet JSON : téléchargez-le de nouveau.")
    return content
