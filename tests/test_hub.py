"""Les modèles du hub, sans hub : ce qui est déjà là sert tel quel, ce qui est incomplet est repris."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from minibatcher.model.weights import resolve_model


@pytest.fixture
def hub(monkeypatch, tiny_model, tmp_path):
    """Un faux hub : `local`, ce qu'un téléchargement précédent a laissé, et un réseau qui rend le modèle entier."""
    local = shutil.copytree(tiny_model(), tmp_path / "local")
    calls = []

    def snapshot_download(name, allow_patterns, local_files_only=False):
        calls.append("local" if local_files_only else "réseau")
        return str(local if local_files_only else tiny_model())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, timeout: None)
    return local, calls


def test_a_complete_model_needs_no_network(hub):
    local, calls = hub
    assert resolve_model("auteur/modele") == Path(local)
    assert calls == ["local"]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors", "un morceau"])
def test_an_interrupted_download_is_resumed(hub, tiny_model, missing):
    local, calls = hub
    if missing == "un morceau":
        index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
        (local / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        (local / missing).unlink()
    assert resolve_model("auteur/modele") == Path(tiny_model())
    assert calls == ["local", "réseau"]
