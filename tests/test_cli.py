"""La ligne de commande, dans un vrai processus : la démonstration en petit, et des erreurs en français."""

import json
import subprocess
import sys

from PIL import Image


def run(*args, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "minibatcher.cli", *args], capture_output=True, text=True, timeout=600, check=False, **kwargs
    )


def test_demo(tmp_path):
    done = run("demo", "--max-tokens", "3", "--out", str(tmp_path / "sortie"))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "sortie" / "demo.json").read_text())
    names = [row["name"] for row in result["rows"]]
    assert [("minibatcher" in name, row["num_prompts"]) for name, row in zip(names, result["rows"], strict=True)] == [
        (False, 8),
        (True, 8),
        (False, 32),
        (True, 32),
    ]
    for row in result["rows"]:
        assert row["identical"] == 1.0
        assert row["num_output_tokens"] == 3 * row["num_prompts"]
        assert row["output_throughput"] > 0
        assert row["name"] in done.stdout
    for figure, alt in result["figures"].items():
        with Image.open(tmp_path / "sortie" / figure) as image:
            assert min(image.size) > 300
            assert image.info["Description"] == alt


def test_errors_are_sentences():
    for args, expected in [
        (["demo", "--model", "nulle/part/ici"], "introuvable"),
        (["demo", "--max-tokens", "0"], "--max-tokens"),
    ]:
        done = run(*args)
        assert done.returncode == 2
        assert expected in done.stderr
        assert "Traceback" not in done.stderr


def test_help_is_french():
    done = run("demo", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage : ")
    assert "show this help" not in done.stdout
    done = run("demo", "--max-tokens", "beaucoup")
    assert done.returncode == 2
    assert "impossible" in done.stderr
    assert "invalid" not in done.stderr
    done = run("inconnue")
    assert done.returncode == 2
    assert "invalid choice" not in done.stderr
    done = run()
    assert done.returncode == 2
    assert "il manque" in done.stderr
