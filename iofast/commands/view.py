"""Draw a contact sheet (PNG): upright images with their labels, masks laid over them, and boxes.

examples:
  iofast view out.lmdb sheet.png                           32 records, chosen at random
  iofast view out.lmdb sheet.png --class tabby --count 64  of one class
  iofast view out.lmdb sheet.png --split val --seed 7      of one split, others than with seed 0
  iofast view out.lmdb sheet.png --indices 0-9,100         these
  iofast view theirs.tar sheet.png --boxes boxes.json --box-format xywh
  iofast view out.lmdb sheet.png --transform "dino(224)"   as a network gets them: the views of iofast.transforms.dino
  iofast view out.lmdb sheet.png --transform "timm_train(224, auto_augment='rand-m9-mstd0.5-inc1')"
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from iofast import owned
from iofast.commands import foreign
from iofast.commands.parser import refuse_beside
from iofast.commands.text import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

    from iofast.containers.base import Reader
    from iofast.sheet import SheetOptions

_MOST = 100_000_000  # records in a list


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("path", metavar="CONTAINER", help="a container, or a folder of images")
    parser.add_argument("target", metavar="PNG", help="the picture to make")
    chosen = parser.add_argument_group("which records")
    chosen.add_argument("--indices", metavar="LIST", help="places in the order, from 0: 0-9,100")
    chosen.add_argument("--class", dest="label", metavar="NAME", help="of this class only (its name or number)")
    chosen.add_argument("--split", metavar="NAME", help="of this split only")
    chosen.add_argument("--count", type=int, metavar="N", help="how many, at random (default 32)")
    chosen.add_argument("--seed", type=int, metavar="N", help="of random choices (default 0)")
    drawn = parser.add_argument_group("what is drawn")
    drawn.add_argument("--size", type=int, default=160, metavar="N", help="pixels of a cell's side (default 160)")
    drawn.add_argument("--columns", type=int, metavar="N", help="images in a row")
    drawn.add_argument("--mask", metavar="FIELD", help="the mask (default: the first .png field); none for none")
    drawn.add_argument(
        "--boxes", metavar="FIELD", help="default: as packed, else boxes.json, or boxes in json; none for none"
    )
    drawn.add_argument("--box-format", metavar="F", help="xyxy: corners; xywh: corner and size (default: as packed)")
    drawn.add_argument("--transform", metavar="PRESET", help="after a preset of iofast.transforms, such as train")
    foreign.add_options(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace the picture if it exists")
    parser.add_argument("--json", action="store_true", help="print which records are on it as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def run(args: argparse.Namespace) -> int:
    """Choose, draw, write."""
    from iofast.errors import OptionError, TargetError
    from iofast.opening import open_reader
    from iofast.sheet import SheetOptions, require_fields

    if not args.target.lower().endswith(".png"):
        raise OptionError(f"the picture's name must end with .png, found {args.target!r}")
    if os.path.lexists(args.target) and not args.overwrite:
        raise TargetError(f"{args.target} exists already: choose another name, or --overwrite it")
    refuse_beside(args, "transform", ("mask", "boxes", "box_format"))
    if args.transform is None:  # a transform's choices depend on the seed too
        refuse_beside(args, "indices", ("seed",))
    folder, name = os.path.split(os.path.abspath(args.target))
    if not os.path.isdir(folder):
        raise TargetError(f"{folder} is not a folder, so {name} cannot be made in it")
    mask, boxes = ("" if text == "none" else text for text in (args.mask, args.boxes))
    options = SheetOptions(args.size, args.columns, mask, boxes, args.box_format)
    with open_reader(args.path, foreign.options(args)) as reader:
        require_fields(reader, options, args.path)
        indices = choose(reader, args)
        sheet = draw(reader, args, indices, options)
    with owned.writing(Path(args.target)) as file:
        sheet.save(file, "PNG")
    if args.json:
        facts = {"version": 1, "path": args.target, "indices": indices, "size": list(sheet.size)}
        print(json.dumps(facts | ({"transform": args.transform} if args.transform is not None else {})))
    elif not args.quiet:
        say(f"{len(indices)} records on {args.target}, {sheet.width} x {sheet.height} pixels")
    return 0


def draw(reader: Reader, args: argparse.Namespace, indices: Sequence[int], options: SheetOptions) -> Image.Image:
    """Draw the records as they are, or after `--transform`."""
    from iofast.sheet import contact_sheet, views_sheet

    if args.transform is None:
        return contact_sheet(reader, indices, options)
    from iofast.commands.view_transform import preset, seen

    return views_sheet(reader, seen(args, indices, preset(args.transform)), options)


def choose(reader: Reader, args: argparse.Namespace) -> list[int]:
    """Return the dense indices that the options choose, in order. Raises `OptionError` if there are none."""
    import numpy as np

    from iofast.containers.located import pieces
    from iofast.containers.manifest import WHOLE
    from iofast.errors import OptionError
    from iofast.order.permutation import permuted

    count, seed = (32 if args.count is None else args.count), args.seed or 0
    if count < 1:
        raise OptionError(f"--count must be 1 or more, found {count}")
    refuse_beside(args, "indices", ("label", "split", "count"))
    if args.indices is not None:
        return parse_indices(args.indices, len(reader))
    split = WHOLE if args.split is None else args.split
    if split not in (WHOLE, *reader.manifest.splits):
        raise OptionError(f"there is no split {split!r}, only {', '.join(reader.manifest.splits)}")
    candidates = reader.manifest.indices(split)
    if args.label is not None:
        label = label_of(reader, args.label)
        parts = [reader.labels(part) == label for part in pieces(candidates)]
        candidates = candidates[np.concatenate(parts)] if parts else candidates
    if not len(candidates):
        raise OptionError(f"{args.path} has no such record")
    first = np.arange(min(count, len(candidates)), dtype=np.int64)
    picked = permuted(len(candidates), f"iofast/view/{seed}", first)
    return [int(index) for index in np.sort(candidates[picked])]


def label_of(reader: Reader, text: str) -> int:
    """Return a class's number by its name, or by its number if no class has that name. Raises `OptionError`."""
    from iofast.errors import OptionError, did_you_mean

    classes = reader.manifest.classes or ()
    if text in classes:
        return classes.index(text)
    if text.isascii() and text.isdigit() and (not classes or int(text) < len(classes)):
        return int(text)
    raise OptionError(f"there is no class {text!r}{did_you_mean(text, classes)}")


def parse_indices(text: str, count: int, option: str = "--indices") -> list[int]:
    """Parse a list such as `0-9,100`. Raises `OptionError` for another syntax, or indices beyond `count` records."""
    from iofast.errors import OptionError

    indices: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise OptionError(f"{option} must be numbers and ranges such as 0-9,100, found {text!r:.80}")
        start, stop = int(first), int(last if dash else first)
        if not start <= stop < count:
            raise OptionError(f"record {part.strip()} is not in 0 … {count - 1}")
        if len(indices) + stop - start >= _MOST:
            raise OptionError(f"{option} names more than {_MOST} records")
        indices += range(start, stop + 1)
    return indices
