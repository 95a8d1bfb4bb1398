"""Ce que rapportent des poids rangés d'avance pour oneDNN : temps de tous les produits d'un pas de SmolLM2-135M, par taille de lot.

.venv/bin/python benchmarks/linear_packing.py
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from minibatcher.bench.machine import describe_machine
from minibatcher.model.linear import Linear

# (entrées, sorties) des quatre produits d'une couche, et de la tête : QKV, sortie d'attention, gate et up, down.
LAYER_SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))
NUM_LAYERS, HEAD_SHAPE = 30, (576, 49152)


def median_ms(layers: list[tuple[Linear, int]], inputs: dict[int, torch.Tensor], repeats: int) -> float:
    """Millisecondes, médiane, pour appliquer une fois chaque produit, dans l'ordre du modèle."""
    samples = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        for layer, width in layers:
            layer(inputs[width])
        samples.append(1000 * (time.perf_counter() - start))
    return statistics.median(samples[2:])


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="mesures par taille de lot (défaut : 9)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "linear_packing.json", help="fichier JSON")
    args = parser.parse_args()
    shapes = [*LAYER_SHAPES * NUM_LAYERS, HEAD_SHAPE]
    weights = [torch.randn(out, width) / width**0.5 for width, out in shapes]
    plain = [(Linear(w, pack=False), width) for w, (width, _) in zip(weights, shapes, strict=True)]
    packed = [(Linear(w), width) for w, (width, _) in zip(weights, shapes, strict=True)]
    num_products = sum(width * out for width, out in shapes)
    rows = []
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        inputs = {width: torch.randn(batch, width) for width in {width for width, _ in shapes}}
        times = {"F.linear": median_ms(plain, inputs, args.repeats), "rangés": median_ms(packed, inputs, args.repeats)}
        rates = {name: 2e-6 * batch * num_products / ms for name, ms in times.items()}
        rows.append({"batch": batch, "ms": times, "gflops_per_s": rates, "speedup": times["F.linear"] / times["rangés"]})
        print(
            f"lot {batch:4d} : F.linear {times['F.linear']:7.1f} ms ({rates['F.linear']:4.0f} GFLOP/s), "
            f"rangés {times['rangés']:7.1f} ms ({rates['rangés']:4.0f} GFLOP/s), × {rows[-1]['speedup']:.1f}",
            flush=True,
        )
    report = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": describe_machine(), "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
