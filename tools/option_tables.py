"""Write the tables of options in docs/ from the fields that state them.

python -m tools.option_tables    # rewrites what lies between `<!-- options: NAME -->` and `<!-- end of options -->`
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any

from iofast.loader import FastLoader, LoaderOptions
from iofast.option import options_of
from iofast.packing.option_fields import GROUPS, command_line

ROOT = Path(__file__).parents[1]
PAGES = ("docs/pack.md", "docs/load-reference.md")
_TABLE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end of options -->)", re.DOTALL)


def page(text: str) -> str:
    """`text` of a page with its tables of options made anew."""
    return _TABLE.sub(lambda found: found[1] + _table(found[2]) + found[3], text)


def _table(name: str) -> str:
    if name == "loader":
        return _rows("| option | default | meaning |\n|---|---|---|\n", options_of([LoaderOptions]), _keyword)
    return _rows("| option | meaning |\n|---|---|\n", command_line(GROUPS[name]), _flag)


def _rows(head: str, options: list[Field[Any]], row: Callable[[Field[Any]], str]) -> str:
    return head + "".join(f"| {row(each)} |\n" for each in options)


def _keyword(each: Field[Any]) -> str:
    default = str(each.default).removeprefix("torch.") if "torch" in str(each.default) else repr(each.default)
    return f"`{each.name}` | `{default}` | {loader_text(each.name)}"


def loader_text(name: str) -> str:
    """What the docstring of FastLoader says about an option."""
    found = re.search(rf"^{name} +(.+(?:\n {{8,}}.+)*)", inspect.getdoc(FastLoader) or "", re.MULTILINE)
    return "" if found is None else " ".join(found[1].split())


def _flag(each: Field[Any]) -> str:
    metavar = each.metadata["metavar"]
    value = "" if each.type is bool else f" {metavar or each.name.upper()}"
    return f"`--{each.name.replace('_', '-')}{value}` | {each.metadata['text'].replace('|', chr(92) + '|')}"


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / name
        path.write_text(page(path.read_text()))
