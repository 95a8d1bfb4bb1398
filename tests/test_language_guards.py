"""La typographie et l'orthographe : chaque faute est vue, avec sa ligne ; ce qui n'est pas de la prose est laissé tranquille."""

import shutil

import pytest

from minibatcher.course.typography import check_typography, fix_typography
from notebooks import spelling


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("un mot: la suite", "espace avant les deux-points"),
        ("**un mot**: la suite", "espace avant les deux-points"),
        ("`code`: la suite", "espace avant les deux-points"),
        ("quoi?", "espace avant ce signe"),
        ("vraiment!", "espace avant ce signe"),
        ("un; deux", "espace avant ce signe"),
        ("un\n; deux", "la ligne ne doit pas commencer"),
        ("«un»", "« doit être suivi"),
        ('dit "oui"', "guillemet droit"),
        ("l’eau", "apostrophe courbe"),
        ("etc...", "trois points"),
        ("57%", "devant l'unité"),
        ("16Go", "devant l'unité"),
        ("3.35 To/s", "virgule décimale"),
    ],
)
def test_typography_guard(text, expected):
    problems = check_typography(f"Une ligne juste.\n{fix_typography(text)}", first_line=10)
    assert any(expected in str(problem) for problem in problems)
    assert {problem.line for problem in problems} <= {11, 12}


@pytest.mark.parametrize("text", ["quoi ?", "un : deux", "un ; deux", "« un »", "57 %", "5 ms", "1 804 pas", "Ah ! **Oui** : non"])
def test_ordinary_spaces_become_no_break(text):
    assert check_typography(text), "l'espace ordinaire est vue"
    fixed = fix_typography(text)
    assert check_typography(fixed) == []
    assert fixed.replace("\u00a0", " ").replace("\u202f", " ") == text
    assert fix_typography(fixed) == fixed


@pytest.mark.parametrize(
    "text",
    [
        "`a: b; c!`",
        '```python\nx = {1: "2"}\n```',
        "$a : b ; c!$",
        "[ici](https://a.b/c?x=1;y)",
        "![alt](x.png)",
        "| a | b |\n|---|:---:|",
        '<a href="x">',
        "à 10:30",
        "un (?) signe",
        "Qwen2.5-1.5B et vLLM 0.19.1",
        "> **Prédisez.** Rien.",
        "en 2022, 64 requêtes",
    ],
)
def test_what_is_not_prose_is_left_alone(text):
    assert check_typography(text) == []
    assert fix_typography(text) == text


@pytest.mark.skipif(shutil.which("hunspell") is None, reason="hunspell est absent")
def test_spelling_guard():
    text = "Une phrase juste, l'ordonnanceur d'Orca et `du_kode`.\nUn ordonanceur, deux requette et p95."
    assert [problem.partition(" »")[0] for problem in spelling.misspelled([("01.py", 7, text)])] == [
        "01.py, ligne 8 : « ordonanceur",
        "01.py, ligne 8 : « requette",
    ]
    assert len(spelling.misspelled([("01.py", 1, "Le minibatcher de requette.")], accepted=set())) == 2


def test_hunspell_is_required_in_ci(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "hunspell est absent" in spelling.missing_hunspell()
    monkeypatch.setenv(spelling.REQUIRED, "1")
    assert spelling.tools_required()
    monkeypatch.setenv(spelling.REQUIRED, "0")
    assert not spelling.tools_required()
