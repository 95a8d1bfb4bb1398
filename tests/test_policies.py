"""Les politiques : mêmes réponses et mêmes invariants que V1, et chacune son ordre de service."""

import pytest
from helpers import MemoryExecutor, check_blocks, check_output, make_request, run_to_end
from hypothesis import given, settings
from hypothesis import strategies as st

from minibatcher.engine import EngineCore, StepEvent
from minibatcher.errors import ConfigError
from minibatcher.journal import Journal, build_scheduler, scheduler_settings
from minibatcher.policies import POLICIES, get_scheduler_cls
from minibatcher.request import SamplingParams
from minibatcher.scheduler import Scheduler
from minibatcher.serving.llm import LLM
from minibatcher.simulation.replay import replay


def make(policy: str, num_blocks: int = 64, block_size: int = 4, enable_prefix_caching: bool = False, **config) -> EngineCore:
    config = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64, **config}
    scheduler = build_scheduler(
        scheduler_cls=policy,
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        **config,
    )
    ticks = iter(range(10**9))
    return EngineCore(scheduler, MemoryExecutor(scheduler.kv_cache_manager), clock=lambda: float(next(ticks)))


def steps(engine: EngineCore) -> list[StepEvent]:
    return [event for event in engine.events if isinstance(event, StepEvent)]


@settings(max_examples=150)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=12),
    num_blocks=st.integers(8, 24),
    caching=st.booleans(),
    max_num_seqs=st.integers(1, 6),
)
def test_every_policy_answers_everyone(policy, lengths, num_blocks, caching, max_num_seqs):
    engine = make(policy, num_blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=32, max_model_len=32)
    engine.scheduler.kv_cache_manager.enable_prefix_caching = caching
    pending = [(start, make_request(f"r{i}", prompt, output)) for i, (prompt, output, start) in enumerate(lengths)]
    requests = [request for _, request in pending]
    for step in range(2000):
        for start, request in pending:
            if start == step:
                engine.add_request(request)
        if step > 8 and not engine.has_unfinished_requests:
            break
        engine.step()
        check_blocks(engine)
    check_output(engine, *requests)
    assert replay(Journal(scheduler_settings(engine.scheduler), engine.events)).difference is None


def test_static_waits_for_the_longest():
    engine = make("static", max_num_seqs=3)
    for name, output in zip("abcdefg", (3, 10, 5, 2, 4, 6, 1), strict=True):
        engine.add_request(make_request(name, 2, output))
    run_to_end(engine)
    seated = [sorted(event.scheduled) for event in steps(engine)]
    assert seated[0] == ["a", "b", "c"]
    assert seated[3] == ["b", "c"], "a a fini, sa place reste vide"
    assert [sorted(event.admitted) for event in steps(engine) if event.admitted] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert len(seated) == 10 + 6 + 1


def test_static_batch_takes_back_its_preempted_requests():
    engine = make("static", num_blocks=7, max_num_seqs=2, max_model_len=28, max_num_batched_tokens=28)
    for name in "abc":
        engine.add_request(make_request(name, 8, 8))
    run_to_end(engine)
    assert [rid for event in steps(engine) for rid in event.preempted] == ["b"]
    admitted = [list(event.admitted) for event in steps(engine) if event.admitted]
    assert admitted == [["a", "b"], ["b"], ["c"]], "b revient seule : c est du lot suivant"


def test_static_closes_the_batch_to_late_arrivals():
    engine = make("static", max_num_seqs=4)
    engine.add_request(make_request("a", 2, 4))
    engine.step()
    engine.add_request(make_request("b", 2, 4))
    for _ in range(4):
        engine.step()
    assert [list(event.scheduled) for event in steps(engine)] == [["a"], ["a"], ["a"], ["a"], ["b"]]


def test_prefill_first_stops_every_decode():
    engine = make("prefill_first", max_num_seqs=4)
    engine.add_request(make_request("a", 3, 8))
    engine.step()
    engine.step()
    engine.add_request(make_request("b", 40, 4))
    engine.step()
    assert steps(engine)[-1].scheduled == {"b": 40}, "a attend que le prompt de b soit lu"
    engine.step()
    assert steps(engine)[-1].scheduled == {"a": 1, "b": 1}


def test_decode_first_makes_a_long_prompt_wait():
    engine = make("decode_first", max_num_seqs=4, max_num_batched_tokens=40, max_model_len=40)
    engine.add_request(make_request("a", 3, 3))
    engine.step()
    engine.add_request(make_request("b", 39, 1))
    engine.add_request(make_request("c", 39, 1))
    engine.step()
    assert steps(engine)[-1].scheduled == {"a": 1, "b": 39}, "b tient dans le budget qui reste"
    engine.step()
    assert steps(engine)[-1].scheduled == {"a": 1, "c": 39}
    engine = make("decode_first", max_num_seqs=4, max_num_batched_tokens=40, max_model_len=40)
    for name in ("a", "x"):
        engine.add_request(make_request(name, 3, 3))
    engine.step()
    engine.add_request(make_request("b", 39, 1))
    engine.step()
    assert steps(engine)[-1].scheduled == {"a": 1, "x": 1}, "il ne reste que 38 tokens de budget"


def test_chunked_prefill_slips_pieces_beside_the_decodes():
    engine = make("chunked_prefill", max_num_batched_tokens=16)
    engine.add_request(make_request("a", 3, 8))
    engine.step()
    engine.add_request(make_request("b", 40, 4))
    for expected in ({"a": 1, "b": 15}, {"a": 1, "b": 15}, {"a": 1, "b": 10}, {"a": 1, "b": 1}):
        engine.step()
        assert steps(engine)[-1].scheduled == expected


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
def test_whole_prompts_need_a_budget(policy):
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        make(policy, max_num_batched_tokens=63, max_model_len=64)


def test_scheduler_cls():
    class Mine(Scheduler):
        pass

    assert get_scheduler_cls(Mine) is Mine
    assert get_scheduler_cls("chunked_prefill") is Scheduler
    for wrong in ("fifo", None, int, 3):
        with pytest.raises(ConfigError, match="prefill_first"):
            get_scheduler_cls(wrong)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_same_words_whatever_the_policy(policy, tiny_model, reference):
    folder = tiny_model(architecture="Llama")
    llm = LLM(folder, scheduler_cls=policy, max_num_seqs=3, max_model_len=96, max_num_batched_tokens=96, kv_cache_memory=100_000)
    prompts = [[(7 * i + j) % 250 for j in range(5 + 9 * i)] for i in range(8)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids == reference(folder).greedy(prompt, 12)[0]
    assert type(llm.engine.scheduler) is POLICIES[policy]
