"""Le cœur s'importe sans torch ni transformers : un script ou le simulateur démarre aussitôt."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "triton", "safetensors", "huggingface_hub", "numpy", "matplotlib", "fastapi")
CORE = ["minibatcher", *(f"minibatcher.{name}" for name in ("errors", "request", "kv_cache", "scheduler", "engine"))]
NAMES = "from minibatcher import BlockPool, EngineCore, KVCacheManager, Request, SamplingParams, Scheduler, SchedulerConfig"


@pytest.mark.parametrize("statement", [*(f"import {module}" for module in CORE), NAMES, "import minibatcher; dir(minibatcher)"])
def test_the_core_loads_nothing_heavy(statement):
    script = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}} & {set(HEAVY)}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


SIMULATION = ("command", "disaggregated", "fast_forward", "memory", "replay", "scenario", "traces")


@pytest.mark.parametrize("module", ["journal", "policies", "metrics", *(f"simulation.{name}" for name in SIMULATION)])
def test_the_simulator_needs_only_numpy(module):
    script = f"import sys, minibatcher.{module}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}} & {set(HEAVY)}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) <= {"numpy"}


def test_an_unknown_name_is_named_in_the_error():
    import minibatcher

    with pytest.raises(AttributeError, match=r"pas d'attribut 'Batcher'.*SamplingParams"):
        minibatcher.Batcher
    assert set(minibatcher.__all__) <= set(dir(minibatcher))
