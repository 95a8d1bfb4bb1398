"""Le scheduler, exemple par exemple : ce qu'il refuse, qui il préempte, et comment il survit aux échecs."""

import math

import pytest
from helpers import Crash, check_blocks, check_output, make_engine, make_request, run_to_end

from minibatcher.engine import AbandonedStepEvent, ArrivalEvent, EndEvent, EngineCore, StepEvent
from minibatcher.errors import ConfigError, InvalidRequestError
from minibatcher.request import FinishReason, Request, RequestStatus, SamplingParams
from minibatcher.scheduler import SchedulerConfig, StepOutput

BLOCK = 4


def ids(requests) -> list[str]:
    return [request.request_id for request in requests]


def queues(engine: EngineCore) -> tuple[list[str], list[str]]:
    return ids(engine.scheduler.running), ids(engine.scheduler.waiting)


def submit(engine: EngineCore, *requests: Request) -> tuple[Request, ...]:
    for request in requests:
        engine.add_request(request)
    return requests


def pressed_engine() -> tuple[EngineCore, list[Request]]:
    """Trois requêtes de 4 tokens, un bloc libre : au deuxième pas il manquera des blocs."""
    engine = make_engine(num_blocks=4, block_size=BLOCK, enable_prefix_caching=False)
    requests = submit(engine, *(make_request(name, BLOCK, max_tokens=8) for name in "abc"))
    engine.step()
    assert queues(engine) == (["a", "b", "c"], [])
    assert engine.scheduler.kv_cache_manager.num_free_blocks == 1
    return engine, list(requests)


# Refus à la soumission

REFUSALS = {
    "prompt vide": (make_request("x", 0), "prompt vide"),
    "prompt trop long": (make_request("x", 20, 1), "max_model_len = 20 en laisse au plus 19"),
    "prompt trop long, max_tokens libre": (make_request("x", 20, None), "max_model_len = 20"),
    "réponse trop longue": (make_request("x", 11, 10), "11 tokens de prompt .* 10 de réponse"),
    "plus que le cache": (make_request("x", 12, 6), "17 tokens de cache .* contient 16"),
    "prompt plus grand que le cache": (make_request("x", 17, None), "le cache entier en contient 16"),
    "déjà en cours": (make_request("bonne", 3), "'bonne' est déjà en cours"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_bad_requests_are_refused_and_others_do_not_notice(name):
    engine = make_engine(num_blocks=4, block_size=BLOCK, max_model_len=20)
    (good,) = submit(engine, make_request("bonne", 5, 3))
    engine.step()
    request, message = REFUSALS[name]
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request(request)
    assert queues(engine) == (["bonne"], [])
    assert [type(event) for event in engine.events] == [ArrivalEvent, StepEvent]
    run_to_end(engine)
    check_output(engine, good)


@pytest.mark.parametrize(("prompt", "max_tokens", "answered"), [(19, 1, 1), (1, 19, 19), (19, None, 1), (5, None, 15)])
def test_the_largest_requests_are_served(prompt, max_tokens, answered):
    """max_model_len se remplit jusqu'au dernier token."""
    engine = make_engine(num_blocks=5, block_size=BLOCK, max_model_len=20)
    (request,) = submit(engine, make_request("a", prompt, max_tokens))
    run_to_end(engine)
    assert request.num_output_tokens == answered
    check_output(engine, request)


def test_the_last_token_needs_no_cache():
    """Cache de 16 tokens : 12 de prompt et 5 de réponse passent, car personne ne relit le dix-septième."""
    engine = make_engine(num_blocks=4, block_size=BLOCK)
    (request,) = submit(engine, make_request("a", 12, 5))
    run_to_end(engine)
    assert request.finish_reason is FinishReason.LENGTH
    check_output(engine, request)


def test_an_identifier_can_be_used_again_once_finished():
    engine = make_engine()
    submit(engine, make_request("a", 3))
    run_to_end(engine)
    (again,) = submit(engine, make_request("a", 6))
    run_to_end(engine)
    check_output(engine, again)


# Réglages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs vaut 0"),
        ({"max_num_seqs": True}, "max_num_seqs doit être un entier, et non True"),
        ({"max_num_seqs": 2.0}, "max_num_seqs doit être un entier, et non 2.0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens vaut 0"),
        ({"max_num_batched_tokens": -5}, "max_num_batched_tokens vaut -5"),
        ({"max_num_batched_tokens": "64"}, "max_num_batched_tokens doit être un entier"),
        ({"max_model_len": 1}, "max_model_len vaut 1"),
        ({"max_model_len": None}, "max_model_len doit être un entier"),
        ({"max_num_sequences": 8}, "option inconnue 'max_num_sequences'. Options connues : max_num_seqs,"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 63, "max_model_len": 64}, "Sans chunked prefill"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(**options)


def test_without_chunked_prefill_a_budget_of_max_model_len_is_enough():
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=64, enable_chunked_prefill=False)
    assert config.max_num_batched_tokens == 64


GOOD_PARAMS = [
    {},
    {"temperature": 0},
    {"top_p": 1, "min_p": 1, "top_k": -1},
    {"n": 3, "seed": 0, "max_tokens": None, "min_tokens": 100, "logprobs": 0},
    {"min_tokens": 16},
    {"stop": "fin", "stop_token_ids": (1, 2), "ignore_eos": True},
    {"stop": ["a", "b"], "stop_token_ids": []},
]
BAD_PARAMS = [
    *(("temperature", value) for value in (-0.1, math.nan, math.inf, 10**400, "0", None, True, [0.5])),
    *(("top_p", value) for value in (0, 0.0, -0.5, 1.01, math.nan, "1", None, True)),
    *(("min_p", value) for value in (-0.1, 1.1, math.nan, "0", None, False)),
    *(("top_k", value) for value in (-2, 1.0, "5", None, True)),
    *(("n", value) for value in (0, -1, 1.0, None, True)),
    *(("seed", value) for value in (-1, 0.5, "7", True)),
    *(("max_tokens", value) for value in (0, -1, 4.0, "16", True)),
    *(("min_tokens", value) for value in (-1, 17, None, 1.0, True)),  # 17 dépasse les 16 de max_tokens
    *(("logprobs", value) for value in (-1, 1.5, True)),
    *(("stop", value) for value in ("", [""], ["a", ""], [1], 5, 0, b"a", [None])),
    *(("stop_token_ids", value) for value in ([-1], [1.0], ["1"], [True], "12", 5, 0)),
    *(("ignore_eos", value) for value in (None, 1, "oui")),
]


@pytest.mark.parametrize("params", GOOD_PARAMS, ids=str)
def test_good_sampling_params(params):
    SamplingParams(**params)


@pytest.mark.parametrize(("field", "value"), BAD_PARAMS, ids=lambda part: str(part)[:12])
def test_bad_sampling_params_are_refused(field, value):
    with pytest.raises(InvalidRequestError, match=rf"{field}.*(vaut|doit|dépasse)"):
        SamplingParams(**{field: value})


def test_unknown_sampling_params_are_refused():
    with pytest.raises(InvalidRequestError, match=r"inconnue 'beam_width'\. Options connues : n, temperature"):
        SamplingParams(beam_width=4)


# Qui passe, qui attend


def test_running_requests_come_first_and_chunks_fill_the_budget():
    engine = make_engine(max_num_batched_tokens=8)
    a, b = submit(engine, make_request("a", 6), make_request("b", 13))
    finished = run_to_end(engine)
    scheduled = [event.scheduled for event in engine.events if isinstance(event, StepEvent)]
    assert scheduled == [{"a": 6, "b": 2}, {"a": 1, "b": 7}, {"a": 1, "b": 4}, {"a": 1, "b": 1}, {"b": 1}, {"b": 1}]
    assert finished == [a, b]
    check_output(engine, a, b)


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget():
    engine = make_engine(max_num_batched_tokens=16, max_model_len=16, enable_chunked_prefill=False)
    requests = submit(engine, make_request("a", 9, 3), make_request("b", 9, 3), make_request("c", 1, 3))
    engine.step()
    assert queues(engine) == (["a"], ["b", "c"]), "personne ne double la tête de file"
    run_to_end(engine)
    check_output(engine, *requests)


def test_max_num_seqs_and_arrival_order():
    engine = make_engine(max_num_seqs=2)
    requests = submit(engine, *(make_request(name, 3, 2) for name in "abcde"))
    assert ids(run_to_end(engine)) == list("abcde")
    admitted = [list(event.admitted) for event in engine.events if isinstance(event, StepEvent) and event.admitted]
    assert admitted == [["a", "b"], ["c", "d"], ["e"]]
    check_output(engine, *requests)


def test_same_prompt_in_the_same_step_is_computed_once():
    engine = make_engine()
    prompt = list(range(9))
    requests = submit(engine, make_request("a", prompt), make_request("b", prompt))
    engine.step()
    assert engine.events[-1].admitted == {"a": 0, "b": 8}
    assert engine.events[-1].scheduled == {"a": 9, "b": 1}
    run_to_end(engine)
    check_output(engine, *requests)
    assert [request.num_cached_tokens for request in requests] == [0, 8]


# Préemption


def test_the_most_recent_is_preempted_and_goes_first_in_line():
    engine, (a, b, c) = pressed_engine()
    (late,) = submit(engine, make_request("tard", 1))
    engine.step()
    event = engine.events[-1]
    assert queues(engine) == (["a", "b"], ["c", "tard"])
    assert (event.preempted, event.admitted, event.scheduled) == (["c"], {}, {"a": 1, "b": 1})
    assert (c.status, c.num_computed_tokens, c.num_preemptions, c.num_tokens) == (RequestStatus.PREEMPTED, 0, 1, 5)
    run_to_end(engine)
    entered = [request_id for event in engine.events[5:] for request_id in getattr(event, "admitted", ())]
    assert entered[-2:] == ["c", "tard"]
    check_output(engine, a, b, c, late)


def test_several_preemptions_keep_the_order():
    """La première prend le bloc de la dernière, la deuxième n'en trouve plus et cède le sien : elles reviendront dans l'ordre."""
    engine = make_engine(num_blocks=3, block_size=BLOCK, enable_prefix_caching=False)
    requests = submit(engine, *(make_request(name, BLOCK, max_tokens=8) for name in "abc"))
    engine.step()
    engine.step()
    assert engine.events[-1].preempted == ["c", "b"]
    assert queues(engine) == (["a"], ["b", "c"])
    run_to_end(engine)
    check_output(engine, *requests)


def test_recompute_keeps_the_tokens_already_produced():
    """La requête préemptée recalcule prompt et réponse d'un coup, puis continue au token suivant."""
    engine, (a, b, c) = pressed_engine()
    engine.step()
    answered = c.output_token_ids
    assert len(answered) == 1
    while c.status is RequestStatus.PREEMPTED:
        engine.step()
    assert engine.events[-1].scheduled["c"] == 5
    assert c.output_token_ids[:1] == answered
    assert c.num_output_tokens == 2
    run_to_end(engine)
    check_output(engine, a, b, c)


def test_a_request_may_preempt_itself():
    """La dernière entrée n'a personne derrière elle : c'est elle qui cède sa place."""
    engine = make_engine(num_blocks=3, block_size=BLOCK, enable_prefix_caching=False)
    a, b = submit(engine, make_request("a", 6, 6), make_request("b", 4, 6))
    engine.step()
    engine.step()
    assert queues(engine) == (["a"], ["b"])
    run_to_end(engine)
    check_output(engine, a, b)
    assert (a.num_preemptions, b.num_preemptions) == (0, 1)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("length", [k * BLOCK + d for k in (1, 2, 3) for d in (-1, 0, 1)])
def test_preemption_at_a_block_boundary_loses_and_repeats_nothing(length, enable_prefix_caching):
    """La victime est préemptée quand elle compte exactement `length` tokens : k blocs, un de moins, un de plus."""
    engine = make_engine(num_blocks=16, block_size=BLOCK, enable_prefix_caching=enable_prefix_caching)
    steps = length - 2
    # Au pas où la victime compte `length` tokens, l'aînée a rempli son dernier bloc et il lui en faut un autre.
    oldest, victim = submit(engine, make_request("a", 1 + -steps % BLOCK, 25), make_request("b", 2, 20))
    for _ in range(steps):
        engine.step()
    assert (victim.num_tokens, oldest.num_computed_tokens % BLOCK) == (length, 0)
    pool = engine.scheduler.kv_cache_manager.block_pool
    taken = pool.take(pool.num_free_blocks)  # quelqu'un prend tous les blocs libres : il faut préempter
    engine.step()
    assert (engine.events[-1].preempted, engine.events[-1].scheduled) == (["b"], {"a": 1})
    assert (victim.num_tokens, victim.num_computed_tokens) == (length, 0)
    pool.release(taken)
    engine.step()  # elle revient, et retrouve en cache ses propres blocs pleins, moins le dernier, que l'aînée a pu prendre
    cached = (length - 2) // BLOCK * BLOCK if enable_prefix_caching else 0
    assert (engine.events[-1].admitted, engine.events[-1].scheduled["b"]) == ({"b": cached}, length - cached)
    assert victim.num_cached_tokens == 0, "seule la première admission compte"
    run_to_end(engine)
    assert victim.num_output_tokens == 20
    check_output(engine, oldest, victim)


# Annulation


def test_abort_in_each_state():
    engine, (a, b, c) = pressed_engine()
    engine.step()
    waiting, other = submit(engine, make_request("attend", 2), make_request("autre", 2))
    assert [r.status.value for r in (b, c, waiting)] == ["running", "preempted", "waiting"]
    engine.abort(["b", "c", "attend", "inconnue"])
    assert queues(engine) == (["a"], ["autre"])
    assert [r.finish_reason for r in (b, c, waiting)] == [FinishReason.ABORT] * 3
    assert [(e.request_id, e.finish_reason.value) for e in engine.events[-3:]] == [(rid, "abort") for rid in ("b", "c", "attend")]
    check_blocks(engine)
    run_to_end(engine)
    num_events = len(engine.events)
    engine.abort(["a", "b"])  # déjà finies
    assert (a.finish_reason, b.finish_reason) == (FinishReason.LENGTH, FinishReason.ABORT)
    assert len(engine.events) == num_events
    check_output(engine, a, other)


def test_finish_between_steps_gives_the_reason():
    """Une chaîne d'arrêt se voit après le pas : la requête se termine alors, avec sa raison."""
    engine = make_engine()
    a, b = submit(engine, make_request("a", 3), make_request("b", 3))
    engine.step()
    assert engine.finish("a", FinishReason.STOP) is a
    assert engine.finish("a", FinishReason.ABORT) is None
    assert isinstance(engine.events[-1], EndEvent)
    assert a.finish_reason is FinishReason.STOP
    run_to_end(engine)
    check_output(engine, b)


def test_abort_keeps_what_was_computed_in_cache():
    engine = make_engine()
    submit(engine, make_request("a", list(range(9))))
    engine.step()
    engine.abort(["a"])
    submit(engine, make_request("b", list(range(9))))
    engine.step()
    assert engine.events[-1].admitted == {"b": 8}


# Échecs


def test_a_request_that_fails_ends_alone():
    engine = make_engine()
    a, b, c = submit(engine, *(make_request(name, 5) for name in "abc"))
    engine.step()
    engine.executor.failing = 1
    assert engine.step() == [b]
    assert (b.finish_reason, b.error, b.num_output_tokens) == (FinishReason.ERROR, "panne simulée", 1)
    assert engine.events[-1].finished == {"b": FinishReason.ERROR}
    assert list(engine.events[-1].sampled) == ["a", "c"]
    run_to_end(engine)
    check_output(engine, a, c)


def test_nobody_finds_the_blocks_of_a_failed_request():
    """Celles qui partageaient ses blocs dans le pas raté échouent avec elle ; la suivante recalcule tout."""
    engine = make_engine()
    prompt = list(range(9))
    *_, c = submit(engine, make_request("a", prompt), make_request("b", prompt), make_request("c", 5))
    engine.executor.failing = 0
    assert ids(engine.step()) == ["a", "b"]
    (after,) = submit(engine, make_request("d", prompt))
    engine.step()
    assert engine.events[-1].admitted == {"d": 0}
    run_to_end(engine)
    check_output(engine, c, after)


def test_an_error_on_a_request_already_finished_changes_nothing():
    """Le même pas donne son dernier token à une requête et une erreur tardive : elle ne finit qu'une fois."""
    engine = make_engine()
    (request,) = submit(engine, make_request("a", 3, 1))
    plan = engine.scheduler.schedule()
    finished = engine.scheduler.update(plan, StepOutput([7], errors={"a": "trop tard", "inconnue": "?"}))
    assert finished == [request]
    assert (request.finish_reason, request.output_token_ids) == (FinishReason.LENGTH, [7])
    check_blocks(engine)


@pytest.mark.parametrize("crash_at", range(6))
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_step_that_crashes_is_undone(crash_at, enable_prefix_caching):
    """L'exécuteur a écrit n'importe quoi avant de lever : rien n'en reste, et tout finit comme si de rien n'était."""
    engine = make_engine(num_blocks=6, max_num_batched_tokens=7, enable_prefix_caching=enable_prefix_caching)
    prompt = list(range(6))
    requests = submit(engine, make_request("a", [*prompt, 1], 8), make_request("b", [*prompt, 2], 8), make_request("c", 9, 8))
    for _ in range(crash_at):
        engine.step()
    before = [request.output_token_ids for request in requests]
    num_events, engine.executor.crash = len(engine.events), True
    with pytest.raises(Crash):
        engine.step()
    check_blocks(engine)
    assert [request.output_token_ids for request in requests] == before
    assert len(engine.events) == num_events + 1
    assert isinstance(engine.events[-1], AbandonedStepEvent)
    assert {*engine.scheduler.running, *engine.scheduler.waiting} == set(requests)
    assert ids(engine.scheduler.waiting) == sorted(ids(engine.scheduler.waiting)), "les plus anciennes d'abord"
    run_to_end(engine)
    check_output(engine, *requests)


def test_ctrl_c_is_undone_too():
    engine = make_engine()
    (request,) = submit(engine, make_request("a", 6))

    def interrupt(plan):
        engine.executor.on_plan = None
        raise KeyboardInterrupt

    engine.executor.on_plan = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert queues(engine) == ([], ["a"])
    run_to_end(engine)
    check_output(engine, request)


# Fins


def test_stop_tokens_eos_and_min_tokens():
    """Le token d'arrêt figure dans la réponse ; avant min_tokens, il n'arrête rien."""
    prompt = list(range(5))
    free = make_request("libre", prompt, 30)
    engine = make_engine()
    submit(engine, free)
    run_to_end(engine)
    tokens = free.output_token_ids
    stop = tokens[3]
    first = tokens.index(stop) + 1
    cases = [
        (make_request("a", prompt, 30, stop_token_ids=[stop]), first),
        (Request("b", prompt, SamplingParams(temperature=0, max_tokens=30), eos_token_id=stop), first),
        (Request("c", prompt, SamplingParams(temperature=0, max_tokens=30), eos_token_id=[stop, 99]), first),
        (Request("d", prompt, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True), eos_token_id=stop), 30),
        (make_request("e", prompt, 30, stop_token_ids=[stop], min_tokens=first), first),
        (make_request("f", prompt, 30, stop_token_ids=[stop], min_tokens=first + 1), tokens.index(stop, first) + 1),
        (make_request("g", prompt, first, stop_token_ids=[stop]), first),
    ]
    submit(engine, *(request for request, _ in cases))
    run_to_end(engine)
    for request, length in cases:
        assert request.output_token_ids == tokens[:length], request
        assert request.finish_reason is (FinishReason.LENGTH if length == 30 else FinishReason.STOP), request


def test_logprobs_are_kept_in_order():
    engine = make_engine()
    a, b = submit(engine, make_request("a", 3, 2), make_request("b", 3, 2))
    for entry in ("un", "deux"):
        plan = engine.scheduler.schedule()
        engine.scheduler.update(plan, StepOutput([1, 2], logprobs=[entry, None]))
    assert (a.logprobs, b.logprobs) == (["un", "deux"], [])


def test_an_idle_engine_does_nothing():
    engine = make_engine()
    assert engine.step() == []
    assert engine.events[-1].scheduled == {}
    assert not engine.has_unfinished_requests
