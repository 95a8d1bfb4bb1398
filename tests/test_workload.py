"""Une charge se fabrique, se lit et s'écrit sans rien perdre ; ce qui est mal formé est refusé avec le fichier et la ligne."""

import json
import subprocess
import sys
import tracemalloc
import warnings
from collections import Counter
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibatcher.errors import MinibatcherError
from minibatcher.simulation.traces import read_azure_csv, read_jsonl, read_sharegpt, read_workload, write_jsonl
from minibatcher.simulation.workload import (
    WorkloadError,
    WorkloadRequest,
    gamma_arrivals,
    lognormal_lengths,
    poisson_arrivals,
    prompt_tokens,
    repeat_workload,
    synthetic_workload,
    uniform_lengths,
)

NAN, INF = float("nan"), float("inf")
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = [HEADER, "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:15:51.2224670,879,55"]


def count_words(text: str) -> int:
    return len(text.split())


def lengths_of(requests: list[WorkloadRequest]) -> list[tuple[float, int, int]]:
    return [(r.arrival, r.num_prompt_tokens, r.num_output_tokens) for r in requests]


@pytest.fixture
def write(tmp_path):
    """Écrit un fichier (texte ou octets) et rend son chemin."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def refused(call, *expected: str) -> str:
    """Le message de la `WorkloadError` que lève `call` ; il doit contenir chaque texte attendu."""
    with pytest.raises(WorkloadError) as caught:
        call()
    message = str(caught.value)
    for text in expected:
        assert text in message
    assert message.endswith((".", ")."))
    return message


# Une requête


def test_request_keeps_what_it_is_given():
    request = WorkloadRequest("a", 1, 3, 2, prefix_id="p", num_prefix_tokens=3, prompt="bonjour à tous", prompt_token_ids=[5, 0, 7])
    assert (request.arrival, type(request.arrival)) == (1.0, float)
    assert request.prompt_token_ids == [5, 0, 7]
    assert not hasattr(request, "__dict__")
    assert issubclass(WorkloadError, MinibatcherError)
    assert issubclass(WorkloadError, ValueError)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"request_id": ""}, "request_id"),
        ({"request_id": None}, "request_id"),
        ({"request_id": 3}, "3"),
        ({"request_id": "\ud800"}, "Unicode"),
        ({"arrival": -0.5}, "-0.5"),
        ({"arrival": NAN}, "nan"),
        ({"arrival": INF}, "inf"),
        ({"arrival": 10**400}, "arrival"),
        ({"arrival": "1"}, "'1'"),
        ({"arrival": True}, "True"),
        ({"arrival": None}, "None"),
        ({"num_prompt_tokens": 0}, "num_prompt_tokens vaut 0"),
        ({"num_prompt_tokens": -3}, "-3"),
        ({"num_prompt_tokens": 2.0}, "2.0"),
        ({"num_prompt_tokens": True}, "True"),
        ({"num_prompt_tokens": 10**12}, "num_prompt_tokens vaut 1000000000000"),
        ({"num_output_tokens": 0}, "num_output_tokens vaut 0"),
        ({"num_output_tokens": NAN}, "nan"),
        ({"prefix_id": "p", "num_prefix_tokens": 11}, "dépasse num_prompt_tokens (10)"),
        ({"prefix_id": "p", "num_prefix_tokens": -1}, "num_prefix_tokens vaut -1"),
        ({"prefix_id": "p"}, "vont ensemble"),
        ({"num_prefix_tokens": 4}, "vont ensemble"),
        ({"prefix_id": "", "num_prefix_tokens": 4}, "prefix_id"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt_token_ids": [1, 2]}, "2 tokens"),
        ({"prompt_token_ids": (1,) * 10}, "liste"),
        ({"prompt_token_ids": [1] * 9 + [-1]}, "-1"),
        ({"prompt_token_ids": [1] * 9 + [True]}, "True"),
        ({"prompt_token_ids": [1] * 9 + [1.5]}, "1.5"),
    ],
)
def test_impossible_request_refused(changes, expected):
    refused(
        lambda: WorkloadRequest(**({"request_id": "a", "arrival": 0.0, "num_prompt_tokens": 10, "num_output_tokens": 5} | changes)),
        expected,
    )


# Arrivées


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_burstiness_asked(burstiness):
    arrivals = gamma_arrivals(100_000, 5.0, burstiness, seed=3)
    gaps = np.diff(arrivals, prepend=0.0)
    assert arrivals.shape == (100_000,)
    assert arrivals.dtype == np.float64
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 5.0, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.05)


def test_poisson_is_the_gamma_of_burstiness_one():
    assert poisson_arrivals(50, 2.0, seed=7).tolist() == gamma_arrivals(50, 2.0, 1.0, seed=7).tolist()
    counts = np.bincount(poisson_arrivals(50_000, 10.0, seed=1).astype(int), minlength=1)[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, rel=0.1)  # variance = moyenne : la marque de Poisson


def test_extremes_are_those_of_vllm():
    assert gamma_arrivals(4, INF, 0.5, seed=0).tolist() == [0.0] * 4
    assert gamma_arrivals(4, 2.0, INF, seed=0).tolist() == [0.5, 1.0, 1.5, 2.0]
    assert gamma_arrivals(4, INF, INF, seed=0).tolist() == [0.0] * 4


def test_arrivals_depend_on_the_seed_alone():
    assert poisson_arrivals(20, 3.0, 0).tolist() == poisson_arrivals(20, 3.0, 0).tolist()
    assert poisson_arrivals(20, 3.0, 0).tolist() != poisson_arrivals(20, 3.0, 1).tolist()
    assert poisson_arrivals(20, 3.0, 0) == pytest.approx(2 * poisson_arrivals(20, 6.0, 0))
    assert poisson_arrivals(30, 3.0, 0)[:20].tolist() == poisson_arrivals(20, 3.0, 0).tolist()


@pytest.mark.parametrize("rate", [0, -1.0, NAN, -INF, "3", None, True, 10**400])
def test_impossible_rate_refused(rate):
    refused(lambda: poisson_arrivals(5, rate, 0), "request_rate")


@pytest.mark.parametrize("burstiness", [0, -1.0, NAN, "1"])
def test_impossible_burstiness_refused(burstiness):
    refused(lambda: gamma_arrivals(5, 1.0, burstiness, 0), "burstiness")


def test_other_arrival_arguments_refused():
    refused(lambda: poisson_arrivals(0, 1.0, 0), "num_requests vaut 0")
    refused(lambda: poisson_arrivals(2.0, 1.0, 0), "num_requests")
    refused(lambda: poisson_arrivals(10**12, 1.0, 0), "num_requests")
    refused(lambda: poisson_arrivals(5, 1.0, -1), "seed")
    refused(lambda: poisson_arrivals(5, 1.0, None), "seed")
    refused(lambda: poisson_arrivals(5, 5e-324, 0), "infinies")


# Longueurs


def test_lognormal_has_the_mean_and_spread_asked():
    lengths = lognormal_lengths(200_000, 1000, 0.8, 1, 10**6, seed=2)
    assert lengths.dtype == np.int64
    assert lengths.mean() == pytest.approx(1000, rel=0.02)
    assert lengths.std() / lengths.mean() == pytest.approx(0.8, rel=0.05)
    logs = np.log(lengths)
    assert np.mean(((logs - logs.mean()) / logs.std()) ** 3) == pytest.approx(0, abs=0.05)


@given(
    mean=st.floats(1e-300, 1e300), cv=st.one_of(st.just(0), st.floats(0, 1e308)), low=st.integers(1, 50), more=st.integers(0, 10**6)
)
def test_lognormal_stays_in_bounds(mean, cv, low, more):
    lengths = lognormal_lengths(20, mean, cv, low, low + more, seed=0)
    assert ((lengths >= low) & (lengths <= low + more)).all()


def test_no_spread_means_constant():
    assert lognormal_lengths(5, 99.6, 0, 1, 500, seed=0).tolist() == [100] * 5


def test_uniform_reaches_both_ends():
    counts = Counter(uniform_lengths(6000, 3, 5, seed=0).tolist())
    assert set(counts) == {3, 4, 5}
    assert max(counts.values()) < 2200
    assert uniform_lengths(2, 7, 7, seed=0).tolist() == [7, 7]


def test_draws_of_different_functions_are_independent():
    lengths = uniform_lengths(4000, 1, 4, seed=0)
    prefixes = [int(r.prefix_id[-1]) for r in synthetic_workload(4000, 5, 5, num_prefix_tokens=1, num_prefixes=4, seed=0)]
    assert np.mean(lengths - 1 == prefixes) == pytest.approx(1 / 4, abs=0.03)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: lognormal_lengths(0, 10, 1, 1, 9, 0), "num_requests"),
        (lambda: lognormal_lengths(3, 0, 1, 1, 9, 0), "mean"),
        (lambda: lognormal_lengths(3, NAN, 1, 1, 9, 0), "mean"),
        (lambda: lognormal_lengths(3, INF, 1, 1, 9, 0), "mean"),
        (lambda: lognormal_lengths(3, 10, -0.1, 1, 9, 0), "cv"),
        (lambda: lognormal_lengths(3, 10, NAN, 1, 9, 0), "cv"),
        (lambda: lognormal_lengths(3, 10, 1, 0, 9, 0), "low vaut 0"),
        (lambda: lognormal_lengths(3, 10, 1, 10, 9, 0), "high vaut 9"),
        (lambda: lognormal_lengths(3, 10, 1, 1, 9.5, 0), "high"),
        (lambda: uniform_lengths(3, 1, 10**30, 0), "high"),
        (lambda: uniform_lengths(3, 5, 4, 0), "high vaut 4"),
        (lambda: uniform_lengths(3, 1, 4, 1.5), "seed"),
    ],
)
def test_impossible_lengths_refused(call, expected):
    refused(call, expected)


# Charge synthétique


def test_synthetic_takes_numbers_and_sequences():
    requests = synthetic_workload(3, 10, [1, 2, 3], np.array([0.0, 0.5, 0.5]))
    assert lengths_of(requests) == [(0.0, 10, 1), (0.5, 10, 2), (0.5, 10, 3)]
    assert [r.request_id for r in requests] == ["request-0", "request-1", "request-2"]
    assert all(type(r.num_prompt_tokens) is int and type(r.arrival) is float and r.prefix_id is None for r in requests)
    assert [r.arrival for r in synthetic_workload(3, 10, 5)] == [0.0] * 3


def test_synthetic_prefixes_come_before_the_prompt():
    requests = synthetic_workload(400, uniform_lengths(400, 1, 9, 0), 5, num_prefix_tokens=64, num_prefixes=4, seed=1)
    assert {r.prefix_id for r in requests} == {f"prefix-{i}" for i in range(4)}
    assert min(Counter(r.prefix_id for r in requests).values()) > 60
    assert all(r.num_prefix_tokens == 64 < r.num_prompt_tokens <= 73 for r in requests)
    assert [r.num_prompt_tokens - 64 for r in requests] == uniform_lengths(400, 1, 9, 0).tolist()


def test_synthetic_is_deterministic():
    def build(seed):
        return synthetic_workload(50, 10, 5, poisson_arrivals(50, 2, 0), num_prefix_tokens=8, num_prefixes=5, seed=seed)

    assert build(4) == build(4)
    assert build(4) != build(5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_requests": 0}, "num_requests"),
        ({"prompt_lengths": [1, 2]}, "suite de 3 entiers"),
        ({"prompt_lengths": [1, 2, 0]}, "prompt_lengths contient 0"),
        ({"prompt_lengths": 0}, "prompt_lengths contient 0"),
        ({"prompt_lengths": [1.5, 2, 3]}, "prompt_lengths"),
        ({"prompt_lengths": "abc"}, "prompt_lengths"),
        ({"prompt_lengths": None}, "prompt_lengths"),
        ({"prompt_lengths": [[1], [1, 2], []]}, "prompt_lengths"),
        ({"prompt_lengths": True}, "prompt_lengths"),
        ({"output_lengths": [[1, 2, 3]]}, "output_lengths"),
        ({"output_lengths": [1, -2, 3]}, "output_lengths contient -2"),
        ({"arrivals": [0.0, 1.0]}, "suite de 3 nombres"),
        ({"arrivals": [0.0, NAN, 1.0]}, "arrivals contient nan"),
        ({"arrivals": [0.0, -1.0, 1.0]}, "arrivals contient -1"),
        ({"arrivals": INF}, "inf"),
        ({"num_prefix_tokens": -1}, "num_prefix_tokens"),
        ({"num_prefix_tokens": 4, "num_prefixes": 0}, "num_prefixes"),
        ({"num_prefixes": 3}, "num_prefix_tokens"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_synthetic_refused(arguments, expected):
    refused(lambda: synthetic_workload(**({"num_requests": 3, "prompt_lengths": 4, "output_lengths": 5} | arguments)), expected)


def test_eighty_thousand_requests_stay_light():
    tracemalloc.start()
    try:
        requests = synthetic_workload(80_000, uniform_lengths(80_000, 1, 9000, 0), 700, poisson_arrivals(80_000, 5, 0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(requests) == 80_000
    assert peak < 50e6


# Tokens


def test_prompt_tokens_are_stable_from_one_process_to_the_next():
    request = WorkloadRequest("requête", 0.0, 6, 1, prefix_id="p", num_prefix_tokens=3)
    expected = [5147, 1855, 26757, 17173, 2205, 35869]
    assert prompt_tokens(request, 49152, 7) == expected
    code = (
        "from minibatcher.simulation.workload import *; "
        "print(prompt_tokens(WorkloadRequest('requête', 0.0, 6, 1, prefix_id='p', num_prefix_tokens=3), 49152, 7))"
    )
    environment = {"PYTHONHASHSEED": "123", "PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"}
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=root, timeout=60)
    assert done.stdout.strip() == str(expected), done.stderr


def test_only_the_prefix_is_shared():
    def tokens(name, prefix, count, total, seed=0):
        return prompt_tokens(WorkloadRequest(name, 0.0, total, 1, prefix, count), 1000, seed)

    a, b = tokens("a", "p", 40, 60), tokens("b", "p", 40, 100)
    assert (len(a), len(b)) == (60, 100)
    assert a[:40] == b[:40]
    assert a[40:] != b[40:60]
    assert tokens("a", "q", 40, 60)[:40] != a[:40]
    assert tokens("a", "q", 40, 60)[40:] == a[40:]
    assert tokens("a", "p", 40, 60, seed=1)[:40] != a[:40]
    assert tokens("a", "p", 25, 60)[:25] == a[:25]  # un préfixe plus court reste le début du plus long
    assert tokens("p", "p", 30, 60)[30:] != a[:30]  # une requête du même nom que le préfixe n'en reprend pas les tokens


def test_prompt_tokens_cover_the_vocabulary():
    request = WorkloadRequest("a", 0.0, 20_000, 1)
    counts = Counter(prompt_tokens(request, 10, 0))
    assert set(counts) == set(range(10))
    assert max(counts.values()) < 2300
    assert prompt_tokens(WorkloadRequest("a", 0.0, 4, 1), 1, 0) == [0] * 4
    assert max(prompt_tokens(request, 2**31 - 1, 0)) > 2**30
    assert all(type(token) is int for token in prompt_tokens(request, 10, 0)[:5])


def test_given_tokens_win_and_text_is_left_to_the_tokenizer():
    request = WorkloadRequest("a", 0.0, 3, 1, prompt="un deux trois", prompt_token_ids=[4, 5, 6])
    tokens = prompt_tokens(request, 10, 0)
    assert tokens == [4, 5, 6]
    tokens.append(7)
    assert request.prompt_token_ids == [4, 5, 6]
    refused(lambda: prompt_tokens(WorkloadRequest("a", 0.0, 3, 1, prompt="un deux trois"), 10, 0), "'a'", "encodez-le")


@pytest.mark.parametrize(("vocab_size", "seed"), [(0, 0), (-1, 0), (2.0, 0), (2**40, 0), (10, -1), (10, None)])
def test_impossible_vocabulary_or_seed_refused(vocab_size, seed):
    refused(lambda: prompt_tokens(WorkloadRequest("a", 0.0, 3, 1), vocab_size, seed), "seed" if vocab_size == 10 else "vocab_size")


# Répétition


def test_repeat_keeps_the_rate():
    requests = synthetic_workload(100, 10, 5, poisson_arrivals(100, 4.0, 0) + 3)
    repeated = repeat_workload(requests, 3)
    arrivals = np.array([r.arrival for r in repeated])
    assert len(repeated) == 300
    assert (np.diff(arrivals) >= 0).all()
    assert arrivals[:100].tolist() == [r.arrival for r in requests]
    assert 299 / (arrivals[-1] - arrivals[0]) == pytest.approx(99 / (arrivals[99] - arrivals[0]))
    assert np.diff(arrivals[100:200]) == pytest.approx(np.diff(arrivals[:100]))
    assert len({r.request_id for r in repeated}) == 300
    assert repeated[100].request_id == "request-0#2"
    assert requests[0].request_id == "request-0"


def test_repeat_of_simultaneous_or_single_requests():
    assert [r.arrival for r in repeat_workload(synthetic_workload(2, 10, 5), 3)] == [0.0] * 6
    assert [r.arrival for r in repeat_workload(synthetic_workload(1, 10, 5, 2.5), 2)] == [2.5] * 2


def test_repeat_keeps_the_other_fields_and_unique_ids():
    requests = [
        WorkloadRequest("a", 0.0, 3, 2, "p", 2, "un deux trois", [1, 2, 3]),
        WorkloadRequest("a#1", 0.0, 3, 2),
        WorkloadRequest("a#1#1", 1.0, 3, 2),
    ]
    repeated = repeat_workload(requests, 2)
    assert len({r.request_id for r in repeated}) == 6
    assert repeated[3] == WorkloadRequest("a#2", repeated[3].arrival, 3, 2, "p", 2, "un deux trois", [1, 2, 3])
    assert repeated[3].arrival == 1.5


def test_impossible_repeat_refused():
    refused(lambda: repeat_workload([], 2), "vide")
    for times in (0, -1, 1.5, None):
        refused(lambda times=times: repeat_workload(synthetic_workload(1, 1, 1), times), "times")


# Azure


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("tail", ["", "end", "blank"])
def test_azure_read_whatever_the_ends_of_lines(write, end, bom, tail):
    text = end.join(AZURE) + {"": "", "end": end, "blank": end * 3}[tail]
    requests = read_azure_csv(write("trace.csv", bom + text.encode()))
    assert lengths_of(requests) == [(0.0, 374, 44), (4.314579, 396, 109), (4.541877, 879, 55)]
    assert [r.request_id for r in requests] == ["line-2", "line-3", "line-4"]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_azure_keeps_seven_decimals_and_sorts_stably(write, ticks):
    def date(tick):
        return f"{datetime(2023, 11, 14) + timedelta(seconds=tick // 10**7)}.{tick % 10**7:07d}"

    path = write("trace.csv", "\n".join([HEADER, *(f"{date(tick)},{i + 1},1" for i, tick in enumerate(ticks))]))
    requests = read_azure_csv(path)
    order = sorted(range(len(ticks)), key=lambda i: ticks[i])
    assert [r.num_prompt_tokens - 1 for r in requests] == order
    # Le float le plus proche de la différence exacte, pas une différence de floats déjà arrondis.
    assert [r.arrival for r in requests] == [float(Fraction(ticks[i] - min(ticks), 10**7)) for i in order]


def test_azure_of_2024_and_whole_seconds(write):
    rows = ["2024-05-10 00:00:00.009930+00:00,10,1", "2024-05-10 00:00:01+00:00,11,2", "2024-05-10T00:00:01.5Z,12,3"]
    requests = read_azure_csv(write("trace.csv", "\n".join([HEADER, *rows])))
    assert lengths_of(requests) == [(0.0, 10, 1), (0.99007, 11, 2), (1.49007, 12, 3)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2023-11-16 18:15:47.1,374", "trois colonnes"),
        ("2023-11-16 18:15:47.1,374,44,1", "trois colonnes"),
        ("n'importe quoi", "n'importe quoi"),
        ("2023-11-16 18:15:47.1,0,44", "ContextTokens vaut '0'"),
        ("2023-11-16 18:15:47.1,-5,44", "ContextTokens vaut '-5'"),
        ("2023-11-16 18:15:47.1,374,0", "GeneratedTokens vaut '0'"),
        ("2023-11-16 18:15:47.1,374,4.5", "GeneratedTokens vaut '4.5'"),
        ("2023-11-16 18:15:47.1,NaN,44", "ContextTokens vaut 'NaN'"),
        ("2023-11-16 18:15:47.1,,44", "ContextTokens vaut ''"),
        ("2023-11-16 18:15:47.1,1_0,44", "1_0"),
        ("2023-11-16 18:15:47.1,٣,44", "ContextTokens"),
        ("2023-11-16 18:15:47.1," + "9" * 5000 + ",44", "ContextTokens"),
        ("2023-13-16 18:15:47.1,374,44", "TIMESTAMP vaut '2023-13-16 18:15:47.1'"),
        ("2023-11-16 18:61:47.1,374,44", "TIMESTAMP"),
        ("2023-11-16,374,44", "TIMESTAMP"),
        ("2023-11-16 18:15:47.,374,44", "TIMESTAMP"),
        ("2023-11-16 18:15:47.1+02:00,374,44", "TIMESTAMP"),
        ("1700158547.1,374,44", "TIMESTAMP"),
        (",374,44", "TIMESTAMP vaut ''"),
        (HEADER, "TIMESTAMP"),
        ("", "vide"),
        ("   ", "vide"),
    ],
)
def test_malformed_azure_line_refused(write, line, expected):
    path = write("trace.csv", "\n".join([*AZURE[:2], line, AZURE[3]]))
    message = refused(lambda: read_azure_csv(path), f"{path}, ligne 3 : ", expected)
    assert len(message) < len(str(path)) + 300


def test_azure_header_refused(write):
    refused(lambda: read_azure_csv(write("a.csv", "\n".join(AZURE[1:]))), "ligne 1", "en-tête", HEADER)
    refused(lambda: read_azure_csv(write("b.csv", "TIMESTAMP;ContextTokens;GeneratedTokens\n")), "ligne 1", "en-tête")
    refused(lambda: read_azure_csv(write("c.csv", "\n" + "\n".join(AZURE))), "ligne 1", "vide")


# ShareGPT


def conversation(*turns: tuple[str, str]) -> dict:
    return {"id": "x", "conversations": [{"from": role, "value": text} for role, text in turns]}


HUMAN, GPT = ("human", "un deux trois"), ("gpt", "quatre cinq")


def test_sharegpt_takes_the_first_exchange(write):
    conversations = [
        conversation(HUMAN, GPT, ("human", "encore"), ("gpt", "non")),
        conversation(("system", "Soyez bref."), ("user", "À l'été ?"), ("assistant", "Oui")),
        conversation(("gpt", "Bonjour"), HUMAN, GPT),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        requests = read_sharegpt(write("a.json", json.dumps(conversations, indent=2)), count_words)
    assert lengths_of(requests) == [(0.0, 3, 2), (0.0, 3, 1), (0.0, 3, 2)]
    assert [r.prompt for r in requests] == ["un deux trois", "À l'été ?", "un deux trois"]
    assert [r.request_id for r in requests] == ["conversation-1", "conversation-2", "conversation-3"]


def test_sharegpt_says_what_it_drops(write):
    conversations = [
        conversation(),
        conversation(HUMAN),
        conversation(GPT, GPT),
        conversation(HUMAN, HUMAN, GPT),
        conversation(GPT, HUMAN),
        conversation(HUMAN, ("gpt", "")),
        conversation(HUMAN, ("gpt", "coupé \ud83d")),
        conversation(("human", "   "), GPT),
        conversation(HUMAN, GPT),
    ]
    with pytest.warns(UserWarning, match="8 conversations écartées sur 9") as caught:
        requests = read_sharegpt(write("a.json", json.dumps(conversations)), count_words)
    assert [r.request_id for r in requests] == ["conversation-9"]
    message = str(caught[0].message)
    for reason in ("moins de deux tours (2)", "question suivie d'une réponse (3)", "Unicode invalide (2)", "aucun token"):
        assert reason in message


def test_sharegpt_all_dropped_is_an_empty_trace(write):
    refused(
        lambda: read_sharegpt(write("a.json", json.dumps([conversation(HUMAN)])), count_words),
        "trace vide",
        "moins de deux tours (1)",
    )


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (3, "3"),
        (None, "None"),
        ("texte", "texte"),
        ([], "[]"),
        ({"id": "x"}, "{'id': 'x'}"),
        ({"conversations": None}, "None"),
        ({"conversations": {"from": "human"}}, "human"),
        ({"conversations": ["bonjour"]}, "bonjour"),
        ({"conversations": [{"from": "human"}]}, "human"),
        ({"conversations": [{"from": "human", "value": 3}]}, "3"),
        ({"conversations": [{"from": None, "value": "x"}]}, "None"),
    ],
)
def test_malformed_conversation_refused(write, bad, expected):
    path = write("a.json", json.dumps([conversation(HUMAN, GPT), bad]))
    refused(lambda: read_sharegpt(path, count_words), f"{path}, conversation 2 : ", expected)


def test_sharegpt_that_is_not_a_list_refused(write):
    refused(lambda: read_sharegpt(write("a.json", '{"a": 1}'), count_words), "liste de conversations", "{'a': 1}")


def test_truncated_sharegpt_refused(write):
    text = json.dumps([conversation(HUMAN, GPT)], indent=2)
    refused(lambda: read_sharegpt(write("a.json", text[:-20]), count_words), f"ligne {text[:-20].count(chr(10)) + 1}", "tronqué")
    refused(lambda: read_sharegpt(write("b.json", "[" * 100_000), count_words), "JSON illisible")
    refused(lambda: read_sharegpt(write("c.json", "[" + "1" * 5000 + "]"), count_words), "JSON illisible")


def test_wrong_token_counter_refused(write):
    path = write("a.json", json.dumps([conversation(HUMAN, GPT)]))
    for wrong in (2.5, -1, None):
        refused(lambda wrong=wrong: read_sharegpt(path, lambda text: wrong), "conversation 1", "num_prompt_tokens")


# JSON Lines

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def workloads(draw):
    requests = []
    for name in draw(st.lists(texts, min_size=1, max_size=6, unique=True)):
        token_ids = draw(st.none() | st.lists(st.integers(0, 200_000), min_size=1, max_size=10))
        num_prompt = len(token_ids) if token_ids else draw(st.integers(1, 10**6))
        prefix = draw(st.none() | texts)
        num_prefix = 0 if prefix is None else draw(st.integers(1, num_prompt))
        arrival, num_output = draw(st.floats(0, allow_infinity=False)), draw(st.integers(1, 10**6))
        requests.append(
            WorkloadRequest(name, arrival, num_prompt, num_output, prefix, num_prefix, draw(st.none() | texts), token_ids)
        )
    return requests


@given(workloads())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_jsonl_round_trip_is_exact(tmp_path, requests):
    path = tmp_path / "a.jsonl"
    write_jsonl(path, requests)
    assert read_jsonl(path) == requests
    before = path.read_bytes()
    write_jsonl(path, read_workload(path))
    assert path.read_bytes() == before
    assert before.count(b"\n") == len(requests)


def test_jsonl_bytes_are_those_promised(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [WorkloadRequest("é", 0.1, 3, 2), WorkloadRequest("b", 1e-7, 2, 1, "p", 1, "x\ny", [1, 2])])
    assert (tmp_path / "a.jsonl").read_text("utf-8").splitlines() == [
        '{"request_id": "é", "arrival": 0.1, "num_prompt_tokens": 3, "num_output_tokens": 2, "num_prefix_tokens": 0}',
        '{"request_id": "b", "arrival": 1e-07, "num_prompt_tokens": 2, "num_output_tokens": 1, "prefix_id": "p", '
        '"num_prefix_tokens": 1, "prompt": "x\\ny", "prompt_token_ids": [1, 2]}',
    ]


def test_jsonl_written_by_hand(write):
    path = write("a.jsonl", '{"prompt": "un deux trois", "num_output_tokens": 32}\r\n{"prompt": "été", "num_output_tokens": 8}\n\n')
    requests = read_jsonl(path, count_words)
    assert lengths_of(requests) == [(0.0, 3, 32), (0.0, 1, 8)]
    assert [r.request_id for r in requests] == ["line-1", "line-2"]
    refused(lambda: read_jsonl(path), f"{path}, ligne 1 : num_prompt_tokens manque", "count_tokens")


def test_jsonl_defaults(write):
    lines = [
        '{"num_output_tokens": 2, "prompt_token_ids": [4, 5], "prompt": null}',
        '{"num_output_tokens": 2, "num_prompt_tokens": 9, "prompt": "un"}',
        '{"num_output_tokens": 2, "num_prompt_tokens": 9, "arrival": 3, "request_id": "x"}',
    ]
    requests = read_jsonl(write("a.jsonl", b"\xef\xbb\xbf" + "\n".join(lines).encode()), count_words)
    assert lengths_of(requests) == [(0.0, 2, 2), (0.0, 9, 2), (3.0, 9, 2)]
    assert [r.request_id for r in requests] == ["line-1", "line-2", "x"]


def test_jsonl_keeps_the_order_of_the_file(tmp_path):
    requests = [WorkloadRequest("late", 9.0, 1, 1), WorkloadRequest("early", 1.0, 1, 1)]
    write_jsonl(tmp_path / "a.jsonl", requests)
    assert read_jsonl(tmp_path / "a.jsonl") == requests


GOOD = '{"request_id": "a", "num_prompt_tokens": 3, "num_output_tokens": 2}'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"num_prompt_tokens": 3, "num_output_tokens": 2', "tronqué"),
        ("bonjour", "bonjour"),
        ("[1, 2]", "[1, 2]"),
        ("null", "None"),
        ("[" * 100_000, "JSON illisible"),
        ('{"num_prompt_tokens": ' + "1" * 5000 + ', "num_output_tokens": 2}', "JSON illisible"),
        (
            '{"num_prompt_tokens": 3, "max_tokens": 2}',
            "clé inconnue 'max_tokens'. Clés connues : request_id, arrival, num_prompt_tokens",
        ),
        ('{"num_prompt_tokens": 3}', "num_output_tokens manque"),
        ('{"num_prompt_tokens": 3, "num_output_tokens": null}', "num_output_tokens manque"),
        ('{"num_output_tokens": 3}', "num_prompt_tokens manque"),
        ('{"num_output_tokens": 3, "prompt": 5}', "num_prompt_tokens manque"),
        ('{"num_output_tokens": 3, "prompt": ""}', "num_prompt_tokens manque"),
        ('{"num_output_tokens": 3, "prompt": "   "}', "num_prompt_tokens vaut 0"),
        ('{"num_output_tokens": 3, "prompt_token_ids": []}', "num_prompt_tokens vaut 0"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "prompt_token_ids": [1]}', "1 tokens"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "prompt_token_ids": "ab"}', "liste"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 0}', "num_prompt_tokens vaut 0"),
        ('{"num_output_tokens": -3, "num_prompt_tokens": 2}', "num_output_tokens vaut -3"),
        ('{"num_output_tokens": 3.0, "num_prompt_tokens": 2}', "3.0"),
        ('{"num_output_tokens": true, "num_prompt_tokens": 2}', "True"),
        ('{"num_output_tokens": NaN, "num_prompt_tokens": 2}', "nan"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "arrival": NaN}', "nan"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "arrival": 1e999}', "inf"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "arrival": -1}', "-1"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "request_id": 7}', "7"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "prompt": "\\ud83d"}', "Unicode"),
        ('{"num_output_tokens": 3, "num_prompt_tokens": 2, "num_prefix_tokens": 1}', "vont ensemble"),
        (GOOD, "request_id 'a' est déjà celui de la ligne 1"),
        ("", "vide"),
    ],
)
def test_malformed_json_line_refused(write, line, expected):
    path = write("a.jsonl", "\n".join([GOOD, line, GOOD.replace('"a"', '"c"')]))
    message = refused(lambda: read_jsonl(path, count_words), f"{path}, ligne 2 : ", expected)
    assert len(message) < len(str(path)) + 300


def test_given_id_equal_to_a_default_one_refused(write):
    line = '{"num_prompt_tokens": 3, "num_output_tokens": 2}'
    path = write("a.jsonl", "\n".join([GOOD.replace('"a"', '"line-2"'), line]))
    refused(lambda: read_jsonl(path), "ligne 2", "ligne 1", "line-2")


def test_impossible_write_refused(tmp_path):
    one = WorkloadRequest("a", 0.0, 1, 1)
    refused(lambda: write_jsonl(tmp_path / "a.jsonl", []), "vide")
    refused(lambda: write_jsonl(tmp_path / "a.jsonl", [one, one]), "'a' sert 2 fois")
    refused(lambda: write_jsonl(tmp_path / "absent" / "a.jsonl", [one]), "écriture impossible")
    refused(lambda: write_jsonl(tmp_path, [one]), "écriture impossible")
    one.arrival = NAN
    refused(lambda: write_jsonl(tmp_path / "a.jsonl", [one]), "écriture impossible")
    assert not (tmp_path / "a.jsonl").exists()


# Choix du format, fichiers illisibles


@pytest.mark.parametrize(
    ("content", "extension", "format"),
    [
        ("\n".join(AZURE), ".csv", "azure"),
        (json.dumps([conversation(HUMAN, GPT)]), ".json", "sharegpt"),
        (GOOD, ".jsonl", "jsonl"),
    ],
)
def test_format_is_found(write, content, extension, format):
    def lengths(path, format=None):
        return lengths_of(read_workload(path, format, count_words))

    expected = lengths(write("trace" + extension, content))
    assert len(expected) == (3 if format == "azure" else 1)
    assert lengths(write("trace" + extension.upper(), content)) == expected
    assert lengths(write("trace.txt", "\ufeff" + content)) == expected
    assert lengths(write("trace", content)) == expected
    assert lengths(write("trace.wrong.csv", content), format) == expected
    assert lengths(str(write("trace.wrong.jsonl", content)), format) == expected


def test_known_extension_beats_the_content(write):
    refused(lambda: read_workload(write("trace.CSV", GOOD)), "ligne 1", "en-tête")


def test_unknown_format_refused(write):
    path = write("trace.txt", "bonjour")
    refused(lambda: read_workload(path), "format non reconnu", "azure, sharegpt, jsonl")
    for format in ("csv", "", 3, []):
        refused(
            lambda format=format: read_workload(write("a.csv", "\n".join(AZURE)), format), repr(format), "azure, sharegpt, jsonl"
        )


def test_sharegpt_without_tokenizer_refused(write):
    refused(lambda: read_workload(write("a.json", json.dumps([conversation(HUMAN, GPT)]))), "count_tokens")


READERS = [
    read_azure_csv,
    read_jsonl,
    lambda path: read_sharegpt(path, count_words),
    lambda path: read_workload(path, None, count_words),
]


@pytest.mark.parametrize("read", READERS)
def test_unreadable_files_refused(read, write, tmp_path):
    absent = tmp_path / "absent.dat"
    refused(lambda: read(absent), f"{absent} : ", "n'existe pas")
    refused(lambda: read(tmp_path), f"{tmp_path} : ", "dossier")
    refused(lambda: read("a\0b"), "lecture impossible")
    refused(lambda: read(None), "lecture impossible")
    latin = write("latin", "é".encode("latin-1"))
    refused(lambda: read(latin), f"{latin}, ligne 1 : ", "UTF-8")
    refused(lambda: read(write("utf16", "\n".join(AZURE).encode("utf-16"))), "UTF-8")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("content", ["", "\n", "\ufeff", " \r\n\r\n"])
def test_empty_files_refused(read, write, content):
    refused(lambda: read(write("trace", content)), "trace vide")


def test_traces_without_requests_refused(write):
    for end in ("", "\n", "\r\n\r\n"):
        refused(lambda end=end: read_workload(write("a.csv", HEADER + end)), "trace vide")
    refused(lambda: read_workload(write("a.json", "[]"), None, count_words), "trace vide")


def test_bad_bytes_are_placed(write):
    content = "\n".join(AZURE).encode() + b"\n\xff\n"
    refused(lambda: read_azure_csv(write("a.csv", content)), "ligne 5", "UTF-8")
    refused(lambda: read_jsonl(write("a.jsonl", GOOD.encode() + b"\n\xff")), "ligne 2", "UTF-8")


def test_imports_without_torch():
    code = "import sys; import minibatcher.simulation.workload; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], timeout=60).returncode == 0
