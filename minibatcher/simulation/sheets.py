"""Les fiches des modèles : ce qu'ils demandent, et combien de séquences tiennent dans ce qui reste de mémoire.

Octets. Go = 10^9 octets, Gio = 2^30 ; Ko et Kio de même.
"""

from dataclasses import dataclass
from pathlib import Path

from minibatcher.errors import ConfigError
from minibatcher.simulation.hardware import Hardware, normalized, require_number
from minibatcher.simulation.hub_config import read_fields, read_json

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class ModelSheet:
    """Les dimensions d'un décodeur, aux noms de `ModelConfig`, et ce qu'on en déduit.

    - `gated_mlp` : MLP à trois matrices (SwiGLU), sinon deux ; `learned_positions` : une table de positions (GPT-2), sinon RoPE ;
    - mélange d'experts : `num_experts` MLP de largeur `intermediate_size` par couche, dont `num_experts_per_token` servent à chaque
      token, et un MLP de largeur `shared_intermediate_size` qui sert toujours. Tout à zéro pour un modèle dense ;
    - biais et normalisations ne sont pas comptés (moins de 1 % des poids), ni la partie image d'un modèle multimodal.
    """

    name: str
    source: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    gated_mlp: bool = True
    learned_positions: bool = False
    num_experts: int = 0
    num_experts_per_token: int = 0
    shared_intermediate_size: int = 0

    @property
    def num_parameters(self) -> int:
        """Tous les poids, experts au repos compris : ce que la mémoire doit contenir."""
        tables = 1 if self.tie_word_embeddings else 2
        positions = self.max_position_embeddings if self.learned_positions else 0
        return self._layers(self.num_experts) + (tables * self.vocab_size + positions) * self.hidden_size

    @property
    def num_active_parameters(self) -> int:
        """Les poids qui servent à un token : tous, sauf les experts qu'il n'a pas choisis."""
        return self.num_parameters - self._layers(self.num_experts) + self._layers(self.num_experts_per_token)

    @property
    def kv_elements_per_token(self) -> int:
        """Éléments de K et V par token, toutes couches comprises. Une fenêtre glissante en garde moins, passé sa longueur."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def flops_per_token(self) -> int:
        """Opérations des produits de matrices pour un token, logits compris, attention non comprise : deux par poids lu."""
        return 2 * (self._layers(self.num_experts_per_token) + self.vocab_size * self.hidden_size)

    @property
    def flops_per_pair(self) -> int:
        """Opérations d'attention par couple (token calculé, token regardé) : multiplier et ajouter, pour K puis pour V."""
        return 4 * self.num_heads * self.head_dim * self.num_layers

    def _layers(self, num_experts: int) -> int:
        attention = self.hidden_size * (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        matrix = (3 if self.gated_mlp else 2) * self.hidden_size
        mlp = matrix * (self.intermediate_size * (num_experts if self.num_experts else 1) + self.shared_intermediate_size)
        router = self.hidden_size * self.num_experts
        return self.num_layers * (attention + mlp + router)

    @classmethod
    def from_config(cls, config: str | Path | dict) -> "ModelSheet":
        """Lit un `config.json` de Hugging Face : son chemin, celui de son dossier, ou son contenu.

        Lève `ConfigError` s'il est illisible, incomplet, ou décrit un modèle que ces formules ne savent pas compter.
        """
        if isinstance(config, dict):
            raw, source = config, str(config.get("_name_or_path") or "config.json")
            name = source
        else:
            path = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
            raw, source, name = read_json(path), str(path), path.resolve().parent.name
        text = raw.get("text_config")
        raw = {**raw, **text} if isinstance(text, dict) else raw
        return cls(name=name, source=source, **read_fields(raw, source))


def _llama_like(name: str, source: str, *sizes: int, tied: bool) -> ModelSheet:
    return ModelSheet(name, source, *sizes, tie_word_embeddings=tied)


# Source : le config.json de ce dépôt de huggingface.co. Colonnes : vocabulaire, état caché, MLP, couches, têtes, têtes KV,
# dimension de tête, contexte.
MODELS = {
    sheet.name: sheet
    for sheet in (
        _llama_like("Llama 2 7B", "meta-llama/Llama-2-7b-hf", 32000, 4096, 11008, 32, 32, 32, 128, 4096, tied=False),
        _llama_like("Llama 3 8B", "meta-llama/Meta-Llama-3-8B", 128256, 4096, 14336, 32, 32, 8, 128, 8192, tied=False),
        _llama_like("Llama 3.2 1B", "meta-llama/Llama-3.2-1B", 128256, 2048, 8192, 16, 32, 8, 64, 131072, tied=True),
        _llama_like("Qwen2.5 0.5B", "Qwen/Qwen2.5-0.5B-Instruct", 151936, 896, 4864, 24, 14, 2, 64, 32768, tied=True),
        _llama_like("Qwen2.5 1.5B", "Qwen/Qwen2.5-1.5B-Instruct", 151936, 1536, 8960, 28, 12, 2, 128, 32768, tied=True),
        _llama_like("Qwen2.5 7B", "Qwen/Qwen2.5-7B-Instruct", 152064, 3584, 18944, 28, 28, 4, 128, 32768, tied=False),
        _llama_like("Qwen3 0.6B", "Qwen/Qwen3-0.6B", 151936, 1024, 3072, 28, 16, 8, 128, 40960, tied=True),
        _llama_like("SmolLM2 135M", "HuggingFaceTB/SmolLM2-135M", 49152, 576, 1536, 30, 9, 3, 64, 8192, tied=True),
        _llama_like("Mistral 7B", "mistralai/Mistral-7B-Instruct-v0.2", 32000, 4096, 14336, 32, 32, 8, 128, 32768, tied=False),
    )
}


def get_model(name_or_path: str | Path) -> ModelSheet:
    """La fiche d'un modèle : d'après son `config.json` si c'est le chemin de ce fichier ou de son dossier, sinon d'après son nom.

    Nom d'une fiche ou identifiant du hub ; casse, espaces et tirets indifférents. Inconnu ou illisible : lève `ConfigError`.
    """
    text = str(name_or_path)
    if text.endswith(".json") or (text and Path(text).exists()):
        return ModelSheet.from_config(text)
    for model in MODELS.values():
        if normalized(text) in (normalized(model.name), normalized(model.source)):
            return model
    raise ConfigError(f"Modèle inconnu : {text!r}. Fiches : {', '.join(MODELS)} ; ou le chemin d'un config.json.")


def kv_bytes_per_token(model: ModelSheet, kv_cache_dtype: str = "float16") -> int:
    """Octets de cache par token : 2 (K et V) × couches × têtes KV × dimension de tête × octets du type.

    En `int8`, chaque vecteur de `head_dim` entiers garde en plus son échelle, un float16 : deux par token, couche et tête KV.
    """
    scales = 2 * model.num_layers * model.num_kv_heads * 2 if kv_cache_dtype == "int8" else 0
    return model.kv_elements_per_token * _dtype_bytes("kv_cache_dtype", kv_cache_dtype) + scales


def weight_bytes(model: ModelSheet, dtype: str = "float16") -> int:
    """Octets de tous les poids, s'ils sont tous de ce type."""
    return model.num_parameters * _dtype_bytes("dtype", dtype)


def kv_cache_bytes(
    model: ModelSheet,
    hardware: Hardware,
    dtype: str = "float16",
    gpu_memory_utilization: float = 0.9,
    activation_bytes: float = 1e9,
) -> int:
    """Octets qui restent au cache : mémoire × `gpu_memory_utilization` − poids − activations.

    `activation_bytes` : le défaut est un ordre de grandeur ; vLLM le mesure au démarrage. Lève `ConfigError` si rien ne reste.
    """
    require_number("gpu_memory_utilization", gpu_memory_utilization, above=0)
    if gpu_memory_utilization > 1:
        raise ConfigError(f"gpu_memory_utilization vaut {gpu_memory_utilization} : c'est une part de la mémoire, 1 au plus.")
    require_number("activation_bytes", activation_bytes)
    weights = weight_bytes(model, dtype)
    left = hardware.memory_bytes * gpu_memory_utilization - weights - activation_bytes
    if left <= 0:
        raise ConfigError(
            f"{model.name} ne laisse rien au cache sur {hardware.name} : {_gigabytes(weights)} de poids en {dtype} et "
            f"{_gigabytes(activation_bytes)} d'activations, {_gigabytes(-left)} de plus que {100 * gpu_memory_utilization:.0f} % "
            f"de {_gigabytes(hardware.memory_bytes)}. Prenez un modèle plus petit, un type plus court ou une machine plus grande."
        )
    return int(left)


def max_num_sequences(model: ModelSheet, cache_bytes: float, mean_length: float, kv_cache_dtype: str = "float16") -> int:
    """Séquences de `mean_length` tokens (prompt et réponse) que `cache_bytes` octets de cache contiennent en même temps."""
    require_number("cache_bytes", cache_bytes)
    require_number("mean_length", mean_length, above=0)
    return int(cache_bytes // (kv_bytes_per_token(model, kv_cache_dtype) * mean_length))


def _dtype_bytes(name: str, dtype: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"{name} vaut {dtype!r} ; types connus : {', '.join(DTYPE_BYTES)}.")
    return DTYPE_BYTES[dtype]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} Go".replace(".", ",")
