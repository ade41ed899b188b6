"""Progress bars of tqdm, on stderr if that is a terminal or the output of a notebook; results in a notebook."""

from __future__ import annotations

import html
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm


def can_show() -> bool:
    """Whether stderr is a terminal, or the output of a notebook's cell, where `\\r` works too."""
    isatty = getattr(sys.stderr, "isatty", None)  # None where stderr is closed, or replaced by a logger
    return type(sys.stderr).__module__.startswith("ipykernel.") or (isatty is not None and isatty())


def open_bar(total: int | None, unit: str, desc: str | None = None, **options: Any) -> tqdm[NoReturn]:
    """Open a bar that vanishes when it is closed; it shows nothing unless `can_show()`. `options` are tqdm's.

    Each bar has its own lock: a Ctrl-C while tqdm takes the lock that its bars share would leave it locked, and the
    next bar of the process would wait for ever. No bar starts a thread; other bars of tqdm are not changed.
    """
    from tqdm import tqdm  # 30 ms, which a cached index need not pay

    kind: type[tqdm[NoReturn]] = type("Bar", (tqdm,), {"monitor_interval": 0, "_lock": threading.RLock()})
    # miniters: by default tqdm redraws after as many steps as before, and relies on its thread when they become slower
    options |= {"leave": False, "dynamic_ncols": True, "disable": not can_show()}
    return kind(total=total, unit=unit, desc=desc, miniters=1, **options)


def html_table(result: Any) -> str:
    """A dataclass or a mapping as a table for notebooks, without what is empty or 0."""
    named = (
        result if isinstance(result, Mapping) else {each.name: getattr(result, each.name) for each in fields(result)}
    )
    rows = (f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in named.items() if value)
    return f"<table>{''.join(rows)}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, Mapping) or (is_dataclass(value) and type(value).__str__ is object.__str__):
        return html_table(value)
    return html.escape(
        f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    )
