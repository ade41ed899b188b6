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

import argparse
import ast
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast import transforms as T
from iofast.commands.shared import add_foreign, add_output, answer, foreign_given, refuse_beside, say
from iofast.containers.base import Reader
from iofast.containers.located import pieces
from iofast.containers.manifest import WHOLE
from iofast.errors import OptionError, TargetError, did_you_mean, shown
from iofast.opening import open_reader
from iofast.order.permutation import permuted
from iofast.sheet import SheetImage, SheetOptions, contact_sheet, require_fields, views_sheet

_MOST_PIXELS = 1 << 26  # of all views of one image: 800 MB as floats
_MOST = 100_000_000  # records in a list
PRESETS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (T.dino, T.evaluate, T.simclr, T.timm_train, T.train)
}


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
    add_foreign(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace the picture if it exists")
    add_output(parser, "print which records are on it as JSON")


def run(args: argparse.Namespace) -> int:
    """Choose, draw, write."""
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
    with open_reader(args.path, foreign_given(args)) as reader:
        require_fields(reader, options, args.path)
        indices = choose(reader, args)
        if args.transform is None:
            sheet = contact_sheet(reader, indices, options)
        else:
            sheet = views_sheet(reader, seen(args, indices, preset(args.transform)), options)
    with owned.writing(Path(args.target)) as file:
        sheet.save(file, "PNG")
    facts = {"path": args.target, "indices": indices, "size": list(sheet.size), "transform": args.transform}
    answer(args, facts, lambda: say(f"{len(indices)} records on {args.target}, {sheet.width} x {sheet.height} pixels"))
    return 0


def choose(reader: Reader, args: argparse.Namespace) -> list[int]:
    """Return the dense indices that the options choose, in order. Raises `OptionError` if there are none."""
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
    classes = reader.manifest.classes or ()
    if text in classes:
        return classes.index(text)
    if text.isascii() and text.isdigit() and (not classes or int(text) < len(classes)):
        return int(text)
    raise OptionError(f"there is no class {text!r}{did_you_mean(text, classes)}")


def parse_indices(text: str, count: int) -> list[int]:
    """Parse a list such as `0-9,100`. Raises `OptionError` for another syntax, or indices beyond `count` records."""
    indices: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise OptionError(f"--indices must be numbers and ranges such as 0-9,100, found {text!r:.80}")
        start, stop = int(first), int(last if dash else first)
        if not start <= stop < count:
            raise OptionError(f"record {part.strip()} is not in 0 … {count - 1}")
        if len(indices) + stop - start >= _MOST:
            raise OptionError(f"--indices names more than {_MOST} records")
        indices += range(start, stop + 1)
    return indices


def preset(text: str) -> T.Pipeline:
    """Compile the preset in `text`, such as `train` or `dino(224, local=4)`. Raises `OptionError`.

    Arguments are literals; nothing else of the text is evaluated.
    """

    name, positional, named = _parsed(text)
    if name not in PRESETS:
        guess = did_you_mean(name, PRESETS)
        raise OptionError(f"--transform must be one of {', '.join(PRESETS)}, found {shown(name)}{guess}")
    try:
        pipeline = T.compile(PRESETS[name](*positional, **named))
    except OptionError:
        raise
    except Exception as error:  # of the preset's code, for unsuitable values
        raise OptionError(f"--transform: {name} does not take the arguments in {shown(text)}: {error}") from None
    if pipeline.pixels > _MOST_PIXELS:
        raise OptionError(
            f"--transform: expected at most {_MOST_PIXELS:,} pixels of each image, found {pipeline.pixels:,} in {text}"
        )
    return pipeline


def _parsed(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return name, positional and named arguments of `name` or `name(…)`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            positional = [ast.literal_eval(each) for each in tree.args]
            named = {each.arg: ast.literal_eval(each.value) for each in tree.keywords if each.arg is not None}
            if len(named) == len(tree.keywords):
                return tree.func.id, positional, named
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass  # treated as any other invalid text
    raise OptionError(
        f"--transform must be a preset, with numbers, strings or lists as arguments, such as 'train' or 'dino(224)', "
        f"found {shown(text)}"
    )


def seen(args: argparse.Namespace, indices: Sequence[int], pipeline: T.Pipeline) -> Iterator[SheetImage]:
    """Yield the records' images as a network gets them, with normalisation undone.

    Random choices depend on the seed and on the image's place among `indices`.
    """

    from iofast.dataset import FastDataset  # here, with torch
    from iofast.loader import FastLoader

    dataset = FastDataset(args.path, split="all", indices=indices, foreign=foreign_given(args), fields=["image"])
    loader = FastLoader(
        dataset,
        transform=pipeline,
        seed=args.seed or 0,
        dtype="float32",
        ragged="raise" if pipeline.views else "list",
        on_error="drop",  # the cell of a broken image has its error
    )
    for index, batch in zip(indices, loader, strict=True):
        if loader.last_valid is not None and not bool(loader.last_valid[0]):
            yield SheetImage(index, [], loader.failures[-1].reason)
        else:
            yield SheetImage(index, _views(batch["image"], pipeline))


def _views(images: Any, pipeline: T.Pipeline) -> list[tuple[str, NDArray[np.uint8]]]:
    """Return each view of a batch's only image with its name; one view named "" if there are no `Views`."""
    if not pipeline.views:
        return [("", _pixels(images[0], pipeline))]
    views = []
    for view in pipeline.views:
        several = images[view.name] if view.count else [images[view.name]]
        for number, batch in enumerate(several, start=1):
            views.append((f"{view.name} {number}" if view.count else view.name, _pixels(batch[0], view.pipeline)))
    return views


def _pixels(image: Any, pipeline: T.Pipeline) -> NDArray[np.uint8]:
    """Undo `Normalize`: a float tensor (3, height, width) to uint8 (height, width, 3)."""
    values = image.permute(1, 2, 0).numpy()
    for op in pipeline.ops:
        if isinstance(op, T.Normalize):
            values = values * np.asarray(op.std, np.float32) + np.asarray(op.mean, np.float32)
    pixels: NDArray[np.uint8] = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return pixels
