"""La démonstration : un vrai modèle, servi par transformers puis par notre moteur, mêmes prompts, mêmes mots."""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm.auto import tqdm

from minibatcher.bench.baselines import Run, TransformersBaseline, run_minibatcher
from minibatcher.bench.machine import describe_machine
from minibatcher.bench.prompts import demo_messages
from minibatcher.engine import Event
from minibatcher.metrics import Summary, summarize
from minibatcher.model.weights import resolve_model
from minibatcher.request import SamplingParams
from minibatcher.serving.llm import LLM
from minibatcher.viz.style import french_number

# La requête par requête est trop lente pour les 32 prompts : un sur quatre suffit à mesurer son débit.
SEQUENTIAL_STRIDE = 4
TIMELINE_SLOTS = 8
SHOWN_PROMPT = 4


@dataclass
class Row:
    """Une ligne du tableau. `identical` : part des réponses égales, token pour token, à celles de transformers."""

    name: str
    num_prompts: int
    summary: Summary
    identical: float


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Nombre de tokens égaux au début des deux suites."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def run_demo(model: str, max_tokens: int, out: Path) -> list[Row]:
    """Mesure, affiche le tableau, écrit `demo.json`, `chronogramme.png` et `debits.png` dans `out` ; rend les lignes."""
    out.mkdir(parents=True, exist_ok=True)
    folder = resolve_model(model)
    print("Chargement de transformers…")
    baseline = TransformersBaseline(folder)
    print("Chargement de minibatcher, une fois pour 1 requête à la fois, une fois pour 32…")
    single = LLM(folder, max_num_seqs=1, dtype="float32", device="cpu")
    batched = LLM(folder, max_num_seqs=32, dtype="float32", device="cpu")
    texts = [batched.apply_chat_template(messages) for messages in demo_messages()]
    prompts = [batched.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    few = prompts[::SEQUENTIAL_STRIDE]

    def engine(llm: LLM, chosen: list[list[int]]) -> Callable[..., Run]:
        return lambda count, on_token: run_minibatcher(llm, chosen, count, on_token)

    def reference(chosen: list[list[int]], batch_size: int) -> Callable[..., Run]:
        return lambda count, on_token: baseline.generate(chosen, count, batch_size, on_token)

    plans = [
        ("transformers, une par une", few, reference(few, 1)),
        ("minibatcher, 1 séquence", few, engine(single, few)),
        ("transformers, lot statique de 32", prompts, reference(prompts, 32)),
        ("minibatcher, 32 séquences", prompts, engine(batched, prompts)),
    ]
    runs: dict[str, Run] = {}
    for name, chosen, measure in plans:
        measure(2, None)  # mise en route : premières allocations, premiers appels
        with tqdm(total=len(chosen) * max_tokens, desc=f"{name:<32}", unit="token", smoothing=0.05) as bar:
            runs[name] = measure(max_tokens, bar.update)

    # La référence d'un prompt : transformers seul s'il a été mesuré ainsi, sinon transformers en lot.
    expected = dict(enumerate(runs["transformers, lot statique de 32"].token_ids))
    expected.update(zip(range(0, len(prompts), SEQUENTIAL_STRIDE), runs["transformers, une par une"].token_ids, strict=True))
    rows = []
    for name, chosen, _ in plans:
        numbers = range(0, len(prompts), len(prompts) // len(chosen))
        same = [tokens == expected[i] for i, tokens in zip(numbers, runs[name].token_ids, strict=True)]
        rows.append(Row(name, len(chosen), summarize(runs[name].requests), sum(same) / len(same)))
    timeline = record_timeline(batched, prompts, max_tokens)
    print()
    print(format_table(rows))
    print(
        f"\nToutes les requêtes arrivent ensemble : le TTFT compte l'attente. {max_tokens} tokens par réponse, greedy, float32. "
        f"« Une par une » et « 1 séquence » : {len(few)} des {len(prompts)} prompts.\n"
    )
    answer = runs["minibatcher, 32 séquences"].token_ids[SHOWN_PROMPT]
    end = next((i for i, token in enumerate(answer) if token in batched.model_config.eos_token_ids), len(answer))
    print(f"Un prompt : {demo_messages()[SHOWN_PROMPT][0]['content']}")
    print(f"Sa réponse : {batched.tokenizer.decode(answer[:end], skip_special_tokens=True).strip()}")
    print(
        "(Le modèle embarqué est minuscule : la démonstration juge le moteur, qui doit rendre les mêmes mots que transformers.)\n"
    )
    write_results(out, rows, runs, timeline, model, max_tokens)
    return rows


def record_timeline(llm: LLM, prompts: list[list[int]], max_tokens: int) -> list[Event]:
    """Le journal d'une charge où le lot se renouvelle : `TIMELINE_SLOTS` places, des réponses de longueurs tirées au sort."""
    llm.reset_prefix_cache()  # sinon les mesures d'avant auraient déjà fait presque tout le prefill
    lengths = random.Random(42)
    scheduler = llm.engine.scheduler
    full = scheduler.config
    scheduler.config = replace(full, max_num_seqs=TIMELINE_SLOTS)
    first_event = len(llm.engine.events)
    try:
        for i, prompt in enumerate(prompts):
            params = SamplingParams(temperature=0, max_tokens=lengths.randint(1, max_tokens), ignore_eos=True)
            llm.add_request(f"chronogramme-{i}", {"prompt_token_ids": prompt}, params)
        with tqdm(total=len(prompts), desc=f"{'chronogramme, 8 places':<32}", unit="req") as bar:
            while llm.has_unfinished_requests():
                bar.update(sum(output.finished for output in llm.step()))
    finally:
        scheduler.config = full
    return llm.engine.events[first_event:]


def format_table(rows: list[Row]) -> str:
    """Le tableau affiché ; les rapports sont relatifs à la première ligne."""
    header = ("", "prompts", "tokens/s", "rapport", "TTFT p95 (s)", "TPOT p95 (ms)", "identiques")
    reference = rows[0].summary.output_throughput
    body = [
        (
            row.name,
            str(row.num_prompts),
            french_number(row.summary.output_throughput),
            f"× {french_number(row.summary.output_throughput / reference, 1)}",
            french_number(row.summary.ttft.p95, 2),
            french_number(1000 * row.summary.tpot.p95) if row.summary.tpot.p95 is not None else "—",
            f"{french_number(100 * row.identical)} %",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (header, *body)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))

    return "\n".join([line(header), "  ".join("─" * w for w in widths), *map(line, body)])


def write_results(out: Path, rows: list[Row], runs: dict[str, Run], events: list[Event], model: str, max_tokens: int) -> None:
    """Écrit les figures et le JSON."""
    import matplotlib

    matplotlib.use("Agg")
    from minibatcher.viz.bars import plot_throughputs
    from minibatcher.viz.style import save
    from minibatcher.viz.timeline import plot_timeline

    figure, alt_timeline = plot_timeline(events, "Le lot se renouvelle : 32 requêtes de longueurs variées sur 8 places")
    save(figure, out / "chronogramme.png", alt_timeline)
    figure, alt_bars = plot_throughputs(
        [row.name for row in rows], [row.summary.output_throughput for row in rows], "Débit, sur les mêmes prompts"
    )
    save(figure, out / "debits.png", alt_bars)
    result = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "model": str(model),
        "max_tokens": max_tokens,
        "rows": [
            {"name": row.name, "num_prompts": row.num_prompts, "identical": row.identical, **row.summary.to_dict()} for row in rows
        ],
        "token_ids": {name: run.token_ids for name, run in runs.items()},
        "figures": {"chronogramme.png": alt_timeline, "debits.png": alt_bars},
    }
    (out / "demo.json").write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"Résultats écrits dans {out} : demo.json, chronogramme.png, debits.png")
