"""`iofast view --transform PRESET`: a preset of `iofast.transforms` by its text, and images as it makes them."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from iofast.commands import foreign
from iofast.commands.parser import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iofast.sheet import SheetImage
    from iofast.transforms import Pipeline

_MOST_PIXELS = 1 << 26  # that are made of one image: 800 MB of them as floats


def presets() -> dict[str, Callable[..., Any]]:
    """The functions of `iofast.transforms` that return a list of transforms, or Views, by their names."""
    import inspect

    from iofast import transforms

    functions = {name: getattr(transforms, name) for name in transforms.__all__}
    kinds = ("list[Transform]", "Views")
    return {
        name: each
        for name, each in sorted(functions.items())
        if inspect.isfunction(each) and each.__annotations__.get("return") in kinds
    }


def preset(text: str) -> Pipeline:
    """What `text` names, such as `train` or `dino(224, local=4)`, compiled. Raises `OptionError`.

    Arguments are literals. Nothing of the text is evaluated but them.
    """
    from iofast.errors import OptionError, shown
    from iofast.transforms import compile as compile_transform

    name, positional, named = _parsed(text)
    known = presets()
    if name not in known:
        guess = did_you_mean(name, known)
        raise OptionError(f"--transform must be one of {', '.join(known)}, found {shown(name)}{guess}")
    try:
        made = compile_transform(known[name](*positional, **named))
    except OptionError:
        raise
    except Exception as error:  # of values that the preset's own code cannot use
        raise OptionError(f"--transform: {name} cannot take what is given in {shown(text)}: {error}") from None
    if made.pixels > _MOST_PIXELS:
        most = f"{_MOST_PIXELS:,}"
        raise OptionError(f"--transform: expected at most {most} pixels of each image, found {made.pixels:,} in {text}")
    return made


def _parsed(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, positional and named arguments of `name` or `name(…)`."""
    from iofast.errors import OptionError, shown

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
        pass  # the same as any other text that is no such call
    raise OptionError(
        f"--transform must be a preset, with numbers, texts or lists as arguments, such as 'train' or 'dino(224)', "
        f"found {shown(text)}"
    )


def seen(args: argparse.Namespace, indices: Sequence[int], pipeline: Pipeline) -> Iterator[SheetImage]:
    """The records' images as a network sees them, with normalisation undone.

    What is drawn at random depends on the seed and the image's place among `indices`.
    """
    import torch

    from iofast.dataset import FastDataset
    from iofast.loader import FastLoader
    from iofast.sheet import SheetImage

    targets = {} if pipeline.part is None else _boxes(args, pipeline)
    dataset = FastDataset(
        args.path,
        split="all",
        indices=indices,
        foreign=foreign.given(args),
        fields=["image", *targets] if targets else None,
    )
    # "drop": an image that cannot be decoded is a cell that says so, as without a preset
    loader = FastLoader(
        dataset,
        transform=pipeline,
        targets=targets,
        seed=args.seed or 0,
        dtype=torch.float32,
        ragged="raise" if pipeline.views else "list",
        on_error="drop",
    )
    for index, batch in zip(indices, loader, strict=True):
        images = batch["image"] if targets else batch[0]
        failed = loader.last_valid is not None and not bool(loader.last_valid[0])
        yield (
            SheetImage(index, [], loader.failures[-1].reason) if failed else SheetImage(index, _views(images, pipeline))
        )


def _boxes(args: argparse.Namespace, pipeline: Pipeline) -> dict[str, str]:
    """The field with the boxes that images are cut by, and what they are. Raises `OptionError` where there is none."""
    from iofast.errors import OptionError
    from iofast.opening import open_reader

    with open_reader(args.path, foreign.given(args)) as reader:
        fields, packed = reader.manifest.fields, reader.manifest.recipe
    name = next((own for own in (packed.get("boxes"), "boxes.json") if own in fields), None)
    if name is None:
        raise OptionError(f"--transform: {pipeline.part!r} goes by boxes, and {args.path} has no field boxes.json")
    return {str(name): "boxes:xywh" if packed.get("box_format") == "xywh" else "boxes"}


def _views(images: Any, pipeline: Pipeline) -> list[tuple[str, NDArray[np.uint8]]]:
    """Each view of the only image in a batch, with its name; one without a name where there are no `Views`."""
    if not pipeline.views:
        return [("", _pixels(images[0], pipeline))]
    found = []
    for view in pipeline.views:
        several = images[view.name] if view.count else [images[view.name]]
        for number, batch in enumerate(several, start=1):
            found.append((f"{view.name} {number}" if view.count else view.name, _pixels(batch[0], view.pipeline)))
    return found


def _pixels(image: Any, pipeline: Pipeline) -> NDArray[np.uint8]:
    """A float tensor (3, height, width) as uint8 (height, width, 3), as it was before `Normalize`."""
    import numpy as np

    from iofast.ops import Normalize

    values = image.permute(1, 2, 0).numpy()
    for op in pipeline.ops:
        if isinstance(op, Normalize):
            values = values * np.asarray(op.std, np.float32) + np.asarray(op.mean, np.float32)
    made: NDArray[np.uint8] = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return made
