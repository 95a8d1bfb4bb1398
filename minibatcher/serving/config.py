"""Les options de `LLM`, et la taille du cache qu'elles donnent."""

import math
import os
from dataclasses import dataclass

import torch

from minibatcher.errors import ConfigError, UnknownOptionsRefused, require_bool, require_int
from minibatcher.model.config import ModelConfig
from minibatcher.policies import get_scheduler_cls
from minibatcher.scheduler import Scheduler

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
DEFAULT_CPU_CACHE_BYTES = 2 * 2**30


@dataclass
class EngineConfig(UnknownOptionsRefused):
    """Options de `LLM`, aux noms de vLLM.

    - `model` : dossier Hugging Face, identifiant du hub, ou `"smollm2"`, le modèle embarqué ;
    - `dtype` : `"auto"` (float32 sur CPU, float16 sur GPU), `"float32"`, `"float16"`, `"bfloat16"` ;
    - `device` : `"auto"`, `"cpu"`, `"cuda"` ;
    - `max_num_seqs`, `max_num_batched_tokens`, `enable_chunked_prefill` : voir `SchedulerConfig` ;
    - `max_model_len` : longueur maximale d'une séquence (`None` : celle du modèle) ;
    - `block_size` : tokens par bloc de cache ;
    - `kv_cache_memory` : taille du cache, en octets ; à défaut, `gpu_memory_utilization` : part de la mémoire de l'appareil que
      poids et cache peuvent occuper (sans l'un ni l'autre : 0,9 sur GPU, un cache de 2 Gio au plus sur CPU) ;
    - `enable_prefix_caching` : réutiliser les préfixes déjà calculés ;
    - `scheduler_cls` : la politique (`"chunked_prefill"`, `"decode_first"`, `"prefill_first"`, `"static"`) ou votre classe ;
    - `seed` : graine des requêtes qui n'en donnent pas.
    """

    model: str | os.PathLike = "smollm2"
    dtype: str | torch.dtype = "auto"
    device: str = "auto"
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float | None = None
    kv_cache_memory: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduler_cls: str | type[Scheduler] = "chunked_prefill"
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("max_num_seqs", self.max_num_seqs, 1)
        require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        require_int("block_size", self.block_size, 1)
        require_int("seed", self.seed, 0)
        require_bool("enable_prefix_caching", self.enable_prefix_caching)
        require_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        get_scheduler_cls(self.scheduler_cls)
        if self.max_model_len is not None:
            require_int("max_model_len", self.max_model_len, 2)
        if self.kv_cache_memory is not None:
            require_int("kv_cache_memory", self.kv_cache_memory, 1)
        fraction = self.gpu_memory_utilization
        if fraction is not None and not (isinstance(fraction, (int, float)) and 0 < fraction <= 1):
            raise ConfigError(f"gpu_memory_utilization vaut {fraction!r} : donnez un nombre entre 0 (exclu) et 1.")
        if self.dtype not in ("auto", *DTYPES, *DTYPES.values()):
            raise ConfigError(f"dtype {self.dtype!r} inconnu. Dtypes connus : auto, {', '.join(DTYPES)}.")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"device {self.device!r} inconnu. Appareils connus : auto, cpu, cuda.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device='cuda', mais torch ne voit aucun GPU. Prenez device='cpu', ou vérifiez le pilote NVIDIA.")

    def resolve_device(self) -> torch.device:
        return torch.device("cuda" if self.device == "auto" and torch.cuda.is_available() else self.device.replace("auto", "cpu"))

    def resolve_dtype(self, device: torch.device) -> torch.dtype:
        if self.dtype == "auto":
            return torch.float32 if device.type == "cpu" else torch.float16
        return DTYPES.get(self.dtype, self.dtype)


def choose_num_blocks(
    config: EngineConfig, model: ModelConfig, max_model_len: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Nombre de blocs du cache. `ConfigError` si une séquence de `max_model_len` tokens n'y tient pas."""
    block_bytes = model.kv_elements_per_token * dtype.itemsize * config.block_size
    blocks_per_sequence = -(-max_model_len // config.block_size)
    # Au-delà d'une séquence entière par place, un bloc de plus ne servirait qu'au cache de préfixe.
    useful = config.max_num_seqs * blocks_per_sequence * block_bytes
    if config.kv_cache_memory is not None:
        cache_bytes = config.kv_cache_memory
        if cache_bytes > (memory := device_memory(device)):
            raise ConfigError(
                f"kv_cache_memory demande {cache_bytes / 2**20:.1f} Mio, or l'appareil n'en a que {memory / 2**20:.1f}. Baissez-le."
            )
    elif device.type == "cpu" and config.gpu_memory_utilization is None:
        cache_bytes = min(DEFAULT_CPU_CACHE_BYTES, useful)
    else:
        memory = device_memory(device)
        if memory == math.inf:
            raise ConfigError("Ce système ne dit pas combien de mémoire il a : donnez kv_cache_memory, en octets.")
        budget = int(memory * (config.gpu_memory_utilization or 0.9))
        cache_bytes = max(0, min(budget - model.num_parameters * dtype.itemsize, useful))
    num_blocks = cache_bytes // block_bytes
    if num_blocks < blocks_per_sequence:
        raise ConfigError(
            f"Le cache KV de {cache_bytes / 2**20:.1f} Mio ne contient que {num_blocks * config.block_size} tokens, moins qu'une "
            f"séquence de max_model_len = {max_model_len}. Baissez max_model_len, ou donnez au cache (kv_cache_memory, ou "
            f"gpu_memory_utilization) au moins {blocks_per_sequence * block_bytes / 2**20:.1f} Mio."
        )
    return num_blocks


def device_memory(device: torch.device) -> float:
    """Mémoire de l'appareil, en octets ; infinie si le système ne la donne pas."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
