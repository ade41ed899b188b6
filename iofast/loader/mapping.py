"""`map_sample`, called in the thread that made the sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from iofast.choices import generator
from iofast.errors import OptionError

Sample = dict[str, Any]
SampleFunction = Callable[[Sample, np.random.Generator], Sample]


def mapped(
    function: SampleFunction, sample: Sample, seed: tuple[int, int, int, int], name: Callable[[], str]
) -> Sample:
    """What `function(sample, rng)` returns; `rng` depends only on `seed`, which is (seed, epoch, position, attempt).

    What the function raises gets a note with the sample's name.
    """
    try:
        result = function(sample, generator(*seed))
        if not isinstance(result, dict):
            raise OptionError(f"map_sample must return a dictionary, found {type(result).__name__}")
    except Exception as error:
        error.add_note(f"in map_sample: {name()}")
        raise
    return result


def parameters(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    """Those of `names` that are parameters of a user's function, after its first one and not bound by `partial`."""
    try:
        _, *others = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature, or without a parameter
        return []
    named = {each.name for each in others if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    bound = function.keywords if isinstance(function, partial) else {}
    return [name for name in names if name in named and name not in bound]
