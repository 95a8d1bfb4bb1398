"""Le compte rendu d'une vérification : en texte, en HTML pour un carnet, en dictionnaire pour la notation."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape


class Status(StrEnum):
    """Où en est une vérification."""

    PASSED = "réussi"
    WRONG = "à revoir"
    TODO = "à faire"
    ERROR = "erreur"


# Un signe et un mot disent l'état ; la couleur (Okabe et Ito) n'est que pour le signe, sur fond clair comme sur fond sombre.
_SIGNS = {
    Status.PASSED: ("✓", "#009E73"),
    Status.WRONG: ("✗", "#D55E00"),
    Status.TODO: ("○", "#808080"),
    Status.ERROR: ("⚠", "#D55E00"),
}


@dataclass
class CheckResult:
    """Une vérification passée. `call`, `expected`, `got` : du Python ; `line` : celle de la personne ; le reste, du français."""

    name: str
    title: str
    points: float = 1
    hints: tuple[str, ...] = ()
    status: Status = Status.ERROR
    call: str = ""
    expected: str = ""
    got: str = ""
    explanation: str = ""
    misconception: str = ""
    line: str = ""

    @property
    def details(self) -> list[tuple[str, str]]:
        """Ce qu'il y a à montrer, avec son nom : appel, attendu, obtenu, ligne."""
        found = {"appel": self.call, "attendu": self.expected, "obtenu": self.got, "chez vous": self.line}
        return [(name, text) for name, text in found.items() if text]

    def to_text(self) -> str:
        """Quelques lignes : le titre, ce qui a été appelé, attendu, obtenu, et l'explication."""
        lines = [f"{_SIGNS[self.status][0]} {self.status:<9} {self.title}"]
        if self.status in (Status.WRONG, Status.ERROR):
            lines += [f"      {name:<10} {text}" for name, text in self.details]
            lines += [f"      {line}" for text in (self.explanation, self.misconception) for line in text.splitlines()]
            lines += [f"      Indice : {hint}" for hint in self.hints[:1] if self.call]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Le même, en HTML, avec tous les indices à déplier."""
        sign, color = _SIGNS[self.status]
        mark = f'<span style="color:{color};font-weight:bold" aria-hidden="true">{sign}</span>'
        parts = [f"{mark} <strong>{self.status}</strong> · {_prose(self.title)}"]
        if self.status in (Status.WRONG, Status.ERROR):
            rows = "\n".join(f"{name:<10} {text}" for name, text in self.details)
            parts += [f'<pre style="margin:.3em 0 .3em 1.6em;white-space:pre-wrap">{escape(rows)}</pre>'] if rows else []
            sentences = (_prose(self.explanation), f"<strong>{_prose(self.misconception)}</strong>" if self.misconception else "")
            parts += [f'<div style="margin-left:1.6em">{sentence}</div>' for sentence in sentences if sentence]
            parts.append(_unfolding(self.hints) if self.call else "")
        return f'<li style="margin:.35em 0;list-style:none">{"".join(parts)}</li>'


@dataclass(repr=False)
class Report:
    """Toutes les vérifications d'une réponse, dans l'ordre.

    - `version` : la même dans le carnet et chez qui note, pour que l'on puisse comparer ;
    - `load_error` : pourquoi la réponse n'a pas pu être chargée, vide si elle l'a été ; chaque vérification porte cette erreur ;
    - `printed` : ce que la réponse a affiché pendant les vérifications, raccourci.
    """

    exercise_id: str
    title: str
    file: str
    version: str
    results: list[CheckResult] = field(default_factory=list)
    load_error: str = ""
    printed: str = ""

    @property
    def num_passed(self) -> int:
        """Le nombre de vérifications réussies."""
        return sum(result.status is Status.PASSED for result in self.results)

    @property
    def passed(self) -> bool:
        """Tout est réussi (un compte rendu vide ne l'est pas)."""
        return bool(self.results) and self.num_passed == len(self.results)

    @property
    def score(self) -> float:
        """La part des vérifications réussies, entre 0 et 1."""
        return self.num_passed / len(self.results) if self.results else 0.0

    @property
    def status(self) -> Status:
        """L'état d'ensemble : réussi, à faire (rien n'est écrit), erreur (la réponse ne se charge pas) ou à revoir."""
        if self.passed:
            return Status.PASSED
        if self.results and all(result.status is Status.TODO for result in self.results):
            return Status.TODO
        return Status.ERROR if self.load_error else Status.WRONG

    @property
    def headline(self) -> str:
        """Une phrase : l'exercice, et où il en est."""
        name = f"{self.exercise_id} — {self.title}"
        if self.status is Status.TODO:
            return f"{name} : à faire"
        count = f"{self.num_passed} vérification{'s' if self.num_passed > 1 else ''} réussie{'s' if self.num_passed > 1 else ''}"
        return f"{name} : {count} sur {len(self.results)}"

    def to_text(self) -> str:
        """Le compte rendu pour un terminal."""
        lines = [self.headline]
        if self.load_error:  # la même pour toutes : la dire une fois
            lines += [f"  {line}" for line in self.load_error.splitlines()]
        else:
            lines += [f"  {line}" for result in self.results for line in result.to_text().splitlines()]
        if self.printed:
            lines += ["  Affiché pendant les vérifications :", *(f"  | {line}" for line in self.printed.splitlines())]
        return "\n".join([*lines, f"  Vérifications {self.version}"])

    __repr__ = to_text

    def _repr_html_(self) -> str:
        if self.load_error:
            body = f'<pre style="white-space:pre-wrap">{escape(self.load_error)}</pre>'
        else:
            items = "".join(result.to_html() for result in self.results)
            body = f'<ul style="padding-left:0;margin:.4em 0">{items}</ul>'
        if self.printed:
            body += f"<details><summary>Affiché pendant les vérifications</summary><pre>{escape(self.printed)}</pre></details>"
        return (
            f'<div role="group" aria-label="{escape(self.headline)}" '
            f'style="border-left:4px solid {_SIGNS[self.status][1]};padding:.2em 0 .2em .8em">'
            f"<strong>{_prose(self.headline)}</strong>{body}"
            f'<small style="opacity:.75">Vérifications {escape(self.version)}</small></div>'
        )

    def to_dict(self) -> dict:
        """Tout, en types de JSON."""
        fields = ("name", "title", "points", "call", "expected", "got", "explanation", "misconception", "line")
        return {
            "exercise": self.exercise_id,
            "title": self.title,
            "file": self.file,
            "version": self.version,
            "status": str(self.status),
            "passed": self.passed,
            "score": self.score,
            "load_error": self.load_error,
            "printed": self.printed,
            "checks": [{"status": str(r.status), **{name: getattr(r, name) for name in fields}} for r in self.results],
        }


def _prose(text: str) -> str:
    """Du français échappé pour HTML, avec ses espaces insécables."""
    text = re.sub(r" ([;!?»])", "\u202f\\1", text.replace(" :", "\u00a0:").replace("« ", "«\u202f"))
    return escape(text, quote=False)


def _unfolding(hints: tuple[str, ...]) -> str:
    """Des indices qui se déplient l'un après l'autre : chacun contient le suivant."""
    inner = ""
    for number, hint in reversed(list(enumerate(hints, start=1))):
        summary = "Un indice" if number == 1 else "Un autre indice"
        inner = f'<details style="margin-left:1.6em"><summary>{summary}</summary>{_prose(hint)}{inner}</details>'
    return inner
