"""`iofast view --transform PRESET`: a preset of `iofast.transforms` from its text, and images after it."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from iofast.commands import foreign

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iofast.sheet import SheetImage
    from iofast.transforms import Pipeline

_MOST_PIXELS = 1 << 26  # of all views of one image: 800 MB as floats


def presets() -> dict[str, Callable[..., Any]]:
    """Return the functions of `iofast.transforms` that return a list of transforms or Views, by name."""
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
    """Compile the preset in `text`, such as `train` or `dino(224, local=4)`. Raises `OptionError`.

    Arguments are literals; nothing else of the text is evaluated.
    """
    from iofast.errors import OptionError, did_you_mean, shown
    from iofast.transforms import compile as compile_transform

    name, positional, named = _parsed(text)
    known = presets()
    if name not in known:
        guess = did_you_mean(name, known)
        raise OptionError(f"--transform must be one of {', '.join(known)}, found {shown(name)}{guess}")
    try:
        pipeline = compile_transform(known[name](*positional, **named))
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
        pass  # treated as any other invalid text
    raise OptionError(
        f"--transform must be a preset, with numbers, strings or lists as arguments, such as 'train' or 'dino(224)', "
        f"found {shown(text)}"
    )


def seen(args: argparse.Namespace, indices: Sequence[int], pipeline: Pipeline) -> Iterator[SheetImage]:
    """Yield the records' images as a network gets them, with normalisation undone.

    Random choices depend on the seed and on the image's place among `indices`.
    """
    from iofast.dataset import FastDataset
    from iofast.loader import FastLoader
    from iofast.sheet import SheetImage

    dataset = FastDataset(args.path, split="all", indices=indices, foreign=foreign.options(args))
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
            yield SheetImage(index, _views(batch[0], pipeline))


def _views(images: Any, pipeline: Pipeline) -> list[tuple[str, NDArray[np.uint8]]]:
    """Return each view of a batch's only image with its name; one view named "" if there are no `Views`."""
    if not pipeline.views:
        return [("", _pixels(images[0], pipeline))]
    views = []
    for view in pipeline.views:
        several = images[view.name] if view.count else [images[view.name]]
        for number, batch in enumerate(several, start=1):
            views.append((f"{view.name} {number}" if view.count else view.name, _pixels(batch[0], view.pipeline)))
    return views


def _pixels(image: Any, pipeline: Pipeline) -> NDArray[np.uint8]:
    """Undo `Normalize`: a float tensor (3, height, width) to uint8 (height, width, 3)."""
    import numpy as np

    from iofast.transforms import Normalize

    values = image.permute(1, 2, 0).numpy()
    for op in pipeline.ops:
        if isinstance(op, Normalize):
            values = values * np.asarray(op.std, np.float32) + np.asarray(op.mean, np.float32)
    pixels: NDArray[np.uint8] = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return pixels
