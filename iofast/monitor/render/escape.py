"""Text that others wrote (command lines, paths, names of GPUs and loaders), made harmless for each kind of view.

A program's name may hold an escape sequence that rewrites the terminal, a file's name a formula or a `<script>`.
`plain` comes first everywhere: what is left has one line and only characters that show. The others add what their view
needs.
"""

from __future__ import annotations

import html
import unicodedata

LONGEST = 400  # characters: a longer command line is cut
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, direction marks, surrogates, unassigned
_MARKS = frozenset({"Mn", "Me"})
_MARKS_IN_A_ROW = 2  # more combining marks than any script stacks would draw over the lines above
_FORMULA = ("=", "+", "-", "@", "|", "%")  # how spreadsheets, old ones too, know what to run


def plain(text: str, longest: int = LONGEST) -> str:
    r"""`text` on one line: what does not show is written out (\x1b, \u202e), at most `longest` characters remain."""
    if text.isascii() and text.isprintable():  # nearly all: a screen has forty texts a second
        return text if len(text) <= longest else text[: longest - 1] + "…"
    shown: list[str] = []
    marks = 0
    for character in text[: longest + 1]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in _MARKS else 0
        if category in _HIDDEN or marks > _MARKS_IN_A_ROW:
            shown.append(_written_out(ord(character)))
        else:
            shown.append(" " if category == "Zs" else character)
    line = "".join(shown)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _written_out(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def page(text: str, longest: int = LONGEST) -> str:
    """`text` for HTML and SVG, between tags as well as within a quoted attribute."""
    return html.escape(plain(text, longest), quote=True)


def label(text: str) -> str:
    """`text` for a label's value in Prometheus' text format, without the quotes."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


def cell(text: str) -> str:
    """`text` for a cell of a CSV file: no spreadsheet takes it for a formula. Quoting is the csv module's."""
    line = plain(text)
    return f"'{line}" if line.lstrip().startswith(_FORMULA) else line
