"""`--names` and `--labels`: what the files of another program mean, where they do not say it in a usual way."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from iofast.errors import OptionError


def add_options(group: Any) -> None:
    """Register both options with a parser or a group of one."""
    group.add_argument(
        "--names",
        metavar="OURS=THEIRS,…",
        default=None,
        help="what things are called there: image=photo,label=json/category,seg.png=mask/encoded",
    )
    group.add_argument(
        "--labels", metavar="FILE", default=None, help="lines `key label`, for an LMDB of plain images without them"
    )


def given(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """The options as `open_reader` takes them; None where none was given. Raises `OptionError`."""
    found: dict[str, Any] = {}
    if args.names is not None:
        pairs = [[word.strip() for word in pair.partition("=")] for pair in args.names.split(",")]
        if not all(ours and theirs for ours, _, theirs in pairs) or len({ours for ours, _, _ in pairs}) < len(pairs):
            raise OptionError(f"names must be pairs with commas, as in image=photo,label=class, found {args.names!r}")
        found["names"] = {ours: theirs for ours, _, theirs in pairs}
    if args.labels is not None:
        found["labels"] = args.labels
    return found or None
