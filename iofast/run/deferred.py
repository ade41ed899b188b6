"""Lazy tensors: an image that became a tensor, or a stacked batch of them, decoded at the first use.

Where DataLoader makes batches, `to_tensor` and `pil_to_tensor` give them. What is known of torch's functions stays
lazy: arithmetic on single values, copies, writing a rectangle (random erasing), `torch.stack`. Every other use decodes.
Arithmetic is done by torch on all 256 levels of a channel instead of all pixels, so that its results are torch's own to
the last digit. To another process travel the bytes of the files and a few numbers for each image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache, partial
from multiprocessing.reduction import ForkingPickler
from threading import Thread, current_thread
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from iofast.run import notes, shadow
from iofast.run.contents import BYTES, Contents, Threads, same, wait_for
from iofast.run.parts import Part, Source

_Tensor = torch.Tensor
_without_functions = cast(Any, torch._C).DisableTorchFunctionSubclass
_SINGLE = (int, float, str, type(None), torch.dtype, torch.device, torch.memory_format)
_OF_NUMPY = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


class Deferred(torch.Tensor):
    """A lazy tensor. `kind` is the class of the ordinary one, such as torchvision's Image."""

    contents: Contents
    kind: type = _Tensor

    @staticmethod
    def __new__(cls, contents: Contents) -> Deferred:
        wrap = cast(Any, _Tensor)._make_wrapper_subclass
        self = cast(Deferred, wrap(cls, contents.shape, dtype=contents.levels.dtype))
        self.contents = contents
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = kwargs or {}
        if func in _METADATA:
            with _without_functions():
                return func(*args, **named)
        if func in _HANDLERS and (result := _HANDLERS[func](*args, **named)) is not NotImplemented:
            return result
        return func(*made(args), **made(named))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Calls from C++, which see no `__torch_function__`."""
        del types
        return func(*made(args), **made(kwargs or {}))

    def make(self) -> torch.Tensor:
        """Return the ordinary tensor."""
        return self.alias_of(self.contents.make())

    @classmethod
    def alias_of(cls, made: torch.Tensor) -> torch.Tensor:
        """Return an ordinary tensor as one of `kind`."""
        return made if cls.kind is _Tensor else cast(torch.Tensor, made.as_subclass(cls.kind))

    def as_subclass(self, cls: Any) -> Any:
        """Return an alias of another class of tensors. Torch's own asks no `__torch_function__`."""
        return _lazy_kind(cls)(self.contents)

    def __setitem__(self, place: Any, value: Any) -> None:
        own, dtype = self.contents, self.contents.levels.dtype
        known = type(value) is _Tensor or (isinstance(value, (int, float)) and dtype.is_floating_point)
        match place:
            case (first, slice() as rows, slice() as columns) if known and own.made is None and not own.batched:
                if first is Ellipsis or (isinstance(first, slice) and first == slice(None)):
                    if own.twin is not None:
                        own.twin[place] = value
                    stored = torch.as_tensor(value).detach().to("cpu", dtype, copy=True).numpy()
                    (row,) = own.rows
                    own.rows = (row._replace(erased=(*row.erased, ((rows, columns), stored))),)
                    return
        self.make()[place] = made(value)

    def __reduce_ex__(self, protocol: Any) -> Any:  # into files: an ordinary tensor
        return cast(Any, self.make()).__reduce_ex__(protocol)


def made(value: Any) -> Any:
    """Return what has ordinary tensors in the place of lazy ones, in containers that torch knows."""
    return tree_map(lambda each: each.make() if isinstance(each, Deferred) else each, value)


@cache
def _lazy_kind(kind: type) -> type[Deferred]:
    """Return the class of lazy tensors that are `kind`."""
    if issubclass(kind, Deferred):
        return kind
    if kind is _Tensor:
        return Deferred
    own: dict[str, Any] = {"kind": kind}
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
    return BYTES.contiguous().to(dtype).div(255)


def stack(tensors: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Stack images: a lazy batch, if all of them are lazy, of one size and with the same arithmetic."""
    del collate_fn_map  # which `default_collate` gives
    own = [each.contents for each in tensors if isinstance(each, Deferred)]
    for each in own:
        each.check()
        if each.stacked:
            each.make()
        each.stacked = True
    if len(own) < len(tensors) or not all(_alike(each, own[0]) for each in own):
        return torch.stack(made(list(tensors)))
    batch = Contents(tuple(each.rows[0] for each in own), own[0].levels.contiguous(), batched=True)
    return Deferred(batch) if (threads := loops.get(current_thread())) is None else _made_by(threads, batch)


def _made_by(threads: Threads, contents: Contents) -> torch.Tensor:
    made, under_way = contents.begin(threads)
    wait_for(under_way)
    return made


def _alike(one: Contents, other: Contents) -> bool:
    lazy = one.made is None and not one.batched and one.shape == other.shape
    return lazy and (one is other or same(one.levels, other.levels))


# Threads that take batches of a loop, with what decodes them.
loops: WeakKeyDictionary[Thread, Threads] = WeakKeyDictionary()


@contextmanager
def lazily(threads: Threads) -> Iterator[None]:
    """Let tensors of this thread be lazy until they are in a batch."""
    thread = current_thread()
    outer, loops[thread] = loops.get(thread), threads
    try:
        yield
    finally:
        if outer is None:
            del loops[thread]
        else:
            loops[thread] = outer


def wanted() -> bool:
    """Whether tensors of this thread should be lazy: it works for a DataLoader."""
    return get_worker_info() is not None or current_thread() in loops


def _sources(rows: Sequence[Part]) -> list[Source]:
    """Return the files of images, once each."""
    return list({id(row.source): row.source for row in rows}.values())


def _send(tensor: Deferred) -> Any:
    """Reduce a tensor on its way to another process. Its files are in shared memory, once each."""
    own = tensor.contents
    own.check()
    sources = _sources(own.rows)
    lengths = [len(source.data) for source in sources]
    known = own.made is not None or any(source.pixels is not None for source in sources)
    if known or sum(lengths) >= math.prod(own.shape) * own.levels.element_size():
        return tensor.__reduce_ex__(2)
    notes.count("deferred", len(own.rows))
    notes.write_sometimes()
    storage = cast(Any, torch.UntypedStorage)._new_shared(sum(lengths), device="cpu")
    data = torch.empty(0, dtype=torch.uint8).set_(storage)
    np.concatenate([np.frombuffer(source.data, np.uint8) for source in sources], out=data.numpy())
    return arrive, (tensor.kind, data, lengths, own.rows, own.levels.numpy(), own.batched)


def arrive(
    kind: type, data: torch.Tensor, lengths: list[int], rows: tuple[Part, ...], levels: NDArray[Any], batched: bool
) -> torch.Tensor:
    """Return the tensor of class `kind` that travelled.

    In a thread of `loops` its values are written a moment later; in one that pins it is lazy until then.
    `data` has the bytes of the files of `rows`, one after the other; `lengths` of each.
    """
    view, at = memoryview(data.numpy()), 0  # type: ignore[arg-type]
    for source, length in zip(_sources(rows), lengths, strict=True):
        source.data = view[at : at + length]
        at += length
    tensor = _lazy_kind(kind)(Contents(rows, torch.from_numpy(levels), batched))
    threads = loops.get(current_thread())
    if threads is None:
        return tensor.make()
    if threads.pins:
        return tensor
    made, under_way = tensor.contents.begin(threads)
    threads.under_way += under_way
    return tensor.alias_of(made)


_register(Deferred)

# Functions that stay lazy get what torch's function got. NotImplemented: decode.


def on_levels(func: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Do a function that changes each value by itself, or none, on all levels instead of all pixels.

    Functions of torchvision are done once for all images: they make ten calls of torch, and normalize takes 170 us of a
    worker, this 10.
    """
    lazy = [each for each in given if isinstance(each, Deferred)]
    if len(lazy) != 1 or lazy[0].contents.made is not None:
        return NotImplemented
    (tensor,), of_torch = lazy, func in _HANDLERS
    own, others = tensor.contents, [each for each in given if each is not tensor]
    values = tuple(tuple(each) if isinstance(each, list) else each for each in (*others, *named.values()))
    single = [each for value in values for each in (value if isinstance(value, tuple) else (value,))]
    arrays = [each for each in single if not isinstance(each, _SINGLE)]  # whose values may differ, or change
    if arrays and (named or not of_torch or not all(map(_is_per_channel, arrays))):
        return NotImplemented

    def called(pixels: torch.Tensor) -> Any:
        return func(*(pixels if each is tensor else each for each in given), **named)

    stand_in = own.levels.clone() if of_torch else own.levels
    try:
        levels = called(stand_in) if of_torch else _once(func, own.levels, len(others), values, tuple(named))
    except (TypeError, ValueError, RuntimeError):  # torch's own error, at the image
        return NotImplemented
    if levels is None or (of_torch and not _is_like(levels, stand_in)):
        return NotImplemented
    in_place = levels is stand_in
    alike = same(levels, own.levels) and levels.stride() == own.levels.stride()
    if func in _COPIES and alike:  # or nothing has changed at all
        levels = own.levels
    elif any(row.erased for row in own.rows) or (in_place and type(tensor) is not Deferred):
        return NotImplemented
    theirs = own.twin
    twin = None if theirs is None else shadow.timed(lambda: called(theirs))
    keeps = func in _KEEP or not of_torch
    if in_place:
        own.levels = levels
        return tensor if keeps or func in _ARITHMETIC else Deferred(own)
    return (type(tensor) if keeps else Deferred)(replace(own, levels=levels, twin=twin))


@lru_cache(64)  # a tensor is a key by itself, not by its values
def _once(
    func: Callable[..., Any], levels: torch.Tensor, count: int, values: tuple[Any, ...], names: tuple[str, ...]
) -> torch.Tensor | None:
    stand_in = levels.clone()
    result: torch.Tensor = func(stand_in, *values[:count], **dict(zip(names, values[count:], strict=True)))
    # What is done in place is not for all images.
    return None if result.data_ptr() == stand_in.data_ptr() or not _is_like(result, levels) else result


def _is_per_channel(value: Any) -> bool:
    """Whether this is an ordinary tensor with one value, or one for each channel."""
    return _is_ordinary(value) and value.ndim <= 3 and (value.numel() == 1 or tuple(value.shape) == (3, 1, 1))


def _is_ordinary(value: Any) -> bool:
    on_cpu = type(value) is _Tensor and value.device.type == "cpu"
    return on_cpu and not value.requires_grad and value.dtype in _OF_NUMPY


def _is_like(value: Any, levels: torch.Tensor) -> bool:
    return _is_ordinary(value) and value.shape == levels.shape


def _stack(tensors: Any, dim: Any = 0, **named: Any) -> Any:
    return NotImplemented if dim != 0 or named or isinstance(tensors, _Tensor) else stack(tensors)


def _pin(tensor: Any, *_: Any, **__: Any) -> Any:
    """Decode a batch into page-locked memory."""
    threads = loops.get(current_thread())
    if threads is None or tensor.contents.made is not None:
        return NotImplemented
    return tensor.alias_of(_made_by(threads, tensor.contents))


_NAMES = ("add", "sub", "mul", "div", "true_divide")
_METHODS = ("__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rsub__", "__rmul__", *_NAMES)
_IN_PLACE = ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__")
_ARITHMETIC = {getattr(_Tensor, name) for name in _METHODS + _IN_PLACE} | {getattr(torch, name) for name in _NAMES}
_COPIES = {getattr(_Tensor, name) for name in ("to", "float", "clone", "contiguous", "requires_grad_")} | {torch.clone}
_KEEP = {_Tensor.to, _Tensor.clone, _Tensor.requires_grad_}  # the class of a tensor, in torchvision
_HANDLERS: dict[Any, Callable[..., Any]] = {
    **{func: partial(on_levels, func) for func in _ARITHMETIC | _COPIES},
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
