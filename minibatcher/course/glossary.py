"""Le glossaire : un fichier de données, un tableau pour le carnet 00, et les mots que le contrôle d'orthographe accepte."""

import re
import tomllib
import unicodedata
from dataclasses import dataclass, fields
from pathlib import Path

from minibatcher.course.tables import Table
from minibatcher.errors import MinibatcherError

GLOSSARY = Path(__file__).with_name("glossary.toml")


class GlossaryError(MinibatcherError, ValueError):
    """Le fichier du glossaire est mal écrit."""


@dataclass(frozen=True)
class Term:
    """Un terme du métier, sa définition en une phrase, et le premier carnet qui s'en sert (« 01 »)."""

    fr: str
    en: str
    definition: str
    lesson: str


def load_glossary(path: Path = GLOSSARY) -> tuple[Term, ...]:
    """Les termes, dans l'ordre du fichier. Lève `GlossaryError` : entrée incomplète, champ inconnu, terme en double."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("term", [])
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise GlossaryError(f"Glossaire illisible ({path}) : {problem}.") from None
    names = [field.name for field in fields(Term)]
    terms: list[Term] = []
    for number, entry in enumerate(entries, start=1):
        if sorted(entry) != sorted(names) or not all(isinstance(value, str) and value.strip() for value in entry.values()):
            raise GlossaryError(f"{path.name}, entrée {number} : il faut les textes {', '.join(names)}, et rien d'autre.")
        if entry["fr"] in {term.fr for term in terms}:
            raise GlossaryError(f"{path.name}, entrée {number} : « {entry['fr']} » y est déjà.")
        terms.append(Term(**entry))
    return tuple(terms)


def glossary_table(lessons: tuple[str, ...] | None = None) -> Table:
    """Le glossaire en tableau, dans l'ordre alphabétique français ; `lessons` : seulement ces carnets (« 00 », « 01 »…)."""
    terms = [term for term in load_glossary() if lessons is None or term.lesson in lessons]
    rows = tuple((term.fr, term.en, term.definition, term.lesson) for term in sorted(terms, key=lambda term: _unaccented(term.fr)))
    return Table("Glossaire", ("en français", "en anglais", "ce que c'est", "carnet"), rows)


def glossary_words() -> set[str]:
    """Tous les mots des termes, français et anglais, et leur pluriel en s."""
    words = {word for term in load_glossary() for word in re.findall(r"[^\W\d_]+", f"{term.fr} {term.en}")}
    return words | {f"{word}s" for word in words if not word.endswith("s")}


def _unaccented(text: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(letter))
