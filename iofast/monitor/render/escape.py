"""Text of watched processes (command lines, paths, names of GPUs and loaders), made harmless.

The name of a program may contain an escape sequence that rewrites the terminal. `plain` returns one line of visible
characters; `prometheus.label` adds its own escapes, and rich those of HTML.
"""

from __future__ import annotations

import unicodedata

LONGEST = 400  # characters; longer text is cut
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, direction marks, surrogates, unassigned
_MARKS = frozenset({"Mn", "Me"})
_MARKS_IN_A_ROW = 2  # more combining marks than any script needs would draw over the lines above


def plain(text: str, longest: int = LONGEST) -> str:
    r"""`text` on one line of at most `longest` characters, with invisible characters written out (\x1b, \u202e)."""
    if text.isascii() and text.isprintable():  # the usual case: a screen has forty texts per second
        return text if len(text) <= longest else text[: longest - 1] + "…"
    shown: list[str] = []
    marks = 0
    for character in text[: longest + 1]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in _MARKS else 0
        code = ord(character)
        if category in _HIDDEN or marks > _MARKS_IN_A_ROW:
            shown.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
        else:
            shown.append(" " if category == "Zs" else character)
    line = "".join(shown)
    return line if len(line) <= longest else line[: longest - 1] + "…"
