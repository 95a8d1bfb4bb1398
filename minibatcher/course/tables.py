"""Un tableau qui s'affiche dans un carnet (HTML) comme dans un terminal (texte)."""

import re
from dataclasses import dataclass
from html import escape

from minibatcher.course.typography import fix_typography


@dataclass(frozen=True, repr=False)
class Table:
    """Des textes en lignes et en colonnes, dont la typographie est corrigée. Un `code` entre accents graves est en chasse fixe."""

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col" style="text-align:left">{_html(text)}</th>' for text in self.headers)
        body = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{_html(text)}</td>' for text in row) + "</tr>" for row in self.rows
        )
        return f"<table><caption>{_html(self.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __str__(self) -> str:
        lines = [tuple(fix_typography(text).replace("`", "") for text in row) for row in (self.headers, *self.rows)]
        widths = [max(len(row[column]) for row in lines) for column in range(len(self.headers))]
        drawn = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in lines]
        return "\n".join([self.caption, "", drawn[0], "  ".join("─" * width for width in widths), *drawn[1:]])

    __repr__ = __str__


def _html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(fix_typography(text)))
