"""LoaderOptions: everything about a FastLoader but its dataset; and the advice for options of torch's DataLoader.

The types of batches, for type checkers, follow from these options and from the dataset's `fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch

from iofast.arguments import check_integer
from iofast.errors import OptionError, shown
from iofast.loader.finishing import check_dtype
from iofast.loader.loader_stats import OnError
from iofast.loader.ranks import rank_in
from iofast.loader.target_fields import targets_of
from iofast.meter.loop import checked_device
from iofast.option import option
from iofast.order import MAX_SAMPLES, MAX_SEED, Mode, Sampled, Sequential, Shuffled
from iofast.transforms import Pipeline, Transform, Views
from iofast.transforms import compile as compile_transform

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    class Fields(dict[str, Any]):
        """A batch of a dataset with `fields`, a plain dictionary at run time."""

        @overload
        def __getitem__(self, name: Literal["image", "label", "index", "valid", "size"], /) -> torch.Tensor: ...
        @overload
        def __getitem__(self, name: Literal["key"], /) -> list[str]: ...
        @overload
        def __getitem__(self, name: str, /) -> Any: ...
        def __getitem__(self, name: str, /) -> Any: ...
else:
    Fields = dict

AnyOrder = Mode | Iterable[int]  # one of iofast.order's, or a torch Sampler
Sample = dict[str, Any]
SampleFunction = Callable[[Sample, np.random.Generator], Sample]

MAX_WORKERS = 256
MAX_PREFETCH = 64

_THREADS = "leave it out, because workers are threads of this process"
_PINNED = "leave it out, because with device='cuda' batches are copied from page-locked memory and arrive on the device"

INSTEAD = {  # options that FastLoader lacks, most of torch's DataLoader -> advice
    "batch_sampler": "give its sampler as order=, and batch_size=; order.Buckets makes batches of images of like shape",
    "collate_fn": "give collate={field: function} for the values of a field, or map_batch= for the finished batch",
    "generator": "give seed=, which order and augmentation are drawn from",
    "device_mesh": "give it as group=",
    "in_order": "leave it out, because batches always come in order",
    "mesh": "give it as group=",
    "multiprocessing_context": _THREADS,
    "num_replicas": "give world_size=, or leave it out, because the ranks come from torch.distributed",
    "num_threads": "give num_workers=",
    "persistent_workers": f"{_THREADS}, which start at once",
    "pin_memory": _PINNED,
    "pin_memory_device": _PINNED,
    "prefetch_factor": "give prefetch=, the batches that all workers together make ahead",
    "sampler": "give it as order=, which takes any sampler of single indices",
    "timeout": f"{_THREADS}; what one of them raises arrives with its batch",
    "worker_init_fn": f"{_THREADS}; map_sample gets a generator that is seeded for each sample",
}


@dataclass(frozen=True)
class LoaderOptions:
    """The options of a FastLoader, whose docstring describes them. Raises `OptionError` for wrong ones."""

    batch_size: int = option(1, limits=(1, MAX_SAMPLES))
    shuffle: bool = option(False, choices=(True, False))
    _: KW_ONLY
    order: AnyOrder | None = option(None)
    seed: int = option(0, limits=(0, MAX_SEED))
    drop_last: bool = option(False, choices=(True, False))
    transform: Sequence[Transform] | Views | Pipeline | None = option(None)
    dtype: torch.dtype | str | None = option(None)
    device: str | torch.device = option("cpu")
    output: Literal["torch", "numpy"] = option("torch", choices=("torch", "numpy"))
    cache: Literal["device"] | None = option(None, choices=("device", None))
    memory_format: torch.memory_format = option(torch.contiguous_format)
    num_workers: int | Literal["auto"] = option("auto", limits=(0, MAX_WORKERS))
    prefetch: int | Literal["auto"] = option("auto", limits=(1, MAX_PREFETCH))
    readahead: bool | Literal["auto"] = option("auto", choices=(True, False, "auto"))
    decode: Literal["auto", "cpu", "gpu"] = option("auto", choices=("auto", "cpu", "gpu"))
    pixels: Literal["exact", "fast"] = option("exact", choices=("exact", "fast"))
    check: Literal["crc"] | None = option("crc", choices=("crc", None))
    truncated: Literal["strict", "accept"] | None = option(None, choices=("strict", "accept", None))
    on_error: OnError = option("raise", choices=("raise", "replace", "drop"))
    max_errors: int | None = option(None, limits=(0, MAX_SAMPLES))
    ragged: Literal["raise", "list", "pad"] = option("raise", choices=("raise", "list", "pad"))
    image_mode: Literal["RGB", "L"] = option("RGB", choices=("RGB", "L"))
    targets: Mapping[str, str] | None = option(None)
    collate: Mapping[str, Callable[[list[Any]], Any]] | None = option(None)
    map_sample: SampleFunction | None = option(None)
    map_batch: Callable[..., Any] | None = option(None)
    rank: int | None = option(None, limits=(0, MAX_SAMPLES))
    world_size: int | None = option(None, limits=(1, MAX_SAMPLES))
    group: ProcessGroup | DeviceMesh | None = option(None)

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, _checked(each, getattr(self, each.name)))
        self._check_together()
        self._check_order()
        self._check_functions()
        targets_of(self.targets)
        form = self.memory_format
        if not isinstance(form, torch.memory_format) or form not in (torch.channels_last, torch.contiguous_format):
            raise OptionError(
                f"memory_format must be torch.channels_last or torch.contiguous_format, found {shown(form)}"
            )
        pipeline = compile_transform(self.transform)
        if self.transform is not None:
            object.__setattr__(self, "transform", pipeline)  # the option may have been an iterator, now at its end
        object.__setattr__(self, "dtype", _checked_dtype(self.dtype, pipeline))
        object.__setattr__(self, "device", _checked_device(self.device))
        self._check_output()

    def _check_together(self) -> None:
        if self.group is not None:
            if (self.rank, self.world_size) != (None, None):
                raise OptionError("group has a rank and a world_size of its own: leave rank= and world_size= out")
            for name, value in zip(("rank", "world_size"), rank_in(self.group), strict=True):
                object.__setattr__(self, name, value)
            object.__setattr__(self, "group", None)  # it cannot be copied to another process
        if (self.rank is None) != (self.world_size is None):
            raise OptionError(f"rank and world_size go together, found {self.rank} and {self.world_size}")
        if self.rank is not None and self.world_size is not None:
            check_integer("rank", self.rank, 0, self.world_size - 1)
        if self.num_workers == 0 and self.prefetch != "auto":
            raise OptionError(
                f"prefetch={self.prefetch} needs threads that work ahead: leave it out with num_workers=0"
            )
        if self.max_errors is not None and self.on_error == "raise":
            raise OptionError("max_errors goes with on_error='replace' or 'drop': with 'raise' the first one raises")

    def _check_output(self) -> None:
        device = torch.device(self.device)
        if self.output == "numpy" and (device.type != "cpu" or self.dtype == torch.bfloat16):
            found = f"dtype={self.dtype}" if device.type == "cpu" else f"device='{device}'"
            raise OptionError(
                f"output='numpy' is for batches on the CPU, of a type that NumPy has, found {found}: leave output out, "
                "and hand tensors over by DLPack"
            )

    def given(self) -> str:
        """The options that differ from their defaults, as code, each behind a comma."""
        code = ""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "transform" and isinstance(value, Pipeline):
                value = value.transforms
            value = str(value) if each.name == "device" else value
            usual = _checked_dtype(None, compile_transform(self.transform)) if each.name == "dtype" else each.default
            if each.name not in ("rank", "world_size") and shown(value) != shown(usual):
                code += f", {each.name}={shown(value, 300)}"
        return code

    @property
    def mode(self) -> Mode:
        """The order of samples, from `shuffle` and `order`."""
        if isinstance(self.order, Mode):
            return self.order
        return Shuffled() if self.shuffle else Sequential()

    def _check_order(self) -> None:
        if self.order is None:
            return
        if self.shuffle:
            raise OptionError(f"shuffle=True does not go with order={shown(self.order)}: leave one of them out")
        if not isinstance(self.order, Mode):
            object.__setattr__(self, "order", Sampled(self.order))

    def _check_functions(self) -> None:
        for name in ("map_sample", "map_batch"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise OptionError(f"{name} must be callable, found {shown(value)}")
        collate: Any = {} if self.collate is None else self.collate
        if not isinstance(collate, Mapping) or not all(isinstance(name, str) for name in collate):
            raise OptionError(f"collate must map field names to functions, found {shown(collate)}; see map_batch")
        for name, value in collate.items():
            if not callable(value):
                raise OptionError(f"collate[{name!r}] must be callable, found {shown(value)}")


@dataclass(frozen=True)
class UsualOptions(LoaderOptions):
    """The options with which batches consist of tensors. The types of other batches are not known: `Any`."""

    _: KW_ONLY
    transform: Sequence[Transform] | None = None
    output: Literal["torch"] = "torch"
    ragged: Literal["raise", "pad"] = "raise"
    collate: None = None
    map_sample: None = None
    map_batch: None = None


def _checked(option: Field[Any], value: object) -> object:
    """A value of an option with choices or limits; whole numbers of any type become int, so that a state fits JSON."""
    limits, auto = option.metadata["limits"], option.default == "auto"
    if choices := option.metadata["choices"]:
        return _checked_choice(option.name, value, choices)
    if limits is None or (auto and isinstance(value, str) and value == "auto") or (value is option.default is None):
        return value
    return check_integer(f"{option.name} (or 'auto')" if auto else option.name, value, *limits)


def _checked_choice(name: str, value: object, allowed: tuple[object, ...]) -> object:
    """The one of `allowed` that equals `value`: 1 is not True, and an array compares to an array."""
    plain = value.item() if isinstance(value, np.str_ | np.bool_) else value
    for each in allowed:
        if plain is each or (isinstance(plain, str) and plain == each):
            return each
    *most, last = map(repr, allowed)
    raise OptionError(f"{name} must be {', '.join(most)} or {last}, found {shown(value)}")


def _checked_dtype(dtype: torch.dtype | str | None, pipeline: Pipeline) -> torch.dtype:
    ops = [op for view in pipeline.each for op in view.ops]
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    return check_dtype(ops, named if isinstance(named, torch.dtype) else dtype)


def _checked_device(device: str | torch.device) -> torch.device:
    checked = checked_device(device)
    if checked.type not in ("cpu", "cuda"):
        try:
            torch.empty(0, device=checked)
        except (RuntimeError, AssertionError) as error:  # back-ends raise different ones
            raise OptionError(f"device {device} not found: {str(error).splitlines()[0]}") from None
    return checked
