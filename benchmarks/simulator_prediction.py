"""Calibre le modèle de coût sur une séance du moteur réel (SmolLM2, CPU), puis prédit trois séances qu'il n'a pas vues.

Les trois changent max_num_seqs, les longueurs et les arrivées. On compare la durée totale et le TPOT p95 mesurés et prédits, et on
montre aussi ce qui se prédit mal.

    .venv/bin/python benchmarks/simulator_prediction.py
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from minibatcher.bench.machine import describe_machine
from minibatcher.bench.run import CALIBRATION_PHASES, run_calibration, run_workload
from minibatcher.journal import build_scheduler
from minibatcher.metrics import request_metrics, summarize
from minibatcher.serving.llm import LLM
from minibatcher.simulation.replay import replay
from minibatcher.simulation.simulator import simulate
from minibatcher.simulation.workload import gamma_arrivals, synthetic_workload, uniform_lengths

HERE = Path(__file__).parent
TARGET = 0.15
CALIBRATION_OPTIONS = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
COMMON = {"device": "cpu", "dtype": "float32", "max_model_len": 2048, "enable_prefix_caching": False}


def runs() -> dict[str, dict]:
    """Les trois séances que l'on prédit."""
    return {
        "48 places, tout d'un coup": {
            "options": {"max_num_seqs": 48, "max_num_batched_tokens": 512},
            "workload": synthetic_workload(80, uniform_lengths(80, 20, 120, 10), uniform_lengths(80, 60, 140, 11)),
        },
        "8 places, longs prompts, rafales": {
            "options": {"max_num_seqs": 8, "max_num_batched_tokens": 256},
            "workload": synthetic_workload(
                40, uniform_lengths(40, 300, 900, 20), uniform_lengths(40, 20, 80, 21), gamma_arrivals(40, 1.0, 0.4, 22)
            ),
        },
        "24 places, cache trop petit, boucle fermée": {
            "options": {"max_num_seqs": 24, "max_num_batched_tokens": 2048, "kv_cache_memory": 130 * 2**20},
            "max_concurrency": 24,
            "workload": synthetic_workload(60, uniform_lengths(60, 50, 250, 30), uniform_lengths(60, 40, 160, 31)),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    out = HERE / "results" / "simulator_prediction.json"
    parser.add_argument("--out", type=Path, default=out, help="fichier JSON à écrire")
    parser.add_argument("--save-journals", type=Path, metavar="DOSSIER", help="y écrire le journal de chaque séance")
    args = parser.parse_args()
    report = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": describe_machine(), "model": "smollm2", "target": TARGET}
    calibration = run_calibration(LLM("smollm2", **COMMON, **CALIBRATION_OPTIONS))
    report["calibration"] = {"options": CALIBRATION_OPTIONS, "phases": CALIBRATION_PHASES, **asdict(calibration)}
    print(
        f"Calibré sur {calibration.num_fitted} pas ; sur {calibration.num_unseen} autres, erreur médiane "
        f"{calibration.median_error:.1%}, p95 {calibration.p95_error:.1%}, total {calibration.total_error:+.1%}"
    )
    rows = {}
    for name, run in runs().items():
        llm = LLM("smollm2", **COMMON, **run["options"])
        run_workload(llm, synthetic_workload(4, 64, 4))  # mise en route
        journal = run_workload(llm, run["workload"], run.get("max_concurrency"))
        if args.save_journals:
            args.save_journals.mkdir(parents=True, exist_ok=True)
            journal.save(args.save_journals / f"{name}.jsonl")
        difference = replay(journal).difference
        measured = summarize(request_metrics(journal.events).values())
        result = simulate(
            run["workload"], calibration.cost_model, build_scheduler(**journal.settings), max_concurrency=run.get("max_concurrency")
        )
        predicted = result.summary()
        row = {"options": run["options"], "max_concurrency": run.get("max_concurrency"), "replay_difference": difference}
        quantities = {
            "duration": (measured.duration, predicted.duration),
            "tpot_p95": (measured.tpot.p95, predicted.tpot.p95),
            "tpot_p50": (measured.tpot.p50, predicted.tpot.p50),
            "ttft_p50": (measured.ttft.p50, predicted.ttft.p50),
            "ttft_p95": (measured.ttft.p95, predicted.ttft.p95),
            "itl_p99": (measured.itl.p99, predicted.itl.p99),
            "output_throughput": (measured.output_throughput, predicted.output_throughput),
            "num_preemptions": (measured.num_preemptions, predicted.num_preemptions),
        }
        for quantity, (real, simulated) in quantities.items():
            row[quantity] = {"measured": real, "predicted": simulated, "error": simulated / real - 1 if real else None}
        rows[name] = row
        errors = "  ".join(f"{q} {row[q]['error']:+.1%}" for q in quantities if row[q]["error"] is not None)
        print(f"{name:<44} durée {measured.duration:6.1f} s   {errors}   rejeu : {difference or 'identique'}", flush=True)
    worst = max(abs(row[quantity]["error"]) for row in rows.values() for quantity in ("duration", "tpot_p95"))
    report |= {"runs": rows, "worst_error": worst}
    print(f"Pire erreur (durée totale, TPOT p95) sur les trois séances prédites : {worst:.1%} (but : {TARGET:.0%})")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"Écrit dans {args.out}")


if __name__ == "__main__":
    main()
