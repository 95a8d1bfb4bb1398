"""Mesure ce que coûte la simulation : microsecondes par pas à 32 et 128 requêtes, puis la trace d'Azure entière.

La trace est un fichier que vous donnez (AzureLLMInferenceTrace_conv.csv, github.com/Azure/AzurePublicDataset, CC BY 4.0) ; sans
elle, seule la première partie tourne. Chaque mesure a son processus, dont on relève aussi la mémoire.

    .venv/bin/python benchmarks/simulator_speed.py --azure chemin/vers/AzureLLMInferenceTrace_conv.csv
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from minibatcher.bench.machine import describe_machine
from minibatcher.journal import build_scheduler
from minibatcher.simulation.scenario import Scenario
from minibatcher.simulation.simulator import simulate
from minibatcher.simulation.traces import read_azure_csv
from minibatcher.simulation.workload import repeat_workload, synthetic_workload, uniform_lengths

HERE = Path(__file__).parent
# Buts : microsecondes par pas, secondes et octets pour la trace entière.
TARGETS = {"32": 30, "128": 100, "azure_s": 60, "azure_bytes": 2**30}
SIZES = (5_000, 20_000, 80_000)


def measure_steps(job: dict) -> dict:
    """Quatre requêtes par place, prompts de 50 à 200 tokens, réponses de 100 à 400 : tout est compté, admissions comprises.

    26 000 blocs : ce qu'une A100-80 laisse à Llama 3 8B.
    """
    count = 4 * job["max_num_seqs"]
    workload = synthetic_workload(count, uniform_lengths(count, 50, 200, 0), uniform_lengths(count, 100, 400, 1))
    cost_model = Scenario().build_cost_model()
    durations = []
    for _ in range(5):
        scheduler = build_scheduler(num_blocks=26_000, max_num_seqs=job["max_num_seqs"])
        start = time.perf_counter()
        result = simulate(workload, cost_model, scheduler, fast_forward=job["fast_forward"])
        durations.append(time.perf_counter() - start)
    num_steps = result.usage.num_steps
    return {"num_steps": num_steps, "us_per_step": [1e6 * duration / num_steps for duration in durations]}


def measure_azure(job: dict) -> dict:
    """La trace (coupée ou répétée à `size` requêtes) : Llama 3 8B sur A100-80, au plus 256 requêtes à la fois."""
    start = time.perf_counter()
    workload = read_azure_csv(job["azure"])
    size = job["size"] or len(workload)
    if size > len(workload):
        workload = repeat_workload(workload, -(-size // len(workload)))
    workload = workload[:size]
    read = time.perf_counter()
    result = Scenario(max_num_seqs=256, max_model_len=16384).run(workload)
    simulated = time.perf_counter()
    summary, usage = result.summary().to_dict(), result.usage.to_dict()
    return {
        "num_requests": size,
        "read_s": read - start,
        "simulate_s": simulated - read,
        "metrics_s": time.perf_counter() - simulated,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "summary": summary,
        "usage": usage,
    }


def measure(job: dict) -> dict:
    done = subprocess.run([sys.executable, __file__, "--measure"], input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"La mesure a échoué :\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--azure", type=Path, metavar="FICHIER", help="la trace d'Azure")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulator_speed.json", help="fichier JSON à écrire")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        job = json.load(sys.stdin)
        print(json.dumps((measure_azure if "azure" in job else measure_steps)(job)))
        return
    report = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": describe_machine(), "targets": TARGETS, "steps": {}}
    for max_num_seqs in (32, 128):
        for fast_forward in (False, True):
            row = measure({"max_num_seqs": max_num_seqs, "fast_forward": fast_forward})
            row["median_us_per_step"] = statistics.median(row["us_per_step"])
            name = f"{max_num_seqs}, {'par sauts' if fast_forward else 'pas à pas'}"
            report["steps"][name] = row
            print(f"{name:<20} {row['median_us_per_step']:7.1f} µs par pas (but : {TARGETS[str(max_num_seqs)]})", flush=True)
    if args.azure:
        report["azure"] = []
        for size in (None, *SIZES):
            row = measure({"azure": str(args.azure.resolve()), "size": size})
            report["azure"].append(row)
            print(
                f"{row['num_requests']:>6} requêtes d'Azure : simulées en {row['simulate_s']:.1f} s "
                f"({1e6 * row['simulate_s'] / row['num_requests']:.0f} µs chacune, {row['usage']['num_steps']} pas), "
                f"bilan en {row['metrics_s']:.1f} s, mémoire {row['peak_bytes'] / 2**20:.0f} Mio",
                flush=True,
            )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"Écrit dans {args.out}")


if __name__ == "__main__":
    main()
