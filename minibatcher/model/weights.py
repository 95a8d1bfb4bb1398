"""Trouver un modèle et lire ses poids : dossier local, hub de Hugging Face, ou modèle embarqué."""

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minibatcher.errors import ModelError
from minibatcher.model import embedded
from minibatcher.model.config import ModelConfig

# Le hub doit répondre ou échouer en quelques secondes, jamais laisser attendre.
HUB_TIMEOUT_S = 5


def resolve_model(model: str | os.PathLike) -> Path:
    """Le dossier du modèle : `model` est un dossier, `"smollm2"` (le modèle embarqué) ou un identifiant du hub (`"Qwen/…"`).

    Le modèle embarqué et les modèles du hub sont téléchargés au besoin. Lève `ModelError`.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(f"Modèle {model!r} introuvable : donnez un dossier, un identifiant du hub ou {embedded.NAMES[0]!r}.")
    name = os.fspath(model)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name in embedded.NAMES:
        return embedded.ensure_embedded_model()
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/")
    if not is_hub_id:
        raise ModelError(
            f"Modèle {name!r} introuvable : ce n'est ni un dossier existant, ni un identifiant du hub (« auteur/modèle »), "
            f"ni le modèle embarqué ({embedded.NAMES[0]!r})."
        )
    return _download_from_hub(name)


def _download_from_hub(name: str) -> Path:
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(HUB_TIMEOUT_S))
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if _is_complete(folder):
            return folder
    except (LocalEntryNotFoundError, OSError):
        pass  # pas encore téléchargé
    try:
        # Une question courte d'abord : le téléchargement lui-même réessaie longtemps quand le réseau manque.
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
        return Path(snapshot_download(name, allow_patterns=patterns))
    except HfHubHTTPError as problem:
        status = getattr(problem.response, "status_code", "?")
        raise ModelError(
            f"Le hub de Hugging Face refuse {name!r} (HTTP {status}). Vérifiez l'orthographe de l'identifiant ; s'il est privé ou "
            "soumis à une licence, acceptez-la sur sa page puis connectez-vous avec « hf auth login »."
        ) from problem
    except Exception as problem:
        raise ModelError(
            f"Impossible de joindre le hub de Hugging Face pour {name!r} ({type(problem).__name__}). Vérifiez le réseau, donnez un "
            f"dossier local, ou prenez le modèle embarqué : {embedded.NAMES[0]!r}."
        ) from problem


def _is_complete(folder: Path) -> bool:
    """Vrai s'il ne manque aucun fichier : un téléchargement interrompu laisse un dossier à compléter, pas un modèle."""
    try:
        _weight_files(folder)
    except ModelError:
        return False
    return all((folder / name).is_file() for name in ("config.json", "tokenizer.json"))


def load_tokenizer(folder: Path):
    """Le tokenizer de `folder` (transformers). Lève `ModelError` s'il manque ou n'est pas de la famille rapide."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as problem:
        raise ModelError(f"Tokenizer illisible dans {folder} ({problem}). Il y faut au moins tokenizer.json.") from None
    if not tokenizer.is_fast:
        raise ModelError(f"{folder} n'a pas de tokenizer.json (tokenizer rapide) : minibatcher en a besoin.")
    return tokenizer


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Les poids de `folder`, par nom, au dtype et sur l'appareil demandés. Lève `ModelError` s'il en manque."""
    weights: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in file.keys():  # noqa: SIM118 : safe_open n'est pas un dictionnaire
                    weights[name] = file.get_tensor(name).to(dtype)
        except (SafetensorError, OSError, RuntimeError) as problem:
            raise ModelError(f"Fichier de poids illisible ou tronqué : {path} ({problem}). Téléchargez-le de nouveau.") from None
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    _check_shapes(folder, config, weights)
    return weights


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as problem:
            raise ModelError(f"{index} est illisible ({problem!r}) : téléchargez-le de nouveau.") from None
    else:
        names = [path.name for path in sorted(folder.glob("*.safetensors"))]
    if not names:
        raise ModelError(f"Aucun fichier de poids .safetensors dans {folder} : le modèle est incomplet.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"Il manque des fichiers de poids dans {folder} : {', '.join(missing)}. Téléchargez-les de nouveau.")
    return [folder / name for name in names]


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Nom et forme de chaque poids indispensable, d'après la fiche du modèle."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
            layer + "self_attn.q_proj.weight": (q, hidden),
            layer + "self_attn.k_proj.weight": (kv, hidden),
            layer + "self_attn.v_proj.weight": (kv, hidden),
            layer + "self_attn.o_proj.weight": (hidden, q),
            layer + "mlp.gate_proj.weight": (inner, hidden),
            layer + "mlp.up_proj.weight": (inner, hidden),
            layer + "mlp.down_proj.weight": (hidden, inner),
        }
        if config.qkv_bias:
            shapes |= {layer + f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", q), ("k", kv), ("v", kv))}
        if config.qk_norm:
            shapes |= {layer + f"self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    return shapes


def _check_shapes(folder: Path, config: ModelConfig, weights: dict[str, Tensor]) -> None:
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in weights]
    if missing:
        raise ModelError(
            f"Les poids de {folder} sont incomplets : il manque {len(missing)} tenseur(s), dont {missing[0]}. "
            "Téléchargez le modèle de nouveau."
        )
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ModelError(
                f"{folder} : {name} est de forme {tuple(weights[name].shape)}, alors que config.json annonce {shape}. "
                "Les poids et config.json ne viennent pas du même modèle."
            )
