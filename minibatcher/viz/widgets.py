"""Les widgets du cours : lire un ordonnancement pas à pas, changer la taille du lot, chercher ce qui tient en mémoire."""

import random

from minibatcher.errors import ConfigError
from minibatcher.simulation.hardware import HARDWARE, Hardware, get_hardware
from minibatcher.simulation.sheets import (
    DTYPE_BYTES,
    MODELS,
    ModelSheet,
    get_model,
    kv_bytes_per_token,
    kv_cache_bytes,
    max_num_sequences,
    weight_bytes,
)
from minibatcher.simulation.slots import continuous_timeline, static_timeline
from minibatcher.viz.bars import gigabytes, plot_memory_bar
from minibatcher.viz.interactive import Interactive, View
from minibatcher.viz.players import schedule_player, slot_player
from minibatcher.viz.slots import plot_static_vs_continuous
from minibatcher.viz.style import french_number, percent, plural, short_number

__all__ = ["batch_explorer", "memory_explorer", "schedule_player", "slot_player"]

ACTIVATION_BYTES = 1e9  # l'ordre de grandeur de `kv_cache_bytes`
SAME = "celui des poids"


def batch_explorer(num_slots: int = 8, num_requests: int = 64, lengths: tuple[int, int] = (20, 400), seed: int = 42) -> Interactive:
    """Statique contre continu : slots, nombre de requêtes, longueurs (tokens, bornes comprises) et graine au choix.

    Les longueurs sont tirées comme dans le cours : `randint` du module `random` de Python, avec cette graine.
    """

    def draw(num_slots: int, num_requests: int, lengths: tuple[int, int], seed: int) -> View:
        rng = random.Random(seed)
        drawn = [rng.randint(*lengths) for _ in range(num_requests)]
        static, continuous = static_timeline(drawn, num_slots), continuous_timeline(drawn, num_slots)
        figure, alt = plot_static_vs_continuous(drawn, num_slots)
        speedup = french_number(static.num_steps / continuous.num_steps, 2)
        gain = french_number(static.num_steps - continuous.num_steps)
        text = f"Le continu va {speedup} fois plus vite\u202f: {gain} pas de moins."
        rows = [
            [name, french_number(run.num_steps), percent(run.utilization)]
            for name, run in (("Statique", static), ("Continu", continuous))
        ]
        return View(figure, alt, [text], [["", "pas", "utilisation"], *rows])

    def build(widgets) -> tuple[dict, list, list]:
        look = {"continuous_update": False, "style": {"description_width": "150px"}, "layout": widgets.Layout(width="400px")}
        controls = {
            "num_slots": widgets.IntSlider(num_slots, 1, max(32, num_slots), description="slots (B)", **look),
            "num_requests": widgets.IntSlider(num_requests, 1, max(200, num_requests), description="requêtes", **look),
            "lengths": widgets.IntRangeSlider(
                value=lengths, min=1, max=max(1000, *lengths), description="longueurs (tokens)", **look
            ),
            "seed": widgets.IntSlider(seed, 0, max(100, seed), description="graine du tirage", **look),
        }
        return controls, [_grid(widgets, list(controls.values()))], []

    values = {"num_slots": num_slots, "num_requests": num_requests, "lengths": lengths, "seed": seed}
    return Interactive(draw, values, build)


def memory_explorer(
    hardware: str = "A100-80",
    model: str = "Llama 3 8B",
    dtype: str = "float16",
    kv_cache_dtype: str = SAME,
    mean_length: int = 4000,
    gpu_memory_utilization: float = 0.9,
) -> Interactive:
    """Ce qui tient dans la mémoire d'un GPU : machine, modèle, types, longueur moyenne (tokens) et part de mémoire au choix.

    Arguments : les réglages de départ, aux noms des fiches (`get_hardware`, `get_model`). Lève `ConfigError` si l'un est inconnu.
    """

    def build(widgets) -> tuple[dict, list, list]:
        look = {"style": {"description_width": "170px"}, "layout": widgets.Layout(width="400px")}
        controls = {
            "hardware": widgets.Dropdown(options=list(HARDWARE), value=values["hardware"], description="GPU", **look),
            "model": widgets.Dropdown(options=list(MODELS), value=values["model"], description="modèle", **look),
            "dtype": widgets.Dropdown(options=list(DTYPE_BYTES), value=dtype, description="type des poids", **look),
            "kv_cache_dtype": widgets.Dropdown(
                options=[SAME, *DTYPE_BYTES], value=kv_cache_dtype, description="type du cache KV", **look
            ),
            "mean_length": widgets.IntSlider(
                mean_length, 250, max(32_000, mean_length), 250, description="tokens par séquence", continuous_update=False, **look
            ),
            "gpu_memory_utilization": widgets.FloatSlider(
                value=gpu_memory_utilization,
                min=0.3,
                max=1.0,
                step=0.01,
                description="gpu_memory_utilization",
                continuous_update=False,
                **look,
            ),
        }
        return controls, [_grid(widgets, list(controls.values()))], []

    for name, chosen, known in (("dtype", dtype, [*DTYPE_BYTES]), ("kv_cache_dtype", kv_cache_dtype, [SAME, *DTYPE_BYTES])):
        if chosen not in known:
            raise ConfigError(f"{name} vaut {chosen!r}\u202f; au choix\u202f: {', '.join(known)}.")
    values = {
        "hardware": get_hardware(hardware).name,
        "model": get_model(model).name,
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "mean_length": mean_length,
        "gpu_memory_utilization": gpu_memory_utilization,
    }
    return Interactive(_draw_memory, values, build)


def _draw_memory(
    hardware: str, model: str, dtype: str, kv_cache_dtype: str, mean_length: int, gpu_memory_utilization: float
) -> View:
    machine, sheet = HARDWARE[hardware], MODELS[model]
    kv_dtype = dtype if kv_cache_dtype == SAME else kv_cache_dtype
    parts = {"poids": float(weight_bytes(sheet, dtype)), "activations": ACTIVATION_BYTES}
    told = _warnings(machine, sheet, dtype, mean_length)
    per_token = kv_bytes_per_token(sheet, kv_dtype)
    told.append(f"Un token occupe {short_number(per_token / 1024)} Kio de cache\u202f: {_formula(sheet, kv_dtype)}.")
    try:
        cache = kv_cache_bytes(sheet, machine, dtype, gpu_memory_utilization, ACTIVATION_BYTES)
    except ConfigError as error:
        told.insert(0, str(error))
    else:
        parts["cache KV"] = float(cache)
        count = max_num_sequences(sheet, cache, mean_length, kv_dtype)
        fits = plural(count, "séquence") if count else "pas une seule séquence"
        room = f"la place de {french_number(cache // per_token)} tokens"
        told.append(f"Le cache a {gigabytes(cache)}, {room}\u202f: {fits} de {french_number(mean_length)} tokens en même temps.")
    figure, alt = plot_memory_bar(parts, machine.memory_bytes, f"{sheet.name} en {dtype} sur {machine.name}", unused="laissé libre")
    return View(figure, alt, told)


def _warnings(machine: Hardware, sheet: ModelSheet, dtype: str, mean_length: int) -> list[str]:
    """Ce que la mémoire permettrait, mais pas la machine ou le modèle."""
    told = []
    if dtype not in machine.flops:
        announced = ", ".join(machine.flops)
        told.append(f"Attention\u202f: la fiche du {machine.name} n'annonce aucun calcul en {dtype}. Elle annonce {announced}.")
    if mean_length > sheet.max_position_embeddings:
        most = french_number(sheet.max_position_embeddings)
        told.append(f"Attention\u202f: {sheet.name} ne connaît pas de séquence de plus de {most} tokens.")
    return told


def _formula(sheet: ModelSheet, kv_dtype: str) -> str:
    size = plural(DTYPE_BYTES[kv_dtype], "octet")
    scales = " (plus, en int8, 2 octets d'échelle par vecteur)" if kv_dtype == "int8" else ""
    return f"2 (K et V) × {sheet.num_layers} couches × {sheet.num_kv_heads} têtes KV × dimension {sheet.head_dim} × {size}{scales}"


def _grid(widgets, controls: list):
    """Les réglages sur deux colonnes, ou une seule si la page est étroite."""
    return widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))
