"""Ce que des réponses hostiles ou maladroites ne peuvent pas faire : passer, bloquer, arrêter, ou fausser la suite."""

import builtins
import random
import signal
import threading
from pathlib import Path

import pytest

import minibatcher.course.compare
from minibatcher.course.check import run_checks
from minibatcher.course.compare import difference, show, type_name
from minibatcher.course.places import solutions_folder
from minibatcher.course.report import Status

SOLUTION = (solutions_folder() / "ex01_batching.py").read_text(encoding="utf-8")
WRONG = "def batching_statique(longueurs, B):\n    return 1, 0.5\ndef batching_continu(longueurs, B):\n    return 1, 0.5\n"
ALWAYS_EQUAL = """
class Egal:
    def __eq__(self, other): return True
    def __getattr__(self, name): return self
    def __call__(self, *args): return self
    __hash__ = None
    __float__ = lambda self: 0.5
    __int__ = __index__ = lambda self: 1
    __lt__ = __le__ = __gt__ = __ge__ = __eq__
class Entier(int):
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __mul__ = __sub__ = __abs__ = lambda self, other=0: 0
class Paire(tuple):
    __eq__ = lambda self, other: True
class Menteur:
    __class__ = tuple
    __len__ = lambda self: 2
    __iter__ = lambda self: iter((1, 0.5))
"""


def returning(text, before=""):
    body = f"(longueurs, B):\n    return {text}\n"
    return f"{before}\ndef batching_statique{body}def batching_continu{body}"


HOSTILE = {
    "toujours égal": returning("Egal()", ALWAYS_EQUAL),
    "paire d'objets toujours égaux": returning("(Egal(), Egal())", ALWAYS_EQUAL),
    "int dérivé": returning("(Entier(1), 0.5)", ALWAYS_EQUAL),
    "tuple dérivé": returning("Paire((1, 0.5))", ALWAYS_EQUAL),
    "menteur": returning("Menteur()", ALWAYS_EQUAL),
    "instance appelable": ALWAYS_EQUAL + "batching_statique = batching_continu = Egal()\n",
    "exit à l'import": SOLUTION + "\nimport sys; sys.exit(0)\n",
    "exit dans la fonction": returning("exit(0)"),
    "SystemExit": returning("(_ for _ in ()).throw(SystemExit(0))"),
    "KeyboardInterrupt": returning("(_ for _ in ()).throw(KeyboardInterrupt())"),
    "nan": returning("(1, float('nan'))"),
    "booléen": returning("(True, 0.5)"),
    "builtins": "import builtins\nbuiltins.type = lambda x: tuple\nbuiltins.all = lambda x: True\nbuiltins.abs = lambda x: 0\n"
    + WRONG,
    "isclose": "import math\nmath.isclose = lambda *a, **k: True\n" + WRONG,
    "moteur": "import minibatcher.course.trial as t\nt.difference = t.wrong_type = lambda *a, **k: None\n" + WRONG,
    "nom ajouté": "import minibatcher.course.compare as c\nc.type = lambda x: int\nc.len = lambda x: 2\n" + WRONG,
    "référence": (
        "import minibatcher.course.checks.check_ex01 as c\n"
        "c.batching_statique = c.batching_continu = lambda n, B: (1, 0.5)\nc.CASES.clear()\n" + WRONG
    ),
    "copie": "import copy\ncopy.deepcopy = lambda x: x\n" + WRONG,
    "fonction du paquet": "from minibatcher.simulation.slots import batching_continu, batching_statique\n",
    "exception au texte hostile": "class E(Exception):\n    def __str__(self): raise E\n" + returning("(_ for _ in ()).throw(E())"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_do_not_pass(name):
    report = run_checks("ex01", HOSTILE[name], time_limit=2.0)
    assert [result.name for result in report.results if result.name == "carnet" and result.status is Status.PASSED] == []
    assert report.num_passed <= 1, report
    assert report._repr_html_()


def test_nothing_survives_a_hostile_answer():
    before = (builtins.type, random.Random, minibatcher.course.compare.difference)
    source = (
        "import builtins, random, minibatcher.course.compare as c\n"
        "builtins.type = None; random.Random = None; c.difference = None; c.len = None\n"
    )
    run_checks("ex01", source + WRONG)
    assert (builtins.type, random.Random, minibatcher.course.compare.difference) == before
    assert not hasattr(minibatcher.course.compare, "len")
    assert run_checks("ex01", SOLUTION).passed


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "La fonction batching_statique est absente. Écrivez : def batching_statique(longueurs, B)."),
        (
            "batching_statique = 3\n",
            "batching_statique doit être une fonction (def batching_statique(longueurs, B)), et non un entier",
        ),
        ("def batching_statique(longueurs):\n    return 1\n", "doit accepter 2 arguments"),
        ("def batching_statique(longueurs, B, politique):\n    return 1\n", "doit accepter 2 arguments"),
        ("from minibatcher.simulation.slots import batching_statique\n", "vient du paquet minibatcher : écrivez la vôtre"),
        ("def batching_statique(n, B):\n    n[0] + 1\n", "rien n'est rendu (None) : manque-t-il un return ?"),
        ("def batching_statique(n, B):\n    return 1\n", "Le résultat (etapes, utilisation) doit être un tuple, et non un entier"),
        ("def batching_statique(n, B):\n    return 1, 2, 3\n", "doit avoir 2 éléments, (etapes, utilisation), et non 3"),
        (
            "import numpy\ndef batching_statique(n, B):\n    return numpy.max(n), 1.0\n",
            "non un objet de type numpy.int64 : convertissez",
        ),
        ("def batching_statique(n, B):\n    return max(n), B // 1\n", "« utilisation » doit être un nombre à virgule (float)"),
        (
            "def batching_statique(n, B):\n\n    return n[99]\n",
            "ligne 3 : return n[99]\n        IndexError : list index out of range.",
        ),
        ("import json\ndef batching_statique(n, B):\n    return json.loads('{')\n", "ligne 3 : return json.loads('{')"),
        (
            "class F:\n    def __call__(self, n, B):\n        return 10, 0.5\nbatching_statique = F()\n",
            "batching_statique doit être une fonction (def batching_statique(longueurs, B)), et non un objet de type F.",
        ),
        ("def batching_statique(n, B):\n    return math.pi\n", "La réponse est vérifiée seule"),
        ("def batching_statique(n, B):\n    return batching_statique(n, B)\n", "RecursionError"),
        (
            "def batching_statique(n, B)\n    return 1\n",
            "Erreur de syntaxe, ligne 1 : il manque « : » à la fin\n      def batching_statique(n, B)",
        ),
        ("\n\nx = (1,\n", "Erreur de syntaxe, ligne 3 : « ( » n'est jamais refermé"),
        ("%matplotlib inline\n", "une commande IPython n'est pas du Python"),
        ("a = 1\n\0", "pas du Python"),
        ("x = " + "(" * 5000 + ")" * 5000 + "\n", ""),
        ("y = 1\n1 / 0\n", "La réponse ne se charge pas. ZeroDivisionError : division by zero.\n      ligne 2 : 1 / 0"),
        ("import sys\nsys.exit()\n", "retirez cet appel à exit ou quit"),
    ],
)
def test_what_goes_wrong_is_said(source, said):
    report = run_checks("ex01", source)
    assert not report.passed
    assert said in report.to_text()
    assert "Traceback" not in report.to_text()
    assert "guard.py" not in report.to_text()


def test_unreadable_files_are_said(tmp_path):
    for content, said in [(None, "est absent"), ("é = 1".encode("latin-1"), "n'est pas en UTF-8")]:
        path = tmp_path / "ex01_batching.py"
        if content is not None:
            path.write_bytes(content)
        report = run_checks("ex01", path)
        assert (report.status, report.num_passed, len(report.results)) == (Status.ERROR, 0, 8)
        assert said in report.load_error
    path.write_bytes(b"\xef\xbb\xbf" + SOLUTION.replace("\n", "\r\n").encode())
    assert run_checks("ex01", path).passed, "une marque d'ordre et des fins de ligne de Windows ne gênent pas"
    assert run_checks("ex01", str(path)).passed


LOOPS = {
    "simple": "    while True:\n        pass\n",
    "except Exception": "    while True:\n        try:\n            B += 1\n        except Exception:\n            pass\n",
    "avalée une fois": "    try:\n        while True:\n            B += 1\n    except BaseException:\n        return 10, 0.5\n",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_infinite_loops_are_cut(loop):
    report = run_checks("ex01", SOLUTION + "\ndef batching_statique(longueurs, B):\n" + loop, time_limit=0.2)
    by_name = {result.name: result for result in report.results}
    assert by_name["statique_etapes"].status is Status.ERROR
    assert "n'a pas fini à temps" in by_name["statique_etapes"].explanation
    assert by_name["continu_etapes"].status is Status.PASSED, "une boucle n'empêche pas de vérifier le reste"


def test_an_infinite_loop_at_import_is_cut():
    report = run_checks("ex01", "while True:\n    pass\n", time_limit=0.2)
    assert "n'a pas fini à temps" in report.load_error
    assert "ligne" in report.load_error


def test_loops_are_cut_in_another_thread():
    reports = []
    source = SOLUTION + "\ndef batching_statique(longueurs, B):\n    while True:\n        pass\n"
    worker = threading.Thread(target=lambda: reports.append(run_checks("ex01", source, time_limit=0.2)), daemon=True)
    worker.start()
    worker.join(60)
    assert reports, "le fil de garde n'a rien coupé"
    assert reports[0].num_passed == 2
    assert "n'a pas fini à temps" in reports[0].to_text()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="pas de minuteur sur ce système")
def test_the_timer_of_someone_else_is_kept():
    previous = signal.signal(signal.SIGALRM, lambda *args: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000)
        handler = signal.getsignal(signal.SIGALRM)
        run_checks("ex01", SOLUTION)
        assert signal.getsignal(signal.SIGALRM) is handler
        assert 1 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize(
    "caught", ["", "    try:\n        signal.raise_signal(signal.SIGINT)\n    except BaseException:\n        pass\n"]
)
def test_a_real_ctrl_c_interrupts(caught):
    body = caught or "    signal.raise_signal(signal.SIGINT)\n"
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_checks("ex01", f"import signal\ndef batching_statique(n, B):\n{body}    return 1, 1.0\n")
    assert signal.getsignal(signal.SIGINT) is handler


def test_prints_are_kept_short(capsys):
    report = run_checks("ex01", 'def batching_statique(n, B):\n    print("coucou" * 10**6)\n    return 10, 0.5\n')
    assert capsys.readouterr() == ("", "")
    assert "coucou" in report.to_text()
    assert len(report.to_text()) < 5000
    assert "caractères en tout" in report.printed


def test_mutated_arguments_do_not_fool_the_comparison():
    report = run_checks("ex01", "def batching_statique(n, B):\n    n.clear()\n    return 0, 0.0\n")
    shown = report.results[0]
    assert shown.call == "batching_statique([3, 10, 5, 2], 4)"
    assert shown.expected == "etapes = 10"


def test_values_are_compared_by_exact_type():
    assert difference((1, 2.0), (1, 2.0 + 1e-12)) is None
    assert difference([1, [2, {"a": None}]], [1, [2, {"a": None}]]) is None
    for expected, got in [(1, True), (1, 1.0), (1.0, 1), ((1,), [1]), ([1], [1, 2]), ({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 2})]:
        assert difference(expected, got) is not None
    assert difference(0.5, float("nan"), "x") == "x n'est pas un nombre (nan)."


def test_values_are_shown_without_running_anything():
    class Meta(type):
        @property
        def __name__(cls):
            raise RuntimeError

    class Loud(metaclass=Meta):
        def __repr__(self):
            raise RuntimeError

    assert show(Loud()) == f"<{type_name(Loud())}>"
    assert "Loud" in type_name(Loud())
    assert len(show(list(range(10**5)))) < 100
    assert len(show("a" * 10**5)) < 100
    assert show(10**5000) == "<int trop grand pour être affiché>"
    loop = []
    loop.append(loop)
    assert show(loop)
    assert show([Loud()]) == "<list>"
    assert show(Path("x")) == f"<{type_name(Path('x'))}>"
