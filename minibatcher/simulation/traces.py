"""Lire et écrire une charge : trace d'Azure, conversations ShareGPT, ou notre JSON Lines.

Une ligne mal formée est refusée avec son numéro et ce qui ne va pas ; rien n'est sauté en silence.
"""

import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path

from minibatcher.simulation.workload import WorkloadError, WorkloadRequest, is_text, shown

FIELDS = tuple(field.name for field in fields(WorkloadRequest))
PathLike = str | os.PathLike[str]
TokenCounter = Callable[[str], int]
FORMATS = {".csv": "azure", ".json": "sharegpt", ".jsonl": "jsonl"}
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
# La trace de 2024 a les mêmes colonnes, avec des dates finies par « +00:00 ».
AZURE_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(?:Z|\+00:00)?")
HUMANS, ASSISTANTS = {"human", "user"}, {"gpt", "chatgpt", "assistant", "bing", "bard"}


def read_workload(path: PathLike, format: str | None = None, count_tokens: TokenCounter | None = None) -> list[WorkloadRequest]:
    """Lit une charge. `format` : azure, sharegpt ou jsonl ; sans lui, l'extension décide, à défaut le premier caractère.

    `count_tokens` (texte → nombre de tokens) sert aux formats qui portent du texte : indispensable à ShareGPT. Toute erreur
    est une `WorkloadError` qui nomme le fichier et la ligne (à partir de 1) : aucune ligne n'est sautée en silence.
    """
    found = format if format is not None else FORMATS.get(os.path.splitext(str(path))[1].lower())
    if found is None:
        start = next((line.lstrip()[0] for _, line in _lines(path) if line.strip()), None)
        if start is None:
            raise _empty(path)
        found = {"T": "azure", "[": "sharegpt", "{": "jsonl"}.get(start)
    if found == "azure":
        return read_azure_csv(path)
    if found == "jsonl":
        return read_jsonl(path, count_tokens)
    if found == "sharegpt" and count_tokens is not None:
        return read_sharegpt(path, count_tokens)
    if found == "sharegpt":
        raise WorkloadError(f"{path} : ShareGPT ne contient que du texte ; passez count_tokens pour en compter les tokens.")
    what = "format non reconnu" if found is None else f"format {shown(found)} inconnu"
    raise WorkloadError(f"{path} : {what}. Passez format= avec l'un de : {', '.join(FORMATS.values())}.")


def read_azure_csv(path: PathLike) -> list[WorkloadRequest]:
    """Lit une trace « Azure LLM inference » (Patel et al., Splitwise, ISCA 2024 ; github.com/Azure/AzurePublicDataset).

    `arrival` compte depuis la première date, toutes décimales gardées (jusqu'à la nanoseconde). Les requêtes sont triées par
    date, dans l'ordre du fichier à date égale ; `line-n` est celle de la ligne n.
    """
    records = _records(path)
    number, header = next(records, (1, ""))
    if header and header != AZURE_HEADER:
        raise _at(path, number, f"en-tête {shown(header)} inattendu, au lieu de {AZURE_HEADER}.")
    rows: list[tuple[int, WorkloadRequest]] = []
    for number, line in records:
        columns = line.split(",")
        if len(columns) != 3:
            raise _at(path, number, f"trois colonnes sont attendues ({AZURE_HEADER}), et non {shown(line)}.")
        try:
            date = _nanoseconds(columns[0])
            prompt, output = _digits("ContextTokens", columns[1]), _digits("GeneratedTokens", columns[2])
            rows.append((date, WorkloadRequest(f"line-{number}", 0.0, prompt, output)))
        except WorkloadError as error:
            raise _at(path, number, error) from None
    if not rows:
        raise _empty(path)
    rows.sort(key=lambda row: row[0])
    for date, request in rows:
        request.arrival = (date - rows[0][0]) / 10**9
    return [request for _, request in rows]


def read_sharegpt(path: PathLike, count_tokens: TokenCounter) -> list[WorkloadRequest]:
    """Lit des conversations ShareGPT : la première question devient le prompt, la réponse qui la suit donne sa longueur.

    Une conversation qui n'a pas les deux est écartée (vLLM écarte aussi celles de moins de deux tours) : un avertissement
    (`warnings`) dit combien, et pourquoi. `conversation-n` est la n-ième du fichier ; toutes arrivent à 0.
    """
    text = "\n".join(line for _, line in _lines(path))
    try:
        conversations = json.loads(text if text.strip() else "[]")
    except json.JSONDecodeError as error:
        raise _at(path, error.lineno, f"JSON illisible ou tronqué au caractère {error.colno}.") from None
    except (ValueError, RecursionError):
        raise WorkloadError(f"{path} : JSON illisible (nombre trop long ou imbrication trop profonde).") from None
    if not isinstance(conversations, list):
        raise WorkloadError(f"{path} : une liste de conversations est attendue, et non {shown(conversations)}.")
    requests, dropped = [], Counter()
    for number, conversation in enumerate(conversations, 1):
        try:
            turns = [(turn["from"], turn["value"]) for turn in conversation["conversations"]]
            if not all(isinstance(text, str) for turn in turns for text in turn):
                raise TypeError
        except (TypeError, KeyError):
            expected = '{"conversations": [{"from": "human", "value": "…"}, …]}'
            raise WorkloadError(f"{path}, conversation {number} : {expected} attendu, et non {shown(conversation)}.") from None
        start = next((i for i, (role, _) in enumerate(turns) if role in HUMANS), len(turns))
        exchange = turns[start : start + 2]
        if len(turns) < 2:
            dropped["moins de deux tours"] += 1
        elif len(exchange) < 2 or exchange[1][0] not in ASSISTANTS:
            dropped["pas de question suivie d'une réponse"] += 1
        elif not all(is_text(text) for _, text in exchange):
            dropped["texte vide ou Unicode invalide"] += 1
        elif 0 in (counts := [count_tokens(text) for _, text in exchange]):
            dropped["aucun token dans la question ou la réponse"] += 1
        else:
            try:
                requests.append(WorkloadRequest(f"conversation-{number}", 0.0, *counts, prompt=exchange[0][1]))
            except WorkloadError as error:
                raise WorkloadError(f"{path}, conversation {number} : {error}") from None
    reasons = ", ".join(f"{reason} ({count})" for reason, count in dropped.items())
    if not requests:
        raise _empty(path, f" ; conversations écartées : {reasons}" if dropped else "")
    if dropped:
        warnings.warn(f"{path} : {dropped.total()} conversations écartées sur {len(conversations)} : {reasons}.", stacklevel=2)
    return requests


def read_jsonl(path: PathLike, count_tokens: TokenCounter | None = None) -> list[WorkloadRequest]:
    """Lit notre format : un objet JSON par ligne, de clés les champs de `WorkloadRequest`, dans l'ordre du fichier.

    Peuvent manquer : `request_id` (`line-n`), `arrival` (0), `num_prompt_tokens` si `prompt_token_ids` est là, ou `prompt` et
    `count_tokens`. Un `num_prompt_tokens` écrit à côté de `prompt` est cru sur parole.
    """
    requests: dict[str, WorkloadRequest] = {}
    lines: dict[str, int] = {}
    for number, line in _records(path):
        try:
            request = _from_json(line, number, count_tokens)
        except WorkloadError as error:
            raise _at(path, number, error) from None
        if request.request_id in lines:
            raise _at(path, number, f"request_id {request.request_id!r} est déjà celui de la ligne {lines[request.request_id]}.")
        requests[request.request_id], lines[request.request_id] = request, number
    if not requests:
        raise _empty(path)
    return list(requests.values())


def _from_json(line: str, number: int, count_tokens: TokenCounter | None) -> WorkloadRequest:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise WorkloadError(f"JSON illisible ou tronqué : {shown(line)}.") from None
    if not isinstance(record, dict):
        raise WorkloadError(f"un objet JSON ({{…}}) est attendu, et non {shown(record)}.")
    if unknown := [key for key in record if key not in FIELDS]:
        raise WorkloadError(f"clé inconnue {', '.join(map(shown, unknown))}. Clés connues : {', '.join(FIELDS)}.")
    record = {"request_id": f"line-{number}", "arrival": 0.0} | {key: value for key, value in record.items() if value is not None}
    if "num_output_tokens" not in record:
        raise WorkloadError("num_output_tokens manque : donnez la longueur de la réponse.")
    if "num_prompt_tokens" not in record:
        if isinstance(record.get("prompt_token_ids"), list):
            record["num_prompt_tokens"] = len(record["prompt_token_ids"])
        elif count_tokens is not None and is_text(record.get("prompt")):
            record["num_prompt_tokens"] = count_tokens(record["prompt"])
        else:
            raise WorkloadError("num_prompt_tokens manque : donnez-le, ou prompt_token_ids, ou prompt en passant count_tokens.")
    return WorkloadRequest(**record)


def write_jsonl(path: PathLike, requests: Sequence[WorkloadRequest]) -> None:
    """Écrit la charge pour `read_jsonl`, qui la rendra égale. Champs à `None` omis ; mêmes requêtes, mêmes octets."""
    if not requests:
        raise WorkloadError(f"{path} : charge vide, rien à écrire.")
    request_id, count = Counter(request.request_id for request in requests).most_common(1)[0]
    if count > 1:
        raise WorkloadError(f"{path} : request_id {request_id!r} sert {count} fois, il doit être unique.")
    records = ({name: value for name in FIELDS if (value := getattr(request, name)) is not None} for request in requests)
    try:
        text = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        Path(path).write_bytes(text.encode())
    except (OSError, TypeError, ValueError) as error:
        raise WorkloadError(f"{path} : écriture impossible ({error}).") from error


def _lines(path: PathLike) -> Iterator[tuple[int, str]]:
    """Numéro et texte de chaque ligne, sans sa fin (LF ou CRLF) ni l'éventuel BOM."""
    number = 0
    try:
        with Path(path).open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except FileNotFoundError:
        raise WorkloadError(f"{path} : ce fichier n'existe pas, vérifiez le chemin.") from None
    except IsADirectoryError:
        raise WorkloadError(f"{path} : c'est un dossier, donnez un fichier.") from None
    except UnicodeDecodeError:
        raise _at(path, number, "texte illisible en UTF-8 : enregistrez le fichier dans cet encodage.") from None
    except (OSError, TypeError, ValueError) as error:
        raise WorkloadError(f"{path} : lecture impossible ({error}).") from error


def _records(path: PathLike) -> Iterator[tuple[int, str]]:
    """Les lignes de `_lines`, où seules les dernières peuvent être vides."""
    blank = 0
    for number, line in _lines(path):
        if not line.strip():
            blank = blank or number
        elif blank:
            raise _at(path, blank, "ligne vide au milieu du fichier : retirez-la.")
        else:
            yield number, line


def _at(path: PathLike, number: int, message: object) -> WorkloadError:
    return WorkloadError(f"{path}, ligne {number} : {message}")


def _empty(path: PathLike, why: str = "") -> WorkloadError:
    return WorkloadError(f"{path} : trace vide, aucune requête à lire{why}.")


def _nanoseconds(date: str) -> int:
    # Ni datetime ni un float ne gardent sept décimales : secondes et fraction sont lues à part, en entiers.
    match = AZURE_DATE.fullmatch(date)
    try:
        seconds = (datetime.fromisoformat(match[1]) - datetime(1970, 1, 1)) // timedelta(seconds=1) if match else None
    except ValueError:
        seconds = None
    if seconds is None:
        raise WorkloadError(f"TIMESTAMP vaut {shown(date)} : une date comme 2023-11-16 18:15:46.6805900 est attendue.")
    return seconds * 10**9 + int((match[2] or "").ljust(9, "0"))


def _digits(name: str, text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise WorkloadError(f"{name} vaut {shown(text)} : un entier de 1 à 999999999 est attendu.")
    return int(text)
