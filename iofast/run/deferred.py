"""Lazy tensors: an image that became a tensor, or a stacked batch of them, decoded at the first use.

Where DataLoader makes batches, `to_tensor` and `pil_to_tensor` give them. What is known of torch's functions stays
lazy: arithmetic on single values, copies, writing a rectangle (random erasing), `torch.stack`. Every other use decodes.
Arithmetic is done by torch on all 256 levels of a channel instead of all pixels, so that its results are torch's own to
the last digit. To another process travel the bytes of the files and a few numbers for each image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from multiprocessing.reduction import ForkingPickler
from threading import Thread, current_thread
from typing import Any, cast
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from iofast.run import notes, shadow
from iofast.run.contents import BYTES, Contents, Threads, same
from iofast.run.plan import Plan, Size
from iofast.run.source import Call, Erased, Part, Source

_Tensor = torch.Tensor
_without_functions = cast(Any, torch._C).DisableTorchFunctionSubclass
_OF_NUMPY = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


class Deferred(torch.Tensor):
    """A lazy tensor."""

    contents: Contents
    born = False  # whether this process has made one

    @staticmethod
    def __new__(cls, contents: Contents) -> Deferred:
        Deferred.born = True
        made = cast(Any, _Tensor)._make_wrapper_subclass(cls, contents.shape, dtype=contents.levels.dtype)
        self = cast(Deferred, made)
        self.contents = contents
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = kwargs or {}
        if func in _METADATA:
            with _without_functions():
                return func(*args, **named)
        if args and func in _HANDLERS and (result := _HANDLERS[func](*args, **named)) is not NotImplemented:
            return result
        return func(*_made(args), **_made(named))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Calls from C++, which see no `__torch_function__`."""
        del types
        return func(*_made(args), **_made(kwargs or {}))

    def make(self, threads: Threads | None = None) -> torch.Tensor:
        """Return the ordinary tensor."""
        return self.contents.make(threads)

    def as_subclass(self, cls: Any) -> Any:
        """Return an alias of another class of tensors. Torch's own asks no `__torch_function__`."""
        return _kind_of(cls)(self.contents)

    def __setitem__(self, place: Any, value: Any) -> None:
        own = self.contents
        if own.made is not None or own.batched or not _is_rectangle(place):
            self.make()[place] = value.make() if isinstance(value, Deferred) else value
            return
        if own.twin is not None:
            own.twin[place] = value
        stored = value.numpy().copy() if isinstance(value, _Tensor) else value
        (row,) = own.rows
        own.rows = (row._replace(erased=(*row.erased, (place[1:], stored))),)

    def __reduce_ex__(self, protocol: Any) -> Any:  # into files: an ordinary tensor
        return cast(Any, self.make()).__reduce_ex__(protocol)


def _is_rectangle(place: Any) -> bool:
    """Whether this is `[..., y0:y1, x0:x1]` or `[:, y0:y1, x0:x1]`."""
    if not isinstance(place, tuple) or len(place) != 3 or not all(isinstance(each, slice) for each in place[1:]):
        return False
    return place[0] is Ellipsis or (isinstance(place[0], slice) and place[0] == slice(None))


def _made(value: Any) -> Any:
    return tree_map(lambda each: each.make() if isinstance(each, Deferred) else each, value)


@cache
def _kind_of(kind: type) -> type[Deferred]:
    """Return the class of lazy tensors that are `kind`, such as torchvision's Image."""
    if issubclass(kind, Deferred):
        return kind
    if kind is _Tensor:
        return Deferred
    own: dict[str, Any] = {"make": lambda self, threads=None: self.contents.make(threads).as_subclass(kind)}
    if wrap := getattr(kind, "wrap", None):  # torchvision's gives an ordinary tensor the class of the one it came from
        own["wrap"] = wrap
    made = type(f"Deferred{kind.__name__}", (Deferred, kind), own)
    _register(made)
    return cast(type[Deferred], made)


def _register(kind: Any) -> None:
    default_collate_fn_map[kind] = stack
    ForkingPickler.register(kind, _send)


def defer(part: Part, real: Callable[[Any], torch.Tensor], *, floats: bool) -> Deferred:
    """Return an image as a lazy tensor of its bytes, or of floats up to 1; `real` is the script's own function."""
    levels = _levels_up_to_1(torch.get_default_dtype()) if floats else BYTES
    twin = shadow.timed(lambda: real(part.by_pillow())) if part.source.checked else None
    return Deferred(Contents((part,), levels, twin=twin))


@cache
def _levels_up_to_1(dtype: torch.dtype) -> torch.Tensor:
    return BYTES.to(dtype).div(255)


def stack(tensors: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Stack images: a lazy batch, if all of them are lazy, of one size and with the same arithmetic."""
    del collate_fn_map  # which `default_collate` gives
    own = [each.contents for each in tensors if isinstance(each, Deferred)]
    for each in own:
        each.check()
        if each.stacked:
            each.make()
        each.stacked = True
    if len(own) == len(tensors) and all(_alike(each, own[0]) for each in own):
        return Deferred(Contents(tuple(each.rows[0] for each in own), own[0].levels, batched=True))
    return torch.stack([each.make() if isinstance(each, Deferred) else each for each in tensors])


def _alike(one: Contents, other: Contents) -> bool:
    lazy = one.made is None and not one.batched and one.shape == other.shape
    return lazy and (one is other or same(one.levels, other.levels))


# Threads whose lazy tensors are decoded a moment later, in whole batches.
waiting: WeakSet[Thread] = WeakSet()


def wanted() -> bool:
    """Whether tensors of this thread should be lazy: it works for a DataLoader."""
    return get_worker_info() is not None or current_thread() in waiting


def _send(tensor: Deferred) -> Any:
    """Reduce a tensor on its way to another process. Its files are in shared memory, once each."""
    own = tensor.contents
    own.check()
    sources = list({id(row.source): row.source for row in own.rows}.values())
    numbers = {id(source): number for number, source in enumerate(sources)}
    size = sum(len(source.data) for source in sources)
    known = own.made is not None or any(source.pixels is not None for source in sources)
    if known or size >= math.prod(own.shape) * own.levels.element_size():
        return tensor.__reduce_ex__(2)
    notes.count("deferred", len(own.rows))
    notes.write_sometimes()
    storage = cast(Any, torch.UntypedStorage)._new_shared(size, device="cpu")
    data = torch.empty(0, dtype=torch.uint8).set_(storage)
    np.concatenate([np.frombuffer(source.data, np.uint8) for source in sources], out=data.numpy())
    files = [(source.name, source.size, len(source.data)) for source in sources]
    rows = [(numbers[id(row.source)], *row[1:]) for row in own.rows]
    kind = next(each for each in type(tensor).__mro__ if not issubclass(each, Deferred))
    return arrive, (kind, data, files, rows, own.levels.numpy(), own.batched)


def arrive(
    kind: type,
    data: torch.Tensor,
    files: list[tuple[str, Size, int]],
    rows: list[tuple[int, Plan, tuple[Call, ...], tuple[Erased, ...]]],
    levels: NDArray[Any],
    batched: bool,
) -> torch.Tensor:
    """Return the tensor of class `kind` that travelled: lazy in a thread of `waiting`, ordinary everywhere else.

    `files` has name, size and length in `data` of each; a row names its file.
    """
    view, at, sources = memoryview(data.numpy()), 0, list[Source]()  # type: ignore[arg-type]
    for name, size, length in files:
        sources.append(Source(view[at : at + length], size, name, checked=False))
        at += length
    parts = tuple(Part(sources[number], plan, calls, erased) for number, plan, calls, erased in rows)
    tensor = _kind_of(kind)(Contents(parts, torch.from_numpy(levels), batched))
    return tensor if current_thread() in waiting else tensor.make()


_register(Deferred)

# Functions that stay lazy get what torch's function got. NotImplemented: decode.


def _pointwise(func: Any, *args: Any, **named: Any) -> Any:
    lazy = [each for each in args if isinstance(each, Deferred)]
    if len(lazy) != 1 or lazy[0].contents.made is not None or any(row.erased for row in lazy[0].contents.rows):
        return NotImplemented
    (tensor,) = lazy
    own, in_place = tensor.contents, func in _IN_PLACE
    if in_place and (args[0] is not tensor or type(tensor) is not Deferred):
        return NotImplemented
    others = [each for each in args if each is not tensor and not isinstance(each, (int, float, torch.dtype))]
    if not all(map(_is_per_channel, others)) or not all(isinstance(each, (int, float)) for each in named.values()):
        return NotImplemented

    def called(stand_in: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, func(*(stand_in if each is tensor else each for each in args), **named))

    levels, theirs = called(own.levels.clone()), own.twin
    if levels.shape != own.levels.shape or levels.dtype not in _OF_NUMPY:
        return NotImplemented
    twin = None if theirs is None else shadow.timed(lambda: called(theirs))
    if in_place:
        own.levels = levels
        return tensor
    return Deferred(replace(own, levels=levels, twin=twin))


def on_levels(real: Callable[..., Any], tensor: Deferred, *given: Any, **named: Any) -> Deferred | None:
    """Do an operation of torchvision on all levels, once for all images; None where it has to be done on the image.

    By itself torchvision makes ten calls of torch for an image: normalize takes 170 us of a worker, this 10.
    """
    own = tensor.contents
    if own.made is not None or any(row.erased for row in own.rows):
        return None
    values = tuple(tuple(each) if isinstance(each, list) else each for each in (*given, *named.values()))
    single = [each for value in values for each in (value if isinstance(value, tuple) else (value,))]
    if not all(isinstance(each, (float, int, torch.dtype)) for each in single):  # a tensor's values may change
        return None
    try:
        levels = _once(real, own.levels, len(given), values, tuple(named))
    except (TypeError, ValueError):  # torchvision's own error, or what no dictionary takes
        return None
    if levels is None:
        return None
    theirs = own.twin
    twin = None if theirs is None else shadow.timed(lambda: real(theirs, *given, **named))
    return type(tensor)(replace(own, levels=levels, twin=twin))


@lru_cache(64)  # a tensor is a key by itself, not by its values
def _once(
    real: Callable[..., Any], levels: torch.Tensor, count: int, values: tuple[Any, ...], names: tuple[str, ...]
) -> torch.Tensor | None:
    stand_in = levels.clone()
    result = real(stand_in, *values[:count], **dict(zip(names, values[count:], strict=True)))
    unlike = type(result) is not _Tensor or result.shape != levels.shape or result.dtype not in _OF_NUMPY
    return None if unlike or result.data_ptr() == stand_in.data_ptr() else result  # in place is not for all images


def _is_per_channel(value: Any) -> bool:
    """Whether this is an ordinary tensor with one value, or one for each channel."""
    if type(value) is not _Tensor or value.device.type != "cpu" or value.requires_grad or value.dtype not in _OF_NUMPY:
        return False
    return value.ndim <= 3 and (value.numel() == 1 or tuple(value.shape) == (3, 1, 1))


def _to(tensor: Any, *more: Any, **named: Any) -> Any:
    """Change of the dtype alone."""
    given = [*more, *named.values()]
    kinds = [each for each in given if isinstance(each, torch.dtype)]
    others = [each for each in given if not isinstance(each, (torch.dtype, bool))]
    usual = (None, "cpu", torch.device("cpu"), torch.contiguous_format, torch.preserve_format)
    unusual = any(isinstance(each, _Tensor) or each not in usual for each in others)
    if not isinstance(tensor, Deferred) or len(kinds) > 1 or unusual:
        return NotImplemented
    if not kinds or kinds[0] == tensor.contents.levels.dtype:
        return tensor
    return _pointwise(_Tensor.to, tensor, kinds[0])


def _clone(tensor: Any, *, memory_format: Any = torch.preserve_format) -> Any:
    if memory_format not in (torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    own = tensor.contents
    twin, made = (None if each is None else each.clone() for each in (own.twin, own.made))
    return type(tensor)(replace(own, twin=twin, made=made))


def _same(tensor: Any, *more: Any, **named: Any) -> Any:
    """Nothing changes: contiguous memory, no gradient wanted."""
    values = [*more, *named.values()]
    return tensor if all(value is False or value is torch.contiguous_format for value in values) else NotImplemented


def _stack(tensors: Any, dim: Any = 0, **named: Any) -> Any:
    return NotImplemented if dim != 0 or named or isinstance(tensors, _Tensor) else stack(tensors)


def _pin(tensor: Any, *_: Any, **__: Any) -> Any:
    """The batch will be decoded into page-locked memory."""
    if tensor.contents.made is not None:
        return NotImplemented
    tensor.contents.pinned = True
    return tensor


_IN_PLACE = {
    getattr(_Tensor, name)
    for name in ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__")
}
_NAMES = ("add", "sub", "mul", "div", "true_divide")
_METHODS = ("__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rsub__", "__rmul__", *_NAMES)
_OUT_OF_PLACE = {getattr(_Tensor, name) for name in _METHODS} | {getattr(torch, name) for name in _NAMES}
_HANDLERS: dict[Any, Callable[..., Any]] = {
    **{func: partial(_pointwise, func) for func in _IN_PLACE | _OUT_OF_PLACE},
    _Tensor.to: _to,
    _Tensor.float: lambda tensor, **named: _to(tensor, torch.float32, **named),
    _Tensor.clone: _clone,
    torch.clone: _clone,
    _Tensor.contiguous: _same,
    _Tensor.requires_grad_: _same,
    torch.stack: _stack,
    _Tensor.pin_memory: _pin,
}
_PROPERTIES = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_nested", "is_sparse", "is_cuda")
_METADATA: frozenset[Any] = frozenset(
    [
        *(getattr(_Tensor, name).__get__ for name in _PROPERTIES),
        *(getattr(_Tensor, name) for name in ("size", "dim", "numel", "nelement", "is_floating_point", "is_complex")),
        *(_Tensor.__len__, _Tensor.is_contiguous, torch.is_floating_point, torch.is_complex, torch.numel),
    ]
)
