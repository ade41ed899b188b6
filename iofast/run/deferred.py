"""Lazy tensors: an image that became a tensor, or a stacked batch of them, decoded at the first use.

Where DataLoader makes batches, `to_tensor` and `pil_to_tensor` give them. What is known of torch's functions stays
lazy: arithmetic on single values, copies, writing a rectangle (random erasing), `torch.stack`. Every other use decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.reduction import ForkingPickler
from threading import Thread, current_thread
from typing import Any, cast
from weakref import WeakSet

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from iofast.run import decoding, notes, pointwise, shadow, shipping
from iofast.run.decoding import Threads
from iofast.run.shipping import Shipment
from iofast.run.source import Part

_Tensor = torch.Tensor
_without_functions = cast(Any, torch._C).DisableTorchFunctionSubclass


@dataclass(slots=True)
class Contents:
    """What a lazy tensor and its aliases share.

    rows     images of one size
    levels   the values that the levels of their channels have become
    batched  whether there is a dimension for the rows
    twin     the same tensor by the script's libraries, while an image is checked
    made     the ordinary tensor, as soon as it was needed
    pinned   whether it will be in page-locked memory
    stacked  whether it was copied into a batch. The second time it is made: the script keeps its tensors.
    """

    rows: tuple[Part, ...]
    levels: torch.Tensor
    batched: bool = False
    twin: torch.Tensor | None = None
    made: torch.Tensor | None = None
    pinned: bool = False
    stacked: bool = False

    def make(self, threads: Threads | None = None) -> torch.Tensor:
        """Return the ordinary tensor; it is made once. Raises Pillow's errors."""
        self.check()
        if self.made is None:
            notes.count("tensors", len(self.rows))
            self.made = self._decoded(threads)
        return self.made

    def check(self) -> None:
        """Compare the tensor with its twin, if it has one. Where they differ, the twin is right."""
        twin, self.twin = self.twin, None
        if twin is not None and not shadow.agree(self._decoded().numpy(), twin.numpy(), self.rows[0].source.name):
            self.made = twin

    def shipment(self) -> Shipment | None:
        """Return the tensor as it travels to another process, or None if it should travel as pixels."""
        self.check()
        done = self.made is not None or any(row.source.pixels is not None for row in self.rows)
        if done or not shipping.smaller(self.rows, self.levels):
            return None
        notes.count("deferred", len(self.rows))
        notes.write_sometimes()
        return shipping.pack(self.rows, self.levels, batched=self.batched, pinned=self.pinned)

    def _decoded(self, threads: Threads | None = None) -> torch.Tensor:
        return decoding.tensor(self.rows, self.levels, batched=self.batched, pinned=self.pinned, threads=threads)


class Deferred(torch.Tensor):
    """A lazy tensor."""

    contents: Contents
    born = False  # whether this process has made one

    @staticmethod
    def __new__(cls, contents: Contents) -> Deferred:
        Deferred.born = True
        width, height = contents.rows[0].plan.size
        shape = (len(contents.rows), 3, height, width) if contents.batched else (3, height, width)
        self = cast(Deferred, cast(Any, _Tensor)._make_wrapper_subclass(cls, shape, dtype=contents.levels.dtype))
        self.contents = contents
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = kwargs or {}
        if func in _METADATA:
            with _without_functions():
                return func(*args, **named)
        handler = _HANDLERS.get(func)
        if handler is not None and (result := handler(func, args, named)) is not NotImplemented:
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


# Threads whose lazy tensors are decoded a moment later, in whole batches.
waiting: WeakSet[Thread] = WeakSet()


def wanted() -> bool:
    """Whether tensors of this thread should be lazy: it works for a DataLoader."""
    return get_worker_info() is not None or current_thread() in waiting


def _send(tensor: Deferred) -> Any:
    """Reduce a tensor on its way to another process."""
    if (shipment := tensor.contents.shipment()) is not None:
        return arrive, (shipment,)
    return tensor.__reduce_ex__(2)


def arrive(shipment: Shipment) -> torch.Tensor:
    """Return the tensor that travelled: lazy in a thread of `waiting`, ordinary everywhere else."""
    own = Contents(*shipping.unpack(shipment), shipment.batched, pinned=shipment.pinned)
    return Deferred(own) if current_thread() in waiting else own.make()


ForkingPickler.register(Deferred, _send)


@cache
def _kind_of(kind: type) -> type[Deferred]:
    """Return the class of lazy tensors that are `kind`, such as torchvision's Image."""
    if issubclass(kind, Deferred):
        return kind
    if kind is _Tensor:
        return Deferred
    made = type(
        f"Deferred{kind.__name__}",
        (Deferred, kind),
        {"make": lambda self, threads=None: self.contents.make(threads).as_subclass(kind)},
    )
    default_collate_fn_map[made] = collate
    ForkingPickler.register(made, _send)
    return cast(type[Deferred], made)


def defer(part: Part, real: Callable[[Any], torch.Tensor], *, floats: bool) -> Deferred:
    """Return an image as a lazy tensor of its bytes, or of floats up to 1; `real` is the script's own function."""
    levels = pointwise.unchanged()
    if floats:
        levels = pointwise.applied(_Tensor.to, levels, (levels, torch.get_default_dtype()), {})
        levels = pointwise.applied(_Tensor.div, levels, (levels, 255), {})
    twin = shadow.timed(lambda: real(part.by_pillow("RGB"))) if part.source.checked else None
    return Deferred(Contents((part,), levels, twin=twin))


def stack(tensors: Sequence[Any]) -> torch.Tensor:
    """Stack images: a lazy batch, if all of them are lazy, of one size and with the same arithmetic."""
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
    lazy = one.made is None and not one.batched and one.levels is other.levels
    return lazy and one.rows[0].plan.size == other.rows[0].plan.size


def collate(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Stack images, for `default_collate`."""
    del collate_fn_map
    return stack(batch)


default_collate_fn_map[Deferred] = collate


def _made(value: Any) -> Any:
    return tree_map(lambda each: each.make() if isinstance(each, Deferred) else each, value)


def _is_rectangle(place: Any) -> bool:
    """Whether this is `[..., y0:y1, x0:x1]` or `[:, y0:y1, x0:x1]`."""
    if not isinstance(place, tuple) or len(place) != 3 or not all(isinstance(each, slice) for each in place[1:]):
        return False
    return place[0] is Ellipsis or (isinstance(place[0], slice) and place[0] == slice(None))


# Functions that stay lazy: called with torch's function, its arguments, those by name. NotImplemented: decode.


def _pointwise(func: Any, args: Any, named: Any) -> Any:
    lazy = [each for each in args if isinstance(each, Deferred)]
    if len(lazy) != 1 or lazy[0].contents.made is not None or any(row.erased for row in lazy[0].contents.rows):
        return NotImplemented
    (tensor,) = lazy
    own, in_place = tensor.contents, func in pointwise.IN_PLACE
    if in_place and (args[0] is not tensor or type(tensor) is not Deferred):
        return NotImplemented

    def with_lazy(stand_in: torch.Tensor) -> tuple[Any, ...]:
        return tuple(stand_in if each is tensor else each for each in args)

    levels = pointwise.applied(func, own.levels, with_lazy(own.levels), named)
    if levels is None:
        return NotImplemented
    theirs = own.twin
    twin = None if theirs is None else shadow.timed(lambda: func(*with_lazy(theirs), **named))
    if in_place:
        own.levels = levels
        return tensor
    return Deferred(replace(own, levels=levels, twin=twin))


def _to(func: Any, args: Any, named: Any) -> Any:
    """Change of the dtype alone."""
    tensor, *more = args
    given = [*more, *named.values()]
    kinds = [each for each in given if isinstance(each, torch.dtype)]
    others = [each for each in given if not isinstance(each, (torch.dtype, bool))]
    usual = (None, "cpu", torch.device("cpu"), torch.contiguous_format, torch.preserve_format)
    if not isinstance(tensor, Deferred) or len(kinds) > 1 or not all(_is_one_of(each, usual) for each in others):
        return NotImplemented
    if not kinds or kinds[0] == tensor.contents.levels.dtype:
        return tensor
    del func
    return _pointwise(_Tensor.to, (tensor, kinds[0]), {})


def _is_one_of(value: Any, usual: tuple[Any, ...]) -> bool:
    return not isinstance(value, _Tensor) and any(value == each for each in usual)


def _clone(func: Any, args: Any, named: Any) -> Any:
    del func
    if len(args) != 1 or not all(value in (torch.preserve_format, torch.contiguous_format) for value in named.values()):
        return NotImplemented
    own = args[0].contents
    twin, made = (None if each is None else each.clone() for each in (own.twin, own.made))
    return type(args[0])(replace(own, twin=twin, made=made))


def _same(func: Any, args: Any, named: Any) -> Any:
    """Nothing changes: contiguous memory, no gradient wanted."""
    del func
    values = [*args[1:], *named.values()]
    return args[0] if all(value is False or value is torch.contiguous_format for value in values) else NotImplemented


def _stack(func: Any, args: Any, named: Any) -> Any:
    del func
    dim = args[1] if len(args) > 1 else named.get("dim", 0)
    lazy = len(args) in (1, 2) and dim == 0 and named.keys() <= {"dim"} and not isinstance(args[0], _Tensor)
    return stack(args[0]) if lazy else NotImplemented


def _pin(func: Any, args: Any, named: Any) -> Any:
    """The batch will be decoded into page-locked memory."""
    del func, named
    if args[0].contents.made is not None:
        return NotImplemented
    args[0].contents.pinned = True
    return args[0]


_HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    **dict.fromkeys(pointwise.OUT_OF_PLACE | pointwise.IN_PLACE, _pointwise),
    _Tensor.to: _to,
    _Tensor.float: lambda func, args, named: _to(func, (*args, torch.float32), named),
    _Tensor.clone: _clone,
    torch.clone: _clone,
    _Tensor.contiguous: _same,
    _Tensor.requires_grad_: _same,
    torch.stack: _stack,
    _Tensor.pin_memory: _pin,
}
_PROPERTIES = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_nested", "is_sparse", "is_cuda")
_METHODS = ("size", "dim", "numel", "nelement", "is_floating_point", "is_complex", "__len__", "is_contiguous")
_METADATA: frozenset[Any] = frozenset(
    [
        *(getattr(_Tensor, name).__get__ for name in _PROPERTIES),
        *(getattr(_Tensor, name) for name in _METHODS),
        *(torch.is_floating_point, torch.is_complex, torch.numel),
    ]
)
