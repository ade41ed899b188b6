"""Which options of `pack` need others beside them: one that would have no effect is a mistake, and refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from iofast.errors import OptionError
from iofast.kernel.contract import TranscodeRecipe


class _Need(NamedTuple):
    """What `names` have an effect with: in words, whether it is so, and what is there instead."""

    names: tuple[str, ...]
    expected: str
    met: Callable[[Mapping[str, object], TranscodeRecipe], bool]
    found: Callable[[TranscodeRecipe], str]


def _re_encodes(recipe: TranscodeRecipe) -> bool:
    """Whether JPEGs are encoded although the format is "keep"."""
    return recipe.format == "keep" and (recipe.mode, recipe.icc, recipe.background) != ("none", None, None)


def _format(recipe: TranscodeRecipe) -> str:
    return f"format={recipe.format}" + (", which changes no pixel here" if recipe.format == "keep" else "")


def _mode(recipe: TranscodeRecipe) -> str:
    return f"mode={recipe.mode}"


def _none(_: TranscodeRecipe) -> str:
    return "none"


_NEEDS = (
    _Need(("quality",), "format=jpeg or webp", lambda _, r: r.format in ("jpeg", "webp") or _re_encodes(r), _format),
    _Need(("subsampling",), "format=jpeg", lambda _, r: r.format == "jpeg" or _re_encodes(r), _format),
    _Need(("restart",), "format=jpeg or keep", lambda _, r: r.format in ("jpeg", "keep"), _format),
    _Need(("check",), "format=keep", lambda _, r: r.format == "keep", _format),
    _Need(("filter", "only_shrink", "reducing_gap"), "resize=", lambda _, r: r.size is not None, _none),
    _Need(("pad_color", "mask_fill"), "mode=pad", lambda _, r: r.mode == "pad", _mode),
    _Need(("box_format",), "boxes=", lambda given, _: given["boxes"] is not None, _none),
    _Need(("split_seed",), "split=", lambda given, _: given["split"] is not None, _none),
)


def require_effects(given: Mapping[str, object], recipe: TranscodeRecipe) -> None:
    """Raise `OptionError` for one of the options that were `given` and that the others leave without effect."""
    for need in _NEEDS:
        for name in need.names:
            value = given[name]
            if value is not None and value is not False and not need.met(given, recipe):
                raise OptionError(
                    f"{name}={value} has no effect: expected {need.expected} beside it, found {need.found(recipe)}; "
                    "leave it out"
                )
