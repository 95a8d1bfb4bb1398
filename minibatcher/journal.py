"""Le journal d'un moteur sur disque : une ligne JSON par événement, ou une trace que Perfetto sait ouvrir.

La première ligne décrit le scheduler ; les autres sont les événements, dans l'ordre. Un journal relu vaut le journal écrit : on en
tire les mêmes mesures, et `minibatcher.simulation.replay` y rejoue les mêmes décisions.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from minibatcher.engine import AbandonedStepEvent, ArrivalEvent, CacheResetEvent, EndEvent, Event, StepEvent
from minibatcher.errors import MinibatcherError
from minibatcher.kv_cache import KVCacheManager
from minibatcher.metrics import request_metrics
from minibatcher.policies import POLICIES, get_scheduler_cls
from minibatcher.request import FinishReason
from minibatcher.scheduler import Scheduler, SchedulerConfig

EVENT_TYPES = {
    "arrival": ArrivalEvent,
    "step": StepEvent,
    "end": EndEvent,
    "abandoned_step": AbandonedStepEvent,
    "cache_reset": CacheResetEvent,
}
_NAMES = {cls: name for name, cls in EVENT_TYPES.items()}


class JournalError(MinibatcherError, ValueError):
    """Un journal est introuvable ou illisible ; le message donne la ligne."""


def scheduler_settings(scheduler: Scheduler) -> dict:
    """Tout ce qu'il faut pour construire un scheduler qui décide pareil."""
    names = {cls: name for name, cls in POLICIES.items()}
    manager = scheduler.kv_cache_manager
    return {
        "scheduler_cls": names.get(type(scheduler), type(scheduler).__name__),
        **asdict(scheduler.config),
        "num_blocks": manager.num_blocks,
        "block_size": manager.block_size,
        "enable_prefix_caching": manager.enable_prefix_caching,
    }


def build_scheduler(
    *,
    num_blocks: int,
    block_size: int = 16,
    enable_prefix_caching: bool = True,
    scheduler_cls: str | type[Scheduler] = "chunked_prefill",
    **config,
) -> Scheduler:
    """Un scheduler neuf ; `config` : les champs de `SchedulerConfig`. Lève `ConfigError`."""
    manager = KVCacheManager(num_blocks, block_size, enable_prefix_caching)
    return get_scheduler_cls(scheduler_cls)(SchedulerConfig(**config), manager)


@dataclass
class Journal:
    """Un journal et le scheduler qui l'a écrit (`settings`, voir `scheduler_settings`)."""

    settings: dict
    events: list[Event]

    def save(self, path: str | Path) -> None:
        """Écrit le journal en JSONL. Le même journal donne toujours les mêmes octets."""
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(_dump({"type": "scheduler", **self.settings}))
            for event in self.events:
                file.write(_dump({"type": _NAMES[type(event)], **{f.name: getattr(event, f.name) for f in fields(event)}}))

    @classmethod
    def load(cls, path: str | Path) -> "Journal":
        """Relit un journal. Lève `JournalError`, avec le numéro de la ligne qui ne va pas."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise JournalError(f"Le journal {path} ne se lit pas ({problem}). Vérifiez le chemin.") from None
        settings, events = None, []
        for number, line in enumerate(lines, 1):
            where = f"{path}, ligne {number}"
            try:
                entry = json.loads(line)
                kind = entry.pop("type")
            except (ValueError, KeyError, AttributeError, TypeError):
                raise JournalError(f"{where} : ce n'est pas un événement. Le journal est abîmé ou tronqué.") from None
            if number == 1:
                if kind != "scheduler":
                    raise JournalError(f"{where} : la première ligne doit décrire le scheduler. Ce n'est pas un journal.")
                settings = entry
                continue
            if kind not in EVENT_TYPES:
                raise JournalError(f"{where} : événement {kind!r} inconnu. Événements connus : {', '.join(EVENT_TYPES)}.")
            events.append(_parse(EVENT_TYPES[kind], entry, where))
        if settings is None:
            raise JournalError(f"{path} est vide : ce n'est pas un journal.")
        return cls(settings, events)


def _parse(event_type: type[Event], entry: dict, where: str) -> Event:
    names = {f.name for f in fields(event_type)}
    if entry.keys() != names:
        wrong = ", ".join(sorted(entry.keys() ^ names))
        raise JournalError(f"{where} : champs en trop ou manquants : {wrong}. Le journal est abîmé, ou d'une autre version.")
    try:
        if "finished" in entry:
            entry["finished"] = {request_id: FinishReason(reason) for request_id, reason in entry["finished"].items()}
        if "finish_reason" in entry:
            entry["finish_reason"] = FinishReason(entry["finish_reason"])
    except (ValueError, AttributeError) as problem:
        raise JournalError(f"{where} : raison de fin impossible ({problem}). Le journal est abîmé.") from None
    return event_type(**entry)


def _dump(value: dict) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def write_chrome_trace(events: Iterable[Event], path: str | Path) -> None:
    """Écrit une trace au format « Trace Event » de Chrome : une piste pour les pas, une par requête. S'ouvre sur ui.perfetto.dev.

    Temps en microsecondes depuis le premier événement.
    """
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, entry in enumerate(_trace_entries(list(events))):
            file.write((",\n" if number else "") + _dump(entry).rstrip("\n"))
        file.write("\n]}\n")


def _trace_entries(events: list[Event]) -> Iterator[dict]:
    origin = min((event.start if isinstance(event, (StepEvent, AbandonedStepEvent)) else event.time for event in events), default=0)

    def span(name: str, track: int, start: float, end: float, **args: object) -> dict:
        micro = round(1e6 * (start - origin), 3)
        return {"name": name, "ph": "X", "pid": 1, "tid": track, "ts": micro, "dur": round(1e6 * (end - start), 3), "args": args}

    def label(kind: str, track: int, name: str) -> dict:
        return {"name": kind, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}

    requests = request_metrics(events)
    tracks = {request_id: number for number, request_id in enumerate(requests, 1)}
    yield label("process_name", 0, "minibatcher")
    yield label("thread_name", 0, "pas du moteur")
    for request_id, track in tracks.items():
        yield label("thread_name", track, f"requête {request_id}")
    # Ce que fait chaque requête, et depuis quand. Une requête préemptée attend de nouveau.
    doing: dict[str, tuple[str, float]] = {}

    def switch(request_id: str, now: float, what: str | None) -> Iterator[dict]:
        previous = doing.get(request_id)
        if previous is not None and previous[0] != what:
            yield span(previous[0], tracks[request_id], previous[1], now)
        if what is None:
            doing.pop(request_id, None)
        elif previous is None or previous[0] != what:
            doing[request_id] = (what, now)

    last = origin
    for event in events:
        if isinstance(event, ArrivalEvent):
            yield from switch(event.request_id, event.time, "attente")
        elif isinstance(event, EndEvent):
            yield from switch(event.request_id, event.time, None)
        elif isinstance(event, AbandonedStepEvent):
            yield span("pas abandonné", 0, event.start, event.end)
            for request_id in event.requeued:
                if request_id in tracks:
                    yield from switch(request_id, event.start, "renvoyée en file")
            last = event.end
        elif isinstance(event, StepEvent):
            yield span(
                f"{sum(event.scheduled.values())} tokens, {len(event.scheduled)} requêtes",
                0,
                event.start,
                event.end,
                step=event.step,
                free_blocks=event.num_free_blocks,
                running=event.num_running,
                waiting=event.num_waiting,
                preempted=event.preempted,
            )
            for request_id in event.preempted:
                if request_id in tracks:
                    yield from switch(request_id, event.start, "préemptée, en attente")
            for request_id, count in event.scheduled.items():
                if request_id in tracks:
                    yield from switch(request_id, event.start, "prefill" if count > 1 or request_id in event.admitted else "decode")
            for request_id in event.finished:
                if request_id in tracks:
                    yield from switch(request_id, event.end, None)
            last = event.end
    for request_id in list(doing):
        yield from switch(request_id, last, None)
