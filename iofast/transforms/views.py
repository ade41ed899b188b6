"""Several views of each image, read and decoded once: the crops of DINO, SwAV, SimCLR."""

from collections.abc import Sequence
from dataclasses import dataclass
from keyword import iskeyword
from operator import index

from iofast.errors import OptionError

MOST_VIEWS = 256  # of an image


@dataclass(frozen=True, slots=True, init=False)
class Views:
    """Named views of each image, each with a transform, or a number of views with one transform: `local=(8, […])`.

    A batch's images are a dictionary. Under each name is a tensor (N, 3, height, width), or a list of them if a
    number was given. Each view draws its own random numbers. A trailing "_" of a name is dropped: `global_` is
    "global".
    """

    views: tuple[tuple[str, int | None, Sequence[object]], ...]

    def __init__(self, **views: Sequence[object] | tuple[int, Sequence[object]]) -> None:
        if not views:
            raise OptionError("Views: expected one view or more, such as Views(first=[…], second=[…]), found none")
        object.__setattr__(self, "views", tuple(_view(name, value) for name, value in views.items()))
        total = sum(count or 1 for _, count, _ in self.views)
        if total > MOST_VIEWS:
            raise OptionError(f"Views: expected at most {MOST_VIEWS} views of an image, found {total}")

    def __repr__(self) -> str:
        views = {name: list(own) if count is None else (count, list(own)) for name, count, own in self.views}
        if all(name.isidentifier() and not iskeyword(name) for name in views):
            return f"Views({', '.join(f'{name}={own}' for name, own in views.items())})"
        return f"Views(**{views})"


def _view(name: str, value: object) -> tuple[str, int | None, Sequence[object]]:
    name, count = name.rstrip("_") or name, None
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], Sequence):
        try:
            count, value = index(value[0]), value[1]
        except TypeError:
            count = 0
    if (count is not None and count < 1) or not isinstance(value, Sequence) or isinstance(value, str):
        raise OptionError(f"Views: {name} must be a list of transforms, or (how many, list), found {value!r}")
    return name, count, tuple(value)
