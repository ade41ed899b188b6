"""Arithmetic on lazy tensors, done by torch on all 256 levels of a channel instead of all pixels of an image.

A lazy tensor has `levels`, (3, 1, 256): the value that each level of each channel has become. An operation that looks
at single values is applied to them, so that its results are torch's own to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_Tensor = torch.Tensor
_NAMES = ("add", "sub", "mul", "div", "true_divide", "__add__", "__sub__", "__mul__", "__truediv__", "__radd__")
OUT_OF_PLACE: frozenset[Any] = frozenset(
    [getattr(_Tensor, name) for name in (*_NAMES, "__rmul__", "__rsub__", "float")]
    + [torch.add, torch.sub, torch.mul, torch.div, torch.true_divide]
)
IN_PLACE: frozenset[Any] = frozenset(
    getattr(_Tensor, name)
    for name in ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__")
)
_OF_NUMPY = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
_MOST = 256  # remembered results; a script with random numbers in its arithmetic would need any number

_BYTES = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(3, 1, 1)
_known: dict[tuple[Any, ...], torch.Tensor] = {}
_interned: dict[tuple[torch.dtype, bytes], torch.Tensor] = {}


def unchanged() -> torch.Tensor:
    """Return the levels of pixels as they are decoded, uint8."""
    return interned(_BYTES)


def interned(levels: torch.Tensor) -> torch.Tensor:
    """Return the one tensor that stands for these values, so that equal levels are the same object."""
    key = levels.dtype, levels.numpy().tobytes()
    if len(_interned) >= _MOST:
        _known.clear()
        _interned.clear()
    return _interned.setdefault(key, levels)


def applied(func: Callable[..., Any], levels: torch.Tensor, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the levels after an operation, or None if it does not look at single values alone.

    `args` has `levels` in the place of the lazy tensor.
    """
    key: list[Any] = [func, id(levels), *sorted(named.items())]
    for each in args:
        if each is levels:
            key.append("levels")
        elif isinstance(each, (int, float, torch.dtype)):
            key.append((type(each), each))
        elif type(each) is _Tensor and _per_channel(each):
            key.append((each.dtype, tuple(each.shape), each.numpy().tobytes()))
        else:
            return None
    if not all(isinstance(value, (int, float)) for value in named.values()):
        return None
    if (found := _known.get(tuple(key))) is not None:
        return found
    result = func(*(each.clone() if each is levels else each for each in args), **named)
    if result.shape != levels.shape or result.dtype not in _OF_NUMPY:
        return None
    result = interned(result)
    _known[tuple(key)] = result
    return result


def _per_channel(tensor: torch.Tensor) -> bool:
    """Whether a tensor has one value, or one for each channel."""
    plain = tensor.device.type == "cpu" and not tensor.requires_grad and tensor.dtype in _OF_NUMPY
    return plain and tensor.ndim <= 3 and (tensor.numel() == 1 or tuple(tensor.shape) == (3, 1, 1))
