"""`--names`, `--labels-from`: the meaning of another program's files."""

import argparse
from collections.abc import Mapping
from typing import Any

from iofast.errors import OptionError


def add_options(group: Any) -> None:
    """Add the options to a parser or an argument group."""
    group.add_argument(
        "--names",
        metavar="OURS=THEIRS,…",
        default=None,
        help="names in another program's files: image=photo,label=json/category,seg.png=mask/encoded",
    )
    group.add_argument(
        "--labels-from",
        type=int,
        choices=(0, 1),
        metavar="N",
        default=None,
        help="the number of its first class: 1 if 0 means background, as in ImageNet's TFRecords (default 0)",
    )


def options(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """Return the options for `open_reader`, None if there are none. Raises `OptionError`."""
    options: dict[str, Any] = {}
    if args.names is not None:
        pairs = [[word.strip() for word in pair.partition("=")] for pair in args.names.split(",")]
        if not all(ours and theirs for ours, _, theirs in pairs) or len({ours for ours, _, _ in pairs}) < len(pairs):
            raise OptionError(f"names must be pairs with commas, as in image=photo,label=class, found {args.names!r}")
        options["names"] = {ours: theirs for ours, _, theirs in pairs}
    if args.labels_from is not None:
        options["label_base"] = args.labels_from
    return options or None
