"""L'orthographe, par le programme hunspell et son dictionnaire français, avec les mots du glossaire et ceux de mots.txt."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from minibatcher.course.glossary import glossary_words
from minibatcher.course.typography import mask

WORDS = Path(__file__).with_name("mots.txt")
REQUIRED = "MINIBATCHER_REQUIRE_TOOLS"  # posée par .ci/run : l'absence de hunspell y est un échec

Text = tuple[str, int, str]  # où (un nom de fichier), numéro de sa première ligne, texte en Markdown


def missing_hunspell() -> str:
    """Pourquoi hunspell ne peut pas servir, ou une chaîne vide."""
    if shutil.which("hunspell") is None:
        return "hunspell est absent ; sous Debian : apt-get install hunspell hunspell-fr"
    done = subprocess.run(["hunspell", "-d", "fr", "-l"], input="bonjour\n", capture_output=True, text=True, timeout=60)
    return "hunspell n'a pas de dictionnaire français ; sous Debian : apt-get install hunspell-fr" if done.returncode else ""


def tools_required() -> bool:
    """Vrai en CI, où les outils du système ne sont pas facultatifs."""
    return os.environ.get(REQUIRED, "") not in ("", "0")


def accepted_words() -> set[str]:
    """Les mots admis en plus du dictionnaire."""
    lines = (line.partition("#")[0].strip() for line in WORDS.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line} | glossary_words()


def misspelled(texts: Iterable[Text], accepted: set[str] | None = None) -> list[str]:
    """Une phrase par mot inconnu et par ligne où il figure."""
    lines = [(name, first + offset, line) for name, first, text in texts for offset, line in enumerate(mask(text, " ").split("\n"))]
    words = [(name, number, word) for name, number, line in lines for word in _words(line)]
    unknown = _unknown({word for _, _, word in words}, accepted_words() if accepted is None else accepted)
    return [
        f"{name}, ligne {number} : « {word} » n'est ni dans le dictionnaire, ni au glossaire"
        for name, number, word in words
        if unknown & {word, *re.split(r"[-']", word)}
    ]


def _words(line: str) -> list[str]:
    # Ce qui contient un chiffre ou un souligné (p95, FP16, max_num_seqs) n'est pas un mot de la langue.
    return re.findall(r"[^\W\d_]+(?:[-'][^\W\d_]+)*", re.sub(r"[*#>|]|\w*[\d_]\w*", " ", line))


def _unknown(words: set[str], accepted: set[str]) -> set[str]:
    """Ceux que hunspell ne connaît pas ; un mot composé peut être rendu par morceaux."""
    with tempfile.TemporaryDirectory() as folder:
        personal = Path(folder) / "mots"
        personal.write_text("\n".join([str(len(accepted)), *sorted(accepted)]) + "\n", encoding="utf-8")
        command = ["hunspell", "-l", "-i", "utf-8", "-d", "fr", "-p", str(personal)]
        done = subprocess.run(
            command, input="\n".join(sorted(words)), capture_output=True, text=True, timeout=120, encoding="utf-8"
        )
    if done.returncode:
        raise RuntimeError(f"hunspell a échoué : {done.stderr.strip()}")
    # Pour hunspell, « d'Orca » est un mot : celui de la liste est « Orca ».
    return {word for word in done.stdout.split() if word.rpartition("'")[2] not in accepted}
