"""Le décodeur : une pile de couches identiques, pour Llama, SmolLM2, Qwen2, Qwen2.5 et Qwen3.

Il calcule d'un coup les tokens de toutes les requêtes d'un pas, mis bout à bout : `T` lignes, sans dimension de lot. Seule
l'attention sait quelle ligne appartient à qui ; tout le reste se fait ligne à ligne.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minibatcher.model.attention import KVCache, PagedAttention, Rectangle
from minibatcher.model.config import ModelConfig, RopeScaling
from minibatcher.model.linear import Linear


@dataclass
class StepInput:
    """Les tenseurs d'un pas. `T` : tokens calculés ; `R` : requêtes du pas.

    - `token_ids`, `positions` [T] (int64) : quoi calculer, à quelle position ;
    - `vectors` [T × 2 × num_kv_heads] (int64) : où ranger K et V dans le cache de chaque couche ;
    - `last_rows` [R] (int64) : la ligne du dernier token de chaque requête, la seule dont on veut les logits ;
    - `rectangles` : comment découper l'attention.
    """

    token_ids: Tensor
    positions: Tensor
    vectors: Tensor
    last_rows: Tensor
    rectangles: list[Rectangle]


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Vitesses de rotation [head_dim / 2] (radians par position), étirées à la façon de Llama 3.1 s'il y a lieu.

    Source de l'étirement : `_compute_llama3_parameters` de transformers.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if scaling is None:
        return frequencies
    # Les rotations rapides (ondes courtes) restent ; les lentes sont ralenties ; entre les deux, un fondu.
    wavelengths = 2 * math.pi / frequencies
    context = scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = ((context / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


class RotaryEmbedding:
    """Table des cosinus et sinus, `[max_model_len, head_dim]`."""

    def __init__(self, config: ModelConfig, max_model_len: int, device: torch.device, dtype: torch.dtype) -> None:
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        angles = torch.outer(torch.arange(max_model_len).float(), frequencies)
        self.cos = torch.cat((angles.cos(), angles.cos()), dim=-1).to(device, dtype)
        # Le signe de la première moitié est dans la table : tourner, c'est échanger les deux moitiés.
        self.sin = torch.cat((-angles.sin(), angles.sin()), dim=-1).to(device, dtype)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosinus et sinus `[T, 1, head_dim]` des positions [T]."""
        return self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Tourne sur place `x` [T, têtes, head_dim] des angles donnés."""
    first, second = x.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    x.mul_(cos).addcmul_(swapped, sin)


class DecoderLayer:
    """Attention puis MLP, chacun précédé d'une RMSNorm et ajouté au flux résiduel."""

    def __init__(self, config: ModelConfig, take: "WeightTaker") -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.attention_norm = take("input_layernorm.weight")
        # Q, K, V d'une part, gate et up de l'autre, lisent la même entrée : un seul produit pour chaque groupe.
        bias = take.cat("self_attn.{}_proj.bias", "qkv") if config.qkv_bias else None
        self.qkv = Linear(take.cat("self_attn.{}_proj.weight", "qkv"), bias)
        self.q_norm = take("self_attn.q_norm.weight") if config.qk_norm else None
        self.k_norm = take("self_attn.k_norm.weight") if config.qk_norm else None
        self.out = Linear(take("self_attn.o_proj.weight"), take.optional("self_attn.o_proj.bias"))
        self.mlp_norm = take("post_attention_layernorm.weight")
        self.gate_up = Linear(take.cat("mlp.{}_proj.weight", ("gate", "up")))
        self.down = Linear(take("mlp.down_proj.weight"))

    def __call__(
        self,
        hidden: Tensor,
        step: StepInput,
        angles: tuple[Tensor, Tensor],
        attention: PagedAttention,
        cache: KVCache,
        keep: Tensor | None = None,
    ) -> Tensor:
        """`hidden` [T, hidden_size] → même forme, ou seulement les lignes `keep` si elles sont données."""
        x = F.rms_norm(hidden, hidden.shape[-1:], self.attention_norm, self.eps)
        q, kv = self.project(x, angles)
        cache.write(step.vectors, kv)
        x = attention(q, kv, cache, step.rectangles)
        if keep is not None:
            x, hidden = x.index_select(0, keep), hidden.index_select(0, keep)
        hidden = self.out(x).add_(hidden)
        x = F.rms_norm(hidden, hidden.shape[-1:], self.mlp_norm, self.eps)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up)).add_(hidden)

    def project(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Q `[T, num_heads, head_dim]` et K, V `[T, 2 × num_kv_heads, head_dim]`, tournés selon la position."""
        heads = self.qkv(x).view(len(x), -1, self.head_dim)
        num_rotated = self.num_heads + self.num_kv_heads
        if self.q_norm is not None:
            for part, weight in ((slice(0, self.num_heads), self.q_norm), (slice(self.num_heads, num_rotated), self.k_norm)):
                heads[:, part] = F.rms_norm(heads[:, part], (self.head_dim,), weight, self.eps)
        rotate_(heads[:, :num_rotated], *angles)
        return heads[:, : self.num_heads], heads[:, self.num_heads :]


class WeightTaker:
    """Prend les poids par leur nom dans un dictionnaire, en les en retirant : la mémoire ne les garde pas deux fois."""

    def __init__(self, weights: dict[str, Tensor], prefix: str) -> None:
        self.weights, self.prefix = weights, prefix

    def __call__(self, name: str) -> Tensor:
        return self.weights.pop(self.prefix + name)

    def optional(self, name: str) -> Tensor | None:
        return self.weights.pop(self.prefix + name, None)

    def cat(self, pattern: str, parts: str | tuple[str, ...]) -> Tensor:
        return torch.cat([self(pattern.format(part)) for part in parts])


class Decoder:
    """Le modèle entier. `weights` (noms de Hugging Face) est vidé au passage."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], max_model_len: int, block_size: int) -> None:
        self.config = config
        take = WeightTaker(weights, "model.")
        self.embedding = take("embed_tokens.weight")
        self.layers = [DecoderLayer(config, WeightTaker(weights, f"model.layers.{i}.")) for i in range(config.num_layers)]
        self.norm = take("norm.weight")
        self.head = Linear(self.embedding if config.tie_word_embeddings else weights.pop("lm_head.weight"))
        self.rotary = RotaryEmbedding(config, max_model_len, self.embedding.device, self.embedding.dtype)
        self.attention = PagedAttention(config.num_heads, config.num_kv_heads, config.head_dim, block_size)

    def new_caches(self, num_blocks: int) -> list[KVCache]:
        """Un cache vide par couche."""
        like, config = self.embedding, self.config
        shape = (num_blocks, self.attention.block_size, config.num_kv_heads, config.head_dim)
        return [KVCache(*shape, like.dtype, like.device) for _ in self.layers]

    @torch.inference_mode()
    def __call__(self, step: StepInput, caches: list[KVCache]) -> Tensor:
        """Calcule un pas : remplit les caches et rend les logits `[R, vocab_size]` des derniers tokens."""
        angles = self.rotary.angles(step.positions)
        hidden = self.embedding.index_select(0, step.token_ids)
        for layer, cache in zip(self.layers[:-1], caches, strict=False):
            hidden = layer(hidden, step, angles, self.attention, cache)
        # Après l'attention de la dernière couche, seules comptent les lignes dont on veut les logits.
        hidden = self.layers[-1](hidden, step, angles, self.attention, caches[-1], keep=step.last_rows)
        return self.head(F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.config.rms_norm_eps))
