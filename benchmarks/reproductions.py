"""Refait au simulateur quatre résultats connus, et les compare aux chiffres publiés. Aucune mesure de temps : mêmes octets partout.

1. Mémoire : part du cache qui contient vraiment des K et V, selon la réservation (article vLLM, SOSP 2023, figure 2).
2. Séquences en même temps : blocs paginés contre réservation contiguë (même article).
3. Préemption : 1 000 requêtes, 20 000 tokens de cache. Le débit plafonne ; il baisse une fois les recalculs comptés en temps.
4. Un prompt de 8 000 tokens au milieu de seize conversations : prefill d'abord, ou par morceaux de 512.

    .venv/bin/python benchmarks/reproductions.py
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np

from minibatcher.simulation.hardware import get_hardware
from minibatcher.simulation.memory import Contiguous, Paged, memory_limited
from minibatcher.simulation.scenario import Scenario
from minibatcher.simulation.sheets import get_model, kv_bytes_per_token, weight_bytes
from minibatcher.simulation.workload import WorkloadRequest

HERE = Path(__file__).parent
# Parts utiles de la figure 2 ; pour le nombre de séquences, 2,2 fois l'oracle et 4,3 fois le maximum (section 6.2).
PAPER_USEFUL = {"max": 0.204, "pow2": 0.268, "oracle": 0.382, "paged": 0.963}
PAPER_MORE_SEQUENCES = {"max": 4.3, "oracle": 2.2}
# Part de la crête de calcul qu'un prefill atteint : une hypothèse, pas une mesure.
PREFILL_FLOPS = 150e12
SLOTS = (32, 64, 96, 112, 128, 136, 144, 150, 160, 176, 200, 256, 384, 512)


def paper_memory() -> dict:
    """Longueurs exponentielles aux moyennes de ShareGPT (161 et 338 tokens), 15 700 places (OPT-13B sur A100-40)."""
    rng = np.random.default_rng(0)
    prompts, outputs = (1 + rng.exponential(mean, 3000).astype(int) for mean in (161, 338))
    kept = np.flatnonzero(prompts + outputs <= 2048)[:1000]
    kinds = {"max": Contiguous("max", 2048), "pow2": Contiguous("pow2"), "oracle": Contiguous("oracle"), "paged": Paged(16)}
    rows = {}
    for name, allocation in kinds.items():
        run = memory_limited(outputs[kept], 256, 15_700, prompt_lengths=prompts[kept], allocation=allocation)
        running = float(run.num_running[run.blocked].mean())
        rows[name] = {"shares": run.memory_shares(), "running": running, "paper_useful": PAPER_USEFUL[name]}
    for name, published in PAPER_MORE_SEQUENCES.items():
        rows[name] |= {"paged_runs_more": rows["paged"]["running"] / rows[name]["running"], "paper_paged_runs_more": published}
    return rows


def preemption_curves() -> dict:
    """Débit selon B : en tokens par pas (slots, préemptées qui recommencent), puis en tokens par seconde (Llama 3 8B, A100-80)."""
    random.seed(42)
    lengths = [random.randint(20, 400) for _ in range(1000)]
    model, hardware = get_model("Llama 3 8B"), get_hardware("A100-80")
    costs = {
        "step": weight_bytes(model) / hardware.bandwidth,
        "kv_token": kv_bytes_per_token(model) / hardware.bandwidth,
        "recomputed_token": model.flops_per_token / PREFILL_FLOPS,
    }
    rows = []
    for num_slots in SLOTS:
        naive = memory_limited(lengths, num_slots, 20_000, restart=True)
        recompute = memory_limited(lengths, num_slots, 20_000)
        rows.append(
            {
                "B": num_slots,
                "tokens_per_step": naive.tokens_per_step,
                "num_preemptions": naive.num_preemptions,
                "dropped_tokens": naive.dropped_tokens,
                "recompute_tokens_per_step": recompute.tokens_per_step,
                "recompute_num_preemptions": recompute.num_preemptions,
                "recompute_tokens_per_s": recompute.num_tokens / recompute.duration(**costs),
            }
        )
    mean_cache = sum(length * (length + 1) / 2 for length in lengths) / sum(lengths)
    return {"costs": costs, "mean_cache_tokens": mean_cache, "expected_knee": 20_000 / mean_cache, "rows": rows}


def long_prompt() -> dict:
    """Le plus long silence d'une conversation, en secondes, et le TTFT du long prompt."""
    chatting = [WorkloadRequest(f"r{i}", 0.0, 32, 200) for i in range(16)]
    workload = [*chatting, WorkloadRequest("long", 0.5, 8000, 10)]
    rows = {}
    for name, policy, budget in (("prefill d'abord", "prefill_first", 8192), ("morceaux de 512", "chunked_prefill", 512)):
        result = Scenario(scheduler_cls=policy, max_num_batched_tokens=budget).run(workload)
        silence = max(max(result.requests[request.request_id].itl) for request in chatting)
        rows[name] = {"worst_itl_s": silence, "long_ttft_s": result.requests["long"].ttft}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "reproductions.json", help="fichier JSON à écrire")
    args = parser.parse_args()
    memory, preemption, freeze = paper_memory(), preemption_curves(), long_prompt()
    print("Part du cache qui contient des tokens, quand la mémoire manque (entre parenthèses : l'article vLLM)")
    for name, row in memory.items():
        more = ""
        if "paged_runs_more" in row:
            more = f"   paginé : {row['paged_runs_more']:.1f} fois plus de séquences ({row['paper_paged_runs_more']})"
        print(f"  {name:<8}{row['shares']['useful']:6.1%} ({row['paper_useful']:.1%})   {row['running']:5.1f} séquences{more}")
    knee = f"coude attendu à B = {preemption['expected_knee']:.0f}"
    print(f"\nCache de 20 000 tokens : {preemption['mean_cache_tokens']:.1f} tokens par séquence, {knee}")
    print(f"  {'B':>4}{'tokens/pas':>12}{'préemptions':>13}{'jetés':>9}{'avec recalculs, tokens/s':>27}")
    for row in preemption["rows"]:
        figures = f"{row['tokens_per_step']:12.1f}{row['num_preemptions']:13d}{row['dropped_tokens']:9d}"
        print(f"  {row['B']:>4}{figures}{row['recompute_tokens_per_s']:27.0f}")
    print("\nUn prompt de 8 000 tokens au milieu de seize conversations")
    for name, row in freeze.items():
        print(
            f"  {name:<18} plus long silence {row['worst_itl_s'] * 1000:7.1f} ms   TTFT du long prompt {row['long_ttft_s']:.2f} s"
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"memory": memory, "preemption": preemption, "long_prompt": freeze}
    args.out.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"Écrit dans {args.out}")


if __name__ == "__main__":
    main()
