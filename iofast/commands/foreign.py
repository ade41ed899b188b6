"""`--names`, `--labels`, `--labels-from`: what another program's files mean, where it is not said in a usual way."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from iofast.errors import OptionError


def add_options(group: Any) -> None:
    """Register the options with a parser or a group of one."""
    group.add_argument(
        "--names",
        metavar="OURS=THEIRS,…",
        default=None,
        help="what things are called there: image=photo,label=json/category,seg.png=mask/encoded",
    )
    group.add_argument(
        "--labels", metavar="FILE", default=None, help="lines `key label`, for an LMDB of plain images without them"
    )
    group.add_argument(
        "--labels-from",
        type=int,
        choices=(0, 1),
        metavar="N",
        default=None,
        help="the number of the first class there: 1 where 0 means background, as in ImageNet's TFRecords (default 0)",
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
    if args.labels_from is not None:
        found["label_base"] = args.labels_from
    return found or None
