"""Attention paginée en torch : lire un cache KV éparpillé en blocs, pour tout un lot à la fois.

Un pas mélange des requêtes qui calculent un token (decode) et des morceaux de prompt (prefill). On range celles qui se ressemblent
dans des **rectangles** : dans un rectangle, toutes les requêtes ont autant de tokens à calculer et de blocs à lire, à peu de
bourrage près. Un rectangle coûte quelques appels à torch, quel que soit le nombre de requêtes qu'il contient. Le decode de tout un
lot tient le plus souvent dans un ou deux rectangles.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Un rectangle accepte une requête de plus tant que sa surface reste inférieure à ce multiple de la surface utile.
MAX_PADDING = 1.3


@dataclass
class Rectangle:
    """Des requêtes voisines dans le lot, traitées d'un seul appel.

    `S` requêtes, `n` tokens à calculer au plus pour chacune, `C` emplacements de cache lus.

    - `rows` : tranche des lignes du lot qui leur appartiennent ;
    - `pages` [2, …] (int64) : pages de K puis de V à lire, dans l'ordre (requête, tête KV, bloc) ;
    - `mask` : 0 où un token peut regarder, -inf ailleurs ;
    - `padded_rows` [S × n], `valid` : si les requêtes n'ont pas toutes `n` tokens, d'où vient chaque ligne du rectangle, et
      lesquelles ne sont pas du bourrage ; `None` sinon ;
    - `value_vectors` [S × num_heads, C] (int64) : pour le decode, les vecteurs V que lit chaque tête, par leur numéro ;
    - `is_fresh` : une seule requête, au début de son prompt. K et V viennent d'être calculés : inutile de relire le cache.
    """

    rows: slice
    num_seqs: int
    num_queries: int
    pages: Tensor | None = None
    mask: Tensor | None = None
    padded_rows: Tensor | None = None
    valid: Tensor | None = None
    is_fresh: bool = False
    value_vectors: Tensor | None = None


def cut_rectangles(shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Découpe des requêtes triées, `(tokens à calculer, blocs à lire)`, en tranches `(début, fin)` peu bourrées."""
    cuts, start, useful, width, height = [], 0, 0, 0, 0
    for index, (num_queries, num_blocks) in enumerate(shapes):
        new_width, new_height = max(width, num_queries), max(height, num_blocks)
        new_useful = useful + num_queries * num_blocks
        if index > start and (index + 1 - start) * new_width * new_height > MAX_PADDING * new_useful:
            cuts.append((start, index))
            start, new_useful, new_width, new_height = index, num_queries * num_blocks, num_queries, num_blocks
        useful, width, height = new_useful, new_width, new_height
    if shapes:
        cuts.append((start, len(shapes)))
    return cuts


class KVCache:
    """Le cache d'une couche : un tenseur `[num_blocks, 2, num_kv_heads, block_size, head_dim]` (0 pour K, 1 pour V).

    Dans un bloc, les `block_size` vecteurs d'une tête se suivent : on appelle **page** ce morceau contigu. Deux façons de lire une
    séquence : copier ses pages dans l'ordre de sa table (`read`), ce qui donne la matrice `[C, head_dim]` qu'un produit attend ; ou
    additionner ses vecteurs là où ils sont (`weighted_sum`).
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        # Des zéros, et non de la mémoire quelconque : 0 × NaN vaut NaN, même derrière un masque.
        self.blocks = torch.zeros((num_blocks, 2, num_kv_heads, block_size, head_dim), dtype=dtype, device=device)
        self._pages = self.blocks.view(-1, block_size * head_dim)
        self._vectors = self.blocks.view(-1, head_dim)

    def write(self, vectors: Tensor, kv: Tensor) -> None:
        """Range `kv` [T, 2 × num_kv_heads, head_dim] (K puis V) aux lignes `vectors` [T × 2 × num_kv_heads]."""
        self._vectors.index_copy_(0, vectors, kv.flatten(0, 1))

    def read(self, pages: Tensor, scratch: Tensor) -> Tensor:
        """Copie les pages dans `scratch` ; rend `[len(pages), block_size × head_dim]`, valable jusqu'à la prochaine lecture."""
        return torch.index_select(self._pages, 0, pages, out=scratch[: pages.numel()])

    def weighted_sum(self, vectors: Tensor, weights: Tensor) -> Tensor:
        """Par ligne, la somme des vecteurs désignés par leur numéro, pondérée : `[N, C]` et `[N, C]` → `[N, head_dim]`.

        `embedding_bag` lit les vecteurs là où ils sont : aucune page n'est copiée.
        """
        return F.embedding_bag(vectors, self._vectors, mode="sum", per_sample_weights=weights)

    def scrub(self, blocks: list[int]) -> None:
        """Efface les NaN et infinis laissés dans ces blocs par un calcul raté."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self.blocks.device)
        self.blocks.index_copy_(0, index, self.blocks.index_select(0, index).nan_to_num_(0.0, 0.0, 0.0))


class PagedAttention:
    """Attention causale d'un lot, pour un modèle et une géométrie de cache donnés.

    Le tampon de lecture est partagé par toutes les couches : demander de la mémoire neuve à chaque lecture coûte plus cher que la
    copie, et un tampon qui resert tout de suite reste dans le cache du processeur.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim, self.block_size = num_heads, num_kv_heads, head_dim, block_size
        self.group = num_heads // num_kv_heads
        self.scale = head_dim**-0.5
        self._scratch = torch.empty(0)

    def vectors(self, slots: Tensor) -> Tensor:
        """Lignes de cache où ranger K et V : `slots` [T] (bloc × block_size + décalage) → [T × 2 × num_kv_heads]."""
        block, offset = slots // self.block_size, slots % self.block_size
        heads = torch.arange(2 * self.num_kv_heads, device=slots.device)
        return ((block[:, None] * 2 * self.num_kv_heads + heads) * self.block_size + offset[:, None]).flatten()

    def rectangle(self, first_row: int, starts: list[int], counts: list[int], tables: list[list[int]], like: Tensor) -> Rectangle:
        """Prépare un rectangle : par requête, `starts[i]` tokens déjà calculés, `counts[i]` à calculer, table `tables[i]`.

        `like` donne le dtype et l'appareil du masque.
        """
        num_seqs, num_queries, num_rows = len(starts), max(counts), sum(counts)
        rows = slice(first_row, first_row + num_rows)
        if num_seqs == 1 and starts[0] == 0 and num_queries > 1:
            return Rectangle(rows, 1, num_queries, is_fresh=True)
        used = [-(-(start + count) // self.block_size) for start, count in zip(starts, counts, strict=True)]
        height = max(used)
        # Le bourrage répète le dernier bloc de la requête elle-même : elle ne lit jamais, même masqué, le contenu d'une autre.
        blocks = torch.tensor([table[:n] + [table[n - 1]] * (height - n) for table, n in zip(tables, used, strict=True)])
        kv_head = torch.arange(2 * self.num_kv_heads).view(2, 1, self.num_kv_heads, 1)
        pages = blocks[None, :, None, :] * 2 * self.num_kv_heads + kv_head
        first, count = torch.tensor(starts)[:, None], torch.tensor(counts)[:, None]
        query = torch.arange(num_queries)[None, :].minimum(count - 1)  # les lignes de bourrage répètent la dernière
        hidden = torch.arange(height * self.block_size) > (first + query)[:, :, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        # Les têtes qui partagent une tête KV sont des lignes de plus : K et V ne sont lus qu'une fois par groupe.
        if num_queries == 1:  # une ligne par tête KV, pour le produit groupé du decode
            mask = mask.repeat_interleave(self.num_kv_heads, dim=0).expand(-1, self.group, -1)
        else:
            mask = mask[:, None].expand(-1, self.group, -1, -1).flatten(1, 2)[:, None]
        padded_rows = valid = None
        if num_rows != num_seqs * num_queries:
            offsets = torch.tensor(counts).cumsum(0)[:, None] - count
            padded_rows = (offsets + query).flatten().to(like.device)
            valid = (torch.arange(num_queries) < count).flatten().nonzero()[:, 0].to(like.device)
        pages, mask = pages.reshape(2, -1).to(like.device), mask.to(like.device, like.dtype).contiguous()
        rectangle = Rectangle(rows, num_seqs, num_queries, pages, mask, padded_rows, valid)
        if num_queries == 1:
            offsets = torch.arange(self.block_size, device=like.device)
            vectors = (pages[1][:, None] * self.block_size + offsets).view(num_seqs * self.num_kv_heads, -1)
            rectangle.value_vectors = vectors.repeat_interleave(self.group, dim=0)
        return rectangle

    def __call__(self, q: Tensor, kv: Tensor, cache: KVCache, rectangles: list[Rectangle]) -> Tensor:
        """`q` [T, num_heads, head_dim], `kv` [T, 2 × num_kv_heads, head_dim], déjà écrits → [T, num_heads × head_dim]."""
        outputs = []
        for rectangle in rectangles:
            mine = q[rectangle.rows]
            if rectangle.is_fresh:
                outputs.append(self._fresh(mine, *kv[rectangle.rows].chunk(2, dim=1)))
            elif rectangle.num_queries == 1:
                outputs.append(self._decode(mine, cache, rectangle))
            else:
                outputs.append(self._prefill(mine, cache, rectangle))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _fresh(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Une requête au début de son prompt."""
        k, v = (x.repeat_interleave(self.group, dim=1).transpose(0, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True).transpose(0, 1).flatten(1)

    def _decode(self, q: Tensor, cache: KVCache, rectangle: Rectangle) -> Tensor:
        """Un token par requête : un produit groupé avec les K, une somme pondérée des V."""
        keys = rectangle.pages[0]
        num_groups = rectangle.num_seqs * self.num_kv_heads
        q = q.reshape(num_groups, self.group, self.head_dim)
        k = cache.read(keys, self._buffer(keys, cache)).view(num_groups, -1, self.head_dim)
        probabilities = torch.baddbmm(rectangle.mask, q, k.transpose(1, 2), alpha=self.scale).softmax(dim=-1)
        return cache.weighted_sum(rectangle.value_vectors, probabilities.flatten(0, 1)).view(rectangle.num_seqs, -1)

    def _prefill(self, q: Tensor, cache: KVCache, rectangle: Rectangle) -> Tensor:
        """Plusieurs tokens par requête, qui regardent aussi ce que le cache contient déjà."""
        num_seqs, num_queries = rectangle.num_seqs, rectangle.num_queries
        if rectangle.padded_rows is not None:
            q = q.index_select(0, rectangle.padded_rows)
        q = q.reshape(num_seqs, num_queries, self.num_kv_heads, self.group, self.head_dim)
        q = q.permute(0, 2, 3, 1, 4).flatten(2, 3)
        pages = rectangle.pages.flatten()
        kv = cache.read(pages, self._buffer(pages, cache)).view(2, num_seqs, self.num_kv_heads, -1, self.head_dim)
        out = F.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=rectangle.mask)
        out = out.unflatten(2, (self.group, num_queries)).permute(0, 3, 1, 2, 4).reshape(num_seqs * num_queries, -1)
        return out if rectangle.valid is None else out.index_select(0, rectangle.valid)

    def _buffer(self, pages: Tensor, cache: KVCache) -> Tensor:
        if len(self._scratch) < len(pages):
            self._scratch = cache.blocks.new_empty((len(pages), self.block_size * self.head_dim))
        return self._scratch
