"""Produits matrice-vecteur rapides sur CPU : poids réarrangés une fois pour toutes.

Servir, c'est relire les mêmes poids à chaque pas. Sur CPU, `torch.nn.functional.linear` les réarrange à chaque appel ; oneDNN
accepte des poids déjà rangés à son goût. Le gain mesuré est un facteur 2 à 4, de 1 à 256 lignes (benchmarks/linear_packing.py).

L'opérateur utilisé est celui que torch.compile emploie lui-même ; il n'a pas de nom public. S'il manque, on le dit et on
revient à `torch.nn.functional.linear`.
"""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

# Taille de lot annoncée à oneDNN pour choisir le rangement ; les autres tailles s'en servent aussi bien.
PACKING_BATCH = 32


def packing_available() -> bool:
    """Vrai si cette version de torch sait ranger d'avance des poids float32 pour oneDNN."""
    ops = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and hasattr(ops, "_linear_pointwise") and hasattr(ops, "_reorder_linear_weight")


class Linear:
    """`x @ weight.T + bias`, pour un poids `[out, in]` qui ne changera plus.

    Appel : `x [..., in]` → `[..., out]`, même dtype. Sur CPU en float32, le poids est rangé pour oneDNN à la construction ; ne
    gardez alors pas de référence au tenseur d'origine, ou la mémoire est payée deux fois.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, pack: bool = True) -> None:
        self.bias = bias
        self.packed = False
        if pack and weight.device.type == "cpu" and weight.dtype == torch.float32:
            if packing_available():
                weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_BATCH)
                self.packed = True
            else:
                warnings.warn(
                    "Cette version de torch ne sait pas ranger les poids pour oneDNN : le moteur reste juste, mais sera "
                    "deux à quatre fois plus lent sur CPU.",
                    stacklevel=2,
                )
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.default(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)
