"""vLLM hors ligne, à lancer avec le Python de son environnement : lit la charge sur stdin (JSON), écrit la mesure sur stdout.

Entrée : {"folder", "prompts", "max_tokens", "max_num_seqs", "options"}. Sortie, après la ligne « RESULTAT » : tokens, durée, dates.
"""

import json
import os
import sys
import time

os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0-1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    job = json.load(sys.stdin)
    from vllm import LLM, SamplingParams

    llm = LLM(
        job["folder"],
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=job["max_num_seqs"],
        disable_log_stats=False,
        **job["options"],
    )
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
    llm.reset_prefix_cache()
    start = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    duration = time.perf_counter() - start
    requests = []
    for output in outputs:
        stats = output.metrics
        count = len(output.outputs[0].token_ids)
        known = stats is not None and count > 1
        requests.append(
            {
                "ttft": stats.first_token_latency if stats is not None else None,
                "tpot": (stats.last_token_ts - stats.first_token_ts) / (count - 1) if known else None,
            }
        )
    result = {"duration": duration, "token_ids": [list(o.outputs[0].token_ids) for o in outputs], "requests": requests}
    print("RESULTAT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
