"""minibatcher : un moteur minimal de continuous batching pour LLM.

`import minibatcher` ne charge ni torch ni transformers : seules les pièces qui calculent le font, quand on les demande.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version

_PUBLIC = {
    "LLM": "minibatcher.serving.llm",
    "RequestOutput": "minibatcher.serving.outputs",
    "CompletionOutput": "minibatcher.serving.outputs",
    "SamplingParams": "minibatcher.request",
    "Request": "minibatcher.request",
    "FinishReason": "minibatcher.request",
    "KVCacheManager": "minibatcher.kv_cache",
    "BlockPool": "minibatcher.kv_cache",
    "Scheduler": "minibatcher.scheduler",
    "SchedulerConfig": "minibatcher.scheduler",
    "EngineCore": "minibatcher.engine",
    "MinibatcherError": "minibatcher.errors",
    "ConfigError": "minibatcher.errors",
    "InvalidRequestError": "minibatcher.errors",
    "ModelError": "minibatcher.errors",
}

__all__ = list(_PUBLIC)

try:
    __version__ = version("minibatcher")
except PackageNotFoundError:  # dossier copié sans installation
    __version__ = "0+source"


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'minibatcher' : pas d'attribut {name!r}. Il propose : {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
