"""LoaderOptions: everything about a FastLoader but its dataset; and the advice for options of torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from iofast import pixels
from iofast.errors import OptionError, shown
from iofast.gpu.decode import Split
from iofast.loader.loader_stats import OnError
from iofast.loader.mapping import SampleFunction, check_picklable
from iofast.loader.ranks import rank_in
from iofast.loader.target_fields import targets_of
from iofast.option import described, option
from iofast.order import MAX_SAMPLES, MAX_SEED, Mode, Sampled, Sequential, Shuffled
from iofast.order.base import check_whole
from iofast.transforms import Pipeline, Transform, Views
from iofast.transforms import compile as compile_transform

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

AnyOrder = Mode | Iterable[int]  # one of iofast.order's, or a torch Sampler

MAX_WORKERS = 256
MAX_PREFETCH = 64

_THREADS = "leave it out, because workers are threads of this process"
_PINNED = "leave it out, because with device='cuda' batches are copied from page-locked memory and arrive on the device"

INSTEAD = {  # options of torch's DataLoader that FastLoader lacks -> advice
    "batch_sampler": "give its sampler as order=, and batch_size=; order.Buckets makes batches of images of like shape",
    "collate_fn": "give collate={field: function} for the values of a field, or map_batch= for the finished batch",
    "generator": "give seed=, which order and augmentation are drawn from",
    "in_order": "leave it out, because batches always come in order",
    "multiprocessing_context": f"{_THREADS}; map_processes= starts processes for map_sample",
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
    """The options of a FastLoader, which takes the same names as keywords. Raises `OptionError` for wrong ones."""

    batch_size: int = option(1, "samples per batch, on each rank", limits=(1, MAX_SAMPLES))
    shuffle: bool = option(False, "a new permutation in each epoch, by (seed, epoch)", choices=(True, False))
    _: KW_ONLY
    order: AnyOrder | None = option(
        None, "another order: one of iofast.order, or a torch Sampler; random samplers draw from (seed, epoch)"
    )
    seed: int = option(0, "seed of the order and of all random choices, 0 to 2^64-1", limits=(0, MAX_SEED))
    drop_last: bool = option(False, "leave out a short last batch of an epoch", choices=(True, False))
    transform: Sequence[Transform] | Views | Pipeline | None = option(
        None, "a list of transforms, or several Views; without it all images must have one size, or see `ragged`"
    )
    dtype: torch.dtype = option(
        torch.uint8, "of the images: uint8, or a float type, normalised by Normalize, otherwise in [0, 1]"
    )
    device: str | torch.device = option(
        "cpu",
        "where batches go; on a CUDA GPU two are finished ahead of the consumer. 'cuda' is the device that is current "
        "in the consumer's thread when its first epoch begins",
    )
    output: Literal["torch", "numpy"] = option(
        "torch",
        "what batches are made of: 'torch' for tensors, 'numpy' for arrays, for JAX, TensorFlow and others; on the CPU "
        "only, as other frameworks take a tensor on a GPU by DLPack",
        choices=("torch", "numpy"),
    )
    cache: Literal["device"] | None = option(
        None, "'device': decode the whole dataset once, and keep it on the device as uint8", choices=("device", None)
    )
    memory_format: torch.memory_format = option(
        torch.contiguous_format, "torch.channels_last for a model in that format"
    )
    num_workers: int | Literal["auto"] = option(
        "auto",
        "decoding threads; 'auto' is the fewest that keep the consumer from waiting, at most one per core of this "
        "rank; 0 is none: the consumer's thread makes each batch when it needs it, for a debugger or a profiler",
        limits=(0, MAX_WORKERS),
    )
    prefetch: int | Literal["auto"] = option(
        "auto",
        "batches made ahead of the consumer; 'auto' is the fewest that keep it from waiting, at most 8, or 3 if "
        "num_workers is a number",
        limits=(1, MAX_PREFETCH),
    )
    readahead: bool | Literal["auto"] = option(
        "auto",
        "advise the operating system on the bytes of coming batches, and fetch them from an object store; 'auto' does "
        "so for containers, not for folders",
        choices=(True, False, "auto"),
    )
    decode: Literal["cpu", "gpu", "split", "auto"] | Split = option(
        "cpu",
        "where JPEGs are decoded: 'cpu', 'gpu' (on the device), 'split' (each batch divided so that both finish "
        "together) or a Split, or 'auto' (as measured on the first batches; pixels may then differ between runs)",
        choices=("cpu", "gpu", "split", "auto"),
    )
    pixels: Literal["exact", "fast"] = option(
        "exact",
        "'exact' is within one level of Pillow; 'fast' may decode training crops of progressive and unusual JPEGs at "
        "1/2, 1/4 or 1/8 if enough pixels remain",
        choices=("exact", "fast"),
    )
    check: Literal["crc"] | None = option(
        "crc",
        "compare payloads with their checksums, if there are any; damage is an error. Raw pixels are compared when "
        "the loader first reads the image (each time in an LMDB that another program has written to). None: do not",
        choices=("crc", None),
    )
    truncated: Literal["strict", "accept"] | None = option(
        None,
        "'strict': a JPEG that ends early is an error, 'accept': decode as much as possible; None: as the dataset's "
        "option. A progressive JPEG that ends normally after fewer scans is no error",
        choices=("strict", "accept", None),
    )
    on_error: OnError = option(
        "raise",
        "a sample that cannot be made: 'raise', 'replace' it by another one drawn from (seed, epoch, position, "
        "attempt), or 'drop' it. If all of 8 or more samples of a batch fail, raise",
        choices=("raise", "replace", "drop"),
    )
    max_errors: int | None = option(
        None, "failures per epoch on this rank before ErrorBudgetError; None is any number", limits=(0, MAX_SAMPLES)
    )
    ragged: Literal["raise", "list", "pad"] = option(
        "raise",
        "images of different sizes: 'raise', a 'list' of (3, h, w) tensors, or 'pad' with zeros to the largest",
        choices=("raise", "list", "pad"),
    )
    image_mode: Literal["RGB", "L", "I;16", "array"] = option(
        "RGB",
        "'L' for gray, 'I;16' for gray images of 16 bits: batches of one channel; 'array' for all channels and bits of "
        "images alike: uint8, uint16 (as int32) or float32",
        choices=("RGB", "L", "I;16", "array"),
    )
    targets: Mapping[str, str] | None = option(
        None, "{field: 'mask', 'boxes' or 'keypoints'}: fields that follow the image through crops, flips and warps"
    )
    collate: Mapping[str, Callable[[list[Any]], Any]] | None = option(
        None, "{field: function} from the list of a batch's values to the batch's column"
    )
    map_sample: SampleFunction | None = option(
        None, "function (sample dictionary, numpy Generator) -> dictionary, called for each sample after decoding"
    )
    map_processes: int = option(
        0, "number of processes for map_sample; 0 runs it in the decoding threads", limits=(0, MAX_WORKERS)
    )
    map_batch: Callable[..., Any] | None = option(
        None, "function of the finished batch; its parameters rng, epoch and position, if it has them, are filled in"
    )
    rank: int | None = option(None, "number of this process; detected by default", limits=(0, MAX_SAMPLES))
    world_size: int | None = option(None, "number of processes; detected by default", limits=(1, MAX_SAMPLES))
    group: ProcessGroup | DeviceMesh | None = option(
        None,
        "processes that need different data, instead of rank and world_size: a process group, or the data-parallel "
        "dimensions of a device mesh; tensor- and context-parallel ranks then get the same batches",
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        for each in fields(self):
            value, choices = getattr(self, each.name), each.metadata["choices"]
            if choices and not (each.name == "decode" and isinstance(value, Split)):
                object.__setattr__(self, each.name, _checked_choice(each.name, value, choices))
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
        for view in pipeline.each:
            pixels.check_dtype(view.ops, self.dtype)
        object.__setattr__(self, "device", _checked_device(self.device))
        self._check_output()

    def _check_numbers(self) -> None:
        """Convert whole numbers of any type to int, so that a state is fit for JSON."""
        for each in fields(self):
            value, auto = getattr(self, each.name), each.default == "auto"
            is_auto = auto and isinstance(value, str) and value == "auto"
            if each.metadata["limits"] is None or is_auto or (value is None and each.default is None):
                continue
            what = f"{each.name} (or 'auto')" if auto else each.name
            object.__setattr__(self, each.name, check_whole(what, value, *each.metadata["limits"]))

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
            check_whole("rank", self.rank, 0, self.world_size - 1)
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
            if each.name not in ("rank", "world_size") and shown(value) != shown(each.default):
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
        if self.map_processes and self.map_sample is None:
            raise OptionError(f"map_processes={self.map_processes} needs map_sample=, the function to run")
        if self.map_processes and self.map_sample is not None:
            check_picklable(self.map_sample)


LoaderOptions.__doc__ = f"{LoaderOptions.__doc__}\n\n{described(LoaderOptions)}\n    "


def _checked_choice(name: str, value: object, allowed: tuple[object, ...]) -> object:
    """The one of `allowed` that equals `value`: 1 is not True, and an array compares to an array."""
    plain = value.item() if isinstance(value, np.str_ | np.bool_) else value
    for each in allowed:
        if plain is each or (isinstance(plain, str) and plain == each):
            return each
    *most, last = map(repr, allowed)
    raise OptionError(f"{name} must be {', '.join(most)} or {last}, found {shown(value)}")


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise OptionError(
            f"device must be one that torch knows, such as 'cpu' or 'cuda', found {shown(device)}"
        ) from None
    if checked.type == "cuda" and not 0 <= (checked.index or 0) < torch.cuda.device_count():
        raise OptionError(f"device {device} not found: torch sees {torch.cuda.device_count()} CUDA devices")
    if checked.type not in ("cpu", "cuda"):
        try:
            torch.empty(0, device=checked)
        except (RuntimeError, AssertionError) as error:  # back-ends raise different ones
            raise OptionError(f"device {device} not found: {str(error).splitlines()[0]}") from None
    return checked
