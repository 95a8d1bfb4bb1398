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


SMALL = ["simulate", "--num-prompts", "40", "--input-len", "50", "--output-len", "20", "--request-rate", "20"]


def test_simulate(tmp_path):
    for folder in ("a", "b"):
        done = run(*SMALL, "--ttft-target", "0.2", "--out", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
    for expected in ("40 requêtes", "TTFT", "p95", "Goodput", "Préemptions", "ui.perfetto.dev"):
        assert expected in done.stdout
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["bilan.json", "charge.jsonl", "journal.jsonl", "trace.json"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), "même graine, mêmes octets"
    report = json.loads((tmp_path / "a" / "bilan.json").read_text())
    assert report["summary"]["num_finished"] == 40
    # La charge écrite se rejoue, et donne le même bilan.
    done = run("simulate", "--dataset-path", str(tmp_path / "a" / "charge.jsonl"), "--out", str(tmp_path / "c"))
    assert done.returncode == 0, done.stderr
    again = json.loads((tmp_path / "c" / "bilan.json").read_text())
    assert again["summary"] == {**report["summary"], "goodput": None}


def test_simulate_compares(tmp_path):
    done = run(*SMALL, "--max-num-seqs", "1", "16", "--num-blocks", "2", "400", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()[-6:-1]
    assert table[0].split()[:2] == ["num_blocks", "max_num_seqs"]
    assert [line.split()[:2] for line in table[1:]] == [["2", "1"], ["2", "16"], ["400", "1"], ["400", "16"]]
    assert ["impossible" in line for line in table[1:]] == [True, True, False, False]
    rows = json.loads((tmp_path / "balayage.json").read_text())
    assert [(row["num_blocks"], row["max_num_seqs"]) for row in rows] == [(2, 1), (2, 16), (400, 1), (400, 16)]
    assert rows[3]["output_throughput"] > 2 * rows[2]["output_throughput"]
    assert len((tmp_path / "balayage.csv").read_text().splitlines()) == 5


def test_simulate_reads_traces(tmp_path):
    azure = tmp_path / "trace.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47,9000,10")
    done = run("simulate", "--dataset-path", str(azure))
    assert done.returncode == 2
    assert "max_model_len" in done.stderr
    assert "--allow-refused" in done.stderr
    done = run("simulate", "--dataset-path", str(azure), "--allow-refused")
    assert done.returncode == 0, done.stderr
    assert "Refusées           1" in done.stdout
    done = run("simulate", "--dataset-path", str(azure), "--max-model-len", "16384", "--hardware", "H100")
    assert "2 requêtes" in done.stdout
    azure.write_text(azure.read_text() + "\n2023-11-16 18:15:48,-3,10")
    done = run("simulate", "--dataset-path", str(azure))
    assert done.returncode == 2
    assert "ligne 4" in done.stderr


def test_simulate_errors_are_sentences(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,90,10")
    for args, expected in [
        (["--model", "GPT-5"], "Llama 3 8B"),
        (["--hardware", "TPU"], "A100-80"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--input-len", "0"], "--input-len"),
        (["--request-rate", "nan"], "request_rate"),
        (["--request-rate", "-1"], "request_rate"),
        (["--scheduler-cls", "lifo"], "prefill_first"),
        (["--dataset-path", str(tmp_path / "absent.csv")], "absent.csv"),
        (["--cost-model", str(tmp_path / "absent.json")], "absent.json"),
        (["--num-blocks", "3", "--allow-refused"], "refusées"),
        (["--max-num-seqs", "0", "-1"], "impossible"),
        (["--max-num-seqs"], "au moins une valeur"),
        (["--max-model-len", "0"], "max_model_len"),
        (["--jobs", "0", "--max-num-seqs", "1", "2"], "n_jobs"),
        (["--dataset-name", "azure"], "--dataset-path"),
        (["--dataset-path", str(trace), "--request-rate", "3", "--input-len", "9"], "retirez --request-rate, --input-len"),
        (["--dataset-path", str(trace), "--num-prompts", "-1"], "--num-prompts"),
        (["--out", str(trace)], "trace.csv"),
    ]:
        done = run("simulate", *(["--num-prompts", "5"] if "--num-prompts" not in args else []), *args)
        assert done.returncode == 2, (args, done.stdout)
        assert expected in done.stderr + done.stdout, args
        assert "Traceback" not in done.stderr
