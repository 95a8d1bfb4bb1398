"""La typographie française des textes en Markdown : ce que la construction corrige seule, ce qu'elle laisse à l'auteur.

Une source s'écrit avec des espaces ordinaires ; `fix_typography` rend insécables celles qui doivent l'être. Le reste (une espace
qui manque, un guillemet droit, un point décimal) est signalé par `check_typography`, avec la ligne. Code, formules, adresses et
balises ne sont pas regardés.
"""

import re
from dataclasses import dataclass

NBSP, THIN = "\u00a0", "\u202f"  # insécable ; insécable fine

_MASKED = [
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE),  # bloc de code
        (r"(`+)(?!`).+?(?<!`)\1(?!`)", 0),
        (r"\$\$.+?\$\$", re.DOTALL),
        (r"\$[^$\n]+\$", 0),
        (r"<!--.*?-->", re.DOTALL),
        (r"</?[a-zA-Z][^>\n]*>", 0),
        (r"\]\([^)\n]*\)", 0),  # la cible d'un lien
        (r"!(?=\[)", 0),  # le début d'une image
        (r"https?://[^\s)>]+", 0),
        (r"&#?\w+;", 0),
        (r"^[ >]*\|?[ :|-]*-[ :|-]*$", re.MULTILINE),  # le trait d'un tableau
        (r"^\[[^\]\n]+\]:.*$", re.MULTILINE),  # une définition de lien
    )
]
_UNIT = r"(?:[KMGT]i?o(?:/s)?|[nµm]?s|min|h|[kMG]?Hz|W|€|%|(?:[GT])?FLOP(?:/s)?)(?![\w])"


@dataclass(frozen=True)
class Problem:
    """Un défaut : ligne et colonne (à partir de 1) dans le texte donné, explication, et le passage."""

    line: int
    column: int
    message: str
    excerpt: str

    def __str__(self) -> str:
        return f"ligne {self.line}, colonne {self.column} : {self.message} → « {self.excerpt} »"


def mask(text: str, hidden: str = "x") -> str:
    """Le même texte, de même longueur, où chaque caractère qui n'est pas de la prose est remplacé par `hidden`."""
    for pattern in _MASKED:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", hidden, found[0]), text)
    return text


# Espaces ordinaires à rendre insécables : (motif d'une espace, ce qui la remplace).
_FIXES = [
    (re.compile(r"(?<=\S) (?=[;!?](?![\w]))"), THIN),
    (re.compile(r"(?<=[^\s|]) (?=:(?=[\s*_)»]|$))", re.MULTILINE), NBSP),
    (re.compile(r"(?<=«) | (?=»)"), NBSP),
    (re.compile(r"(?<=\d) (?=\d{3}(?!\d))"), THIN),
    (re.compile(rf"(?<=\d) (?={_UNIT})"), NBSP),
]

_CHECKS = [
    (re.compile(r"[^\s;:!?(\[/«|>*_" + NBSP + THIN + r"][*_]*[;!?](?![\w])"), "il manque une espace avant ce signe"),
    (re.compile(r"[^\s;:!?(\[/«|>*_" + NBSP + THIN + r"][*_]*:(?=[\s*_)]|$)", re.M), "il manque une espace avant les deux-points"),
    (re.compile(r" [;!?](?![\w])| :(?=[\s*_)]|$)", re.M), "l'espace avant ce signe doit être insécable"),
    (re.compile(r"«(?![" + NBSP + THIN + r"])"), "« doit être suivi d'une espace insécable"),
    (re.compile(r"(?<![" + NBSP + THIN + r"])»"), "» doit être précédé d'une espace insécable"),
    (re.compile(r"^[ >]*[;!?»](?= |$)", re.M), "la ligne ne doit pas commencer par ce signe"),
    (re.compile(r'"'), "guillemet droit : écrivez « … »"),
    (re.compile(r"’"), "apostrophe courbe : tout le cours écrit l'apostrophe droite (')"),
    (re.compile(r"\.\.\."), "trois points : écrivez …"),
    (re.compile(rf"\d(?:%|(?:[KMGT]i?o|[nµm]s|[kMG]?Hz|€)(?![\w]))|\d {_UNIT}"), "il faut une espace insécable devant l'unité"),
    (re.compile(rf"(?<![\w.])\d+\.\d+[ {NBSP}{THIN}]?{_UNIT}"), "la virgule décimale, en français"),
    (re.compile(r"(?<![\d.,])\d{1,3} \d{3}(?!\d)"), "l'espace des milliers doit être insécable"),
]


def fix_typography(text: str) -> str:
    """Le texte dont les espaces qui doivent l'être sont insécables. Rien d'autre ne change, pas même sa longueur."""
    letters = list(text)
    for pattern, replacement in _FIXES:
        for found in pattern.finditer(mask(text)):
            letters[found.start()] = replacement
    return "".join(letters)


def check_typography(text: str, first_line: int = 1) -> list[Problem]:
    """Les défauts de `text`, dans l'ordre ; `first_line` : le numéro de sa première ligne. Liste vide : rien à redire."""
    masked, problems = mask(text), []
    for pattern, message in _CHECKS:
        for found in pattern.finditer(masked):
            line_start = text.rfind("\n", 0, found.start()) + 1
            line = first_line + text.count("\n", 0, found.start())
            excerpt = text[max(line_start, found.start() - 20) : found.end() + 15].partition("\n")[0]
            problems.append(Problem(line, found.start() - line_start + 1, message, excerpt))
    return sorted(problems, key=lambda problem: (problem.line, problem.column, problem.message))
