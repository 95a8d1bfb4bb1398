"""`minibatcher simulate` : une charge, un scénario, et une ligne par combinaison de réglages."""

import argparse
import csv
import io
import json
import math
import sys
from functools import cache
from pathlib import Path

from minibatcher.errors import ConfigError, require_int
from minibatcher.policies import POLICIES
from minibatcher.simulation.cost import CostModel
from minibatcher.simulation.hardware import HARDWARE, this_cpu
from minibatcher.simulation.scenario import Scenario, grid, sweep
from minibatcher.simulation.sheets import (
    MODELS,
)
from minibatcher.simulation.traces import read_workload, write_jsonl
from minibatcher.simulation.workload import (
    WorkloadRequest,
    gamma_arrivals,
    lognormal_lengths,
    synthetic_workload,
)

MAX_OVER_MEAN = 4
# Ce qui fabrique une charge, et n'a pas de sens pour une trace.
SYNTHETIC = {"request_rate": math.inf, "burstiness": 1.0, "input_len": 512, "output_len": 128, "length_cv": 1.0, "prefix_len": 0}

# Les options qui acceptent plusieurs valeurs, et le type de chacune : ce sont les champs de `Scenario`.
SWEPT = {
    "model": (str, f"fiche ({', '.join(MODELS)}), ou chemin d'un config.json"),
    "hardware": (str, f"fiche ({', '.join(HARDWARE)}), ou « cpu » : cette machine, mesurée"),
    "dtype": (str, "type des poids et des calculs"),
    "kv_cache_dtype": (str, "type du cache : auto (celui des poids), float16, fp8, int8…"),
    "gpu_memory_utilization": (float, "part de la mémoire que poids et cache peuvent occuper"),
    "num_blocks": (int, "taille du cache en blocs, à la place de la précédente"),
    "max_num_seqs": (int, "requêtes en cours au plus"),
    "max_num_batched_tokens": (int, "budget de tokens d'un pas"),
    "max_model_len": (int, "longueur maximale d'une séquence (défaut : celle du modèle)"),
    "block_size": (int, "tokens par bloc"),
    "scheduler_cls": (str, f"politique : {', '.join(POLICIES)}"),
    "max_concurrency": (int, "boucle fermée : nombre de clients, qui attendent leur réponse avant de redemander"),
}
SWITCHES = {
    "enable_prefix_caching": "réutiliser les préfixes déjà calculés",
    "enable_chunked_prefill": "couper les longs prompts en morceaux",
}


def add_simulate_options(parser: argparse.ArgumentParser) -> None:
    """Les options de la commande, nommées comme celles de `LLM` et de `vllm bench serve`."""
    engine = parser.add_argument_group("moteur (plusieurs valeurs : toutes sont comparées)")
    for name, (kind, text) in SWEPT.items():
        default = getattr(Scenario, name)
        shown = f" (défaut : {default})" if default is not None else ""
        engine.add_argument(_flag(name), type=kind, nargs="+", metavar="VALEUR", default=None, help=text + shown)
    for name, text in SWITCHES.items():
        engine.add_argument(_flag(name), action=argparse.BooleanOptionalAction, default=True, help=f"{text} (défaut : oui)")
    engine.add_argument("--cost-model", type=Path, metavar="FICHIER", help="coefficients calibrés (JSON), à la place des fiches")
    load = parser.add_argument_group("charge")
    load.add_argument(
        "--dataset-path", type=Path, metavar="FICHIER", help="trace à rejouer : CSV d'Azure, JSON ShareGPT ou notre JSONL"
    )
    load.add_argument(
        "--dataset-name", choices=("azure", "sharegpt", "jsonl"), help="format de la trace (défaut : selon l'extension)"
    )
    load.add_argument("--num-prompts", type=int, metavar="N", help="nombre de requêtes (défaut : 1000, ou toute la trace)")
    load.add_argument(
        "--request-rate",
        type=float,
        metavar="R",
        default=SYNTHETIC["request_rate"],
        help="requêtes par seconde (défaut : inf, toutes d'un coup)",
    )
    load.add_argument(
        "--burstiness", type=float, metavar="B", default=SYNTHETIC["burstiness"], help="1 : Poisson (défaut) ; moins : par rafales"
    )
    load.add_argument(
        "--input-len", type=int, metavar="N", default=SYNTHETIC["input_len"], help="longueur moyenne des prompts (défaut : 512)"
    )
    load.add_argument(
        "--output-len", type=int, metavar="N", default=SYNTHETIC["output_len"], help="longueur moyenne des réponses (défaut : 128)"
    )
    load.add_argument(
        "--length-cv",
        type=float,
        metavar="CV",
        default=SYNTHETIC["length_cv"],
        help=f"écart type des longueurs sur leur moyenne (défaut : 1 ; au plus {MAX_OVER_MEAN} fois la moyenne)",
    )
    load.add_argument(
        "--prefix-len",
        type=int,
        metavar="N",
        default=SYNTHETIC["prefix_len"],
        help="tokens de préfixe commun à tous les prompts (défaut : 0)",
    )
    load.add_argument("--seed", type=int, metavar="N", default=0, help="graine (défaut : 0)")
    load.add_argument("--allow-refused", action="store_true", help="continuer sans les requêtes que le moteur refuse")
    out = parser.add_argument_group("résultats")
    out.add_argument("--ttft-target", type=float, metavar="S", help="TTFT visé, en secondes, pour le goodput")
    out.add_argument("--tpot-target", type=float, metavar="S", help="TPOT visé, en secondes, pour le goodput")
    out.add_argument("--out", type=Path, metavar="DOSSIER", help="y écrire le bilan, la charge, le journal et une trace Perfetto")
    out.add_argument("--jobs", type=int, metavar="N", default=-1, help="processus en parallèle (défaut : un par cœur)")
    parser.set_defaults(run=run_simulate)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def run_simulate(args: argparse.Namespace) -> int:
    """Simule, affiche le bilan (un réglage) ou le tableau (plusieurs), écrit les fichiers demandés."""
    from tqdm import tqdm

    chosen = {name: getattr(args, name) for name in SWEPT if getattr(args, name) is not None}
    if "hardware" in chosen:
        chosen["hardware"] = [this_cpu() if name.lower() == "cpu" else name for name in chosen["hardware"]]
    cost_model = CostModel.load(args.cost_model) if args.cost_model else None
    scenario = Scenario(
        **{name: getattr(args, name) for name in (*SWITCHES, "ttft_target", "tpot_target")},
        **{name: values[0] for name, values in chosen.items()},
        cost_model=cost_model,
    )
    workload = _workload(args)
    tokens = sum(request.num_prompt_tokens for request in workload), sum(request.num_output_tokens for request in workload)
    print(f"{len(workload)} requêtes : {_number(tokens[0])} tokens de prompt, {_number(tokens[1])} de réponse.")
    swept = {name: values for name, values in chosen.items() if len(values) > 1}
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_jsonl(args.out / "charge.jsonl", workload)
    if swept:
        with tqdm(total=len(grid(swept)), desc="Simulations", disable=None) as bar:
            rows = sweep(scenario, workload, swept, args.jobs, bar.update, args.allow_refused)
        print(format_table(rows, list(swept)))
        if args.out:
            (args.out / "balayage.csv").write_text(_csv(rows), encoding="utf-8")
            (args.out / "balayage.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            print(f"Écrit dans {args.out} : charge.jsonl, balayage.csv, balayage.json.")
        return 0 if any(row["error"] is None for row in rows) else 2
    with tqdm(total=len(workload), desc="Requêtes", unit="req", disable=None) as bar:
        result = scenario.run(workload, allow_refused=args.allow_refused, progress=bar.update)
    if len(result.refused) == len(workload):
        raise ConfigError(f"Toutes les requêtes sont refusées. La première : {next(iter(result.refused.values()))}")
    print(format_summary(result.to_dict(args.ttft_target, args.tpot_target)))
    if args.out:
        result.save(args.out, args.ttft_target, args.tpot_target)
        print(f"Écrit dans {args.out} : bilan.json, charge.jsonl, journal.jsonl, trace.json (à ouvrir sur ui.perfetto.dev).")
    return 0


def _workload(args: argparse.Namespace) -> list[WorkloadRequest]:
    if args.num_prompts is not None:
        require_int("--num-prompts", args.num_prompts, 1)
    if args.dataset_path is None and args.dataset_name is not None:
        raise ConfigError("--dataset-name dit le format d'une trace : donnez aussi --dataset-path.")
    if args.dataset_path is not None:
        useless = [_flag(name) for name, default in SYNTHETIC.items() if getattr(args, name) != default]
        if useless:
            raise ConfigError(f"La trace donne déjà les longueurs et les arrivées : retirez {', '.join(useless)}.")
        workload = read_workload(args.dataset_path, args.dataset_name, _count_tokens)
        return workload[: args.num_prompts] if args.num_prompts is not None else workload
    count = 1000 if args.num_prompts is None else args.num_prompts
    require_int("--input-len", args.input_len, 1)
    require_int("--output-len", args.output_len, 1)
    return synthetic_workload(
        count,
        lognormal_lengths(count, args.input_len, args.length_cv, 1, MAX_OVER_MEAN * args.input_len, args.seed),
        lognormal_lengths(count, args.output_len, args.length_cv, 1, MAX_OVER_MEAN * args.output_len, args.seed + 1),
        gamma_arrivals(count, args.request_rate, args.burstiness, args.seed),
        num_prefix_tokens=args.prefix_len,
        seed=args.seed,
    )


def _count_tokens(text: str) -> int:
    """Longueur d'un texte, selon le tokenizer du modèle embarqué."""
    return len(_tokenizer().encode(text))


@cache
def _tokenizer():
    from minibatcher.model.embedded import ensure_embedded_model
    from minibatcher.model.weights import load_tokenizer

    print("Longueurs comptées avec le tokenizer du modèle embarqué.", file=sys.stderr)
    return load_tokenizer(ensure_embedded_model())


def _number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}".replace(",", "\u202f").replace(".", ",")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    return f"{_number(1000 * seconds, 1)} ms" if seconds < 1 else f"{_number(seconds, 2)} s"


def format_summary(report: dict) -> str:
    """Le bilan d'une simulation (`SimulationResult.to_dict`), en quelques lignes."""
    summary, usage = report["summary"], report["usage"]
    lines = [
        f"Durée simulée      {_duration(summary['duration'])}, {_number(usage['num_steps'])} pas",
        f"Débit              {_number(summary['output_throughput'])} tokens/s, "
        f"{_number(summary['request_throughput'], 2)} requêtes/s",
    ]
    if summary["goodput"] is not None:
        lines.append(f"Goodput            {_number(summary['goodput'], 2)} requêtes/s dans les délais")
    lines.append(f"{'':<19}{'p50':>12}{'p95':>12}{'p99':>12}")
    for name, label in (("queue_time", "Attente"), ("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "Bout en bout")):
        lines.append(f"{label:<19}" + "".join(f"{_duration(summary[name][q]):>12}" for q in ("p50", "p95", "p99")))
    shares = " ; ".join(
        f"{label} {_number(100 * usage[name])} %"
        for name, label in (("slots", "places"), ("blocks", "blocs"), ("budget", "budget"))
    )
    lines.append(f"Occupation         {shares}")
    lines.append(
        f"Préemptions        {_number(summary['num_preemptions'])}, {_number(usage['recomputed_tokens'])} tokens recalculés"
    )
    if report["refused"]:
        first = next(iter(report["refused"].values()))
        lines.append(f"Refusées           {_number(len(report['refused']))}, la première : {first}")
    return "\n".join(lines)


def format_table(rows: list[dict], names: list[str]) -> str:
    """Une ligne par réglage : ceux que l'on compare, puis débit et latences."""
    headers = [*names, "tokens/s", "goodput", "TTFT p95", "TPOT p95", "préemptions", "blocs"]
    cells = []
    for row in rows:
        start = [str(row[name]) for name in names]
        if row["error"] is not None:
            cells.append([*start, f"impossible : {row['error']}"])
            continue
        goodput = "—" if row["goodput"] is None else _number(row["goodput"], 2)
        latencies = [_duration(row["ttft_p95"]), _duration(row["tpot_p95"])]
        usage = [_number(row["num_preemptions"]), f"{_number(100 * row['blocks'])} %"]
        cells.append([*start, _number(row["output_throughput"]), goodput, *latencies, *usage])
    full = [line for line in [headers, *cells] if len(line) == len(headers)]
    widths = [max(len(line[i]) for line in [*full, *(c for c in cells if i < len(names))]) for i in range(len(headers))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=False)) for line in [headers, *cells])


def _csv(rows: list[dict]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
