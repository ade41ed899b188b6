"""LoaderOptions: everything about a FastLoader but its dataset; and the advice for options of torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import torch

from iofast import pixels
from iofast.errors import OptionError, shown
from iofast.gpu.decode import Split
from iofast.loader.loader_stats import OnError
from iofast.loader.mapping import SampleFunction, check_picklable
from iofast.loader.target_fields import targets_of
from iofast.order import MAX_SAMPLES, MAX_SEED, Mode, Sampled, Sequential, Shuffled
from iofast.order.base import check_whole
from iofast.transforms import Pipeline, Transform, Views
from iofast.transforms import compile as compile_transform

AnyOrder = Mode | Iterable[int]  # one of iofast.order's, or a torch Sampler

MAX_WORKERS = 256
MAX_PREFETCH = 64

_RANGES = {
    "batch_size": (1, MAX_SAMPLES),
    "seed": (0, MAX_SEED),
    "map_processes": (0, MAX_WORKERS),
    "prefetch": (1, MAX_PREFETCH),
    "num_workers": (0, MAX_WORKERS),
    "max_errors": (0, MAX_SAMPLES),
    "world_size": (1, MAX_SAMPLES),
    "rank": (0, MAX_SAMPLES),
}
_OR_AUTO, _OR_NONE = ("prefetch", "num_workers"), ("max_errors", "rank", "world_size")

_CHOICES: dict[str, tuple[object, ...]] = {
    "decode": ("cpu", "gpu", "split", "auto"),
    "shuffle": (True, False),
    "drop_last": (True, False),
    "readahead": (True, False, "auto"),
    "cache": ("device", None),
    "pixels": ("exact", "fast"),
    "check": ("crc", None),
    "truncated": ("strict", "accept"),
    "on_error": ("raise", "replace", "drop"),
    "ragged": ("raise", "list", "pad"),
    "image_mode": ("RGB", "L", "I;16"),
}

_THREADS = "leave it out, because workers are threads of this process"
_PINNED = "leave it out, because with device='cuda' batches are copied from page-locked memory and arrive on the device"

_INSTEAD = {  # options of torch's DataLoader that FastLoader lacks -> advice
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


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Everything about a loader but its dataset; checks itself. FastLoader takes the same names as keywords.

    batch_size      samples per batch and rank
    shuffle         a new permutation each epoch, a function of (seed, epoch)
    order           any other order: one of iofast.order's (Blocks, Weighted, Balanced, Repeated, Mixed, Buckets), or a
                    torch Sampler (random ones draw from (seed, epoch), and not from their own generator)
    seed            of the order and of every random choice, 0 to 2^64-1
    drop_last       leave out a short last batch of an epoch
    num_workers     decoding threads; "auto" = the fewest that keep the consumer from waiting, at most one for each core
                    that this rank may use; 0 = none: the consumer's thread makes each batch when it needs it
    transform       a list from iofast.transforms; without one all images must have one size
    device          where batches go. On a CUDA GPU two are ready ahead of the consumer, finished on a side stream;
                    "cuda" = the device that is current in the consumer's thread when its first epoch begins
    dtype           uint8 as decoded, or a float type: normalised, or scaled to [0, 1] without Normalize
    memory_format   torch.contiguous_format (default), or torch.channels_last for a model in that format
    prefetch        batches made ahead of the consumer; "auto" = the fewest that keep it from waiting, or 3 if
                    num_workers is a number
    cache           "device": decode every image once, at the first use, keep it on the device as uint8 pixels, and cut
                    batches from them there. Geometry is `pixels.resample`: bilinear, within a level of Pillow
    readahead       advise the operating system on the bytes of coming batches; "auto" = of containers, not of folders
    decode          where JPEGs are decoded: on the "cpu"; on the device ("gpu"); on both ("split", or a Split), each
                    batch divided so that they finish together; "auto" = as measured on the first batches. Then samples
                    and their order are promised, but not pixels to the last level
    pixels          "exact" (within 1 level of Pillow) or "fast" (DCT scaling in training transforms)
    check           "crc": compare payloads with their checksums, if the container has some; damage is an error. Raw
                    pixels are compared once, when this loader first reads the image: later epochs read only the rows
                    that a crop needs. None: do not look for damage
    truncated       "strict": a JPEG that ends early or is damaged is an error; "accept": decode as much as possible
    on_error        a sample that cannot be made: "raise"; "replace" it by another, drawn from (seed, epoch, position,
                    attempt); or "drop" it, which makes the batch shorter, but never empty: then it has one sample that
                    is not valid. If all samples of a batch of 8 or more fail, raise
    max_errors      failures that an epoch may have on this rank before ErrorBudgetError; None = any number
    ragged          images of different sizes: "raise", a "list" of (3, h, w) tensors, "pad" with zeros to the largest
    image_mode      "RGB", or one channel: "L" = gray values of the transform's result; "I;16" = 16 bits, as int32 or a
                    float type, decoded by Pillow, with resizes, crops, RandomHorizontalFlip and Normalize only
    collate         field name -> function from the list of a batch's values to the batch's column
    targets         field name -> what it holds, so that it gets the image's crop, flip and warps: "mask" ("mask:255"
                    with its value outside of the image), "boxes" ("boxes:xywh"), "keypoints"
    map_sample      function (sample dictionary, numpy Generator) -> dictionary, called for each sample after decoding
    map_processes   number of processes to call it in; 0 = in the decoding threads. In a process the generators of
                    `random`, NumPy and torch are seeded for each sample from its place in the epoch
    map_batch       function of the finished batch, called in a decoding thread; with a GPU in the consumer's. If it has
                    parameters rng, epoch or position, they get a numpy Generator, the epoch, and the position of the
                    batch's first sample in the epoch
    rank            number of this process, and of all processes; by default those of torch.distributed
    world_size
    """

    batch_size: int = 1
    shuffle: bool = False
    order: AnyOrder | None = None
    seed: int = 0
    drop_last: bool = False
    num_workers: int | Literal["auto"] = "auto"
    transform: Sequence[Transform] | Views | Pipeline | None = None
    device: str | torch.device = "cpu"
    dtype: torch.dtype = torch.uint8
    memory_format: torch.memory_format = torch.contiguous_format
    prefetch: int | Literal["auto"] = "auto"
    cache: Literal["device"] | None = None
    readahead: bool | Literal["auto"] = "auto"
    decode: Literal["cpu", "gpu", "split", "auto"] | Split = "cpu"
    pixels: Literal["exact", "fast"] = "exact"
    check: Literal["crc"] | None = "crc"
    truncated: Literal["strict", "accept"] = "strict"
    on_error: OnError = "raise"
    max_errors: int | None = None
    ragged: Literal["raise", "list", "pad"] = "raise"
    image_mode: Literal["RGB", "L", "I;16"] = "RGB"
    collate: Mapping[str, Callable[[list[Any]], Any]] | None = None
    targets: Mapping[str, str] | None = None
    map_sample: SampleFunction | None = None
    map_processes: int = 0
    map_batch: Callable[..., Any] | None = None
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        for name, allowed in _CHOICES.items():
            if name != "decode" or not isinstance(self.decode, Split):
                object.__setattr__(self, name, _checked_choice(name, getattr(self, name), allowed))
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
        for each in pipeline.each:
            pixels.check_dtype(each.ops, self.dtype)
        object.__setattr__(self, "device", _checked_device(self.device))

    def _check_numbers(self) -> None:
        """Convert whole numbers of any type to int, so that a state is fit for JSON."""
        for name, (low, high) in _RANGES.items():
            value, auto = getattr(self, name), name in _OR_AUTO
            if not (value is None and name in _OR_NONE) and not (auto and isinstance(value, str) and value == "auto"):
                what = f"{name} (or 'auto')" if auto else name
                object.__setattr__(self, name, check_whole(what, value, low, high))

    def _check_together(self) -> None:
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


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raise `OptionError` for the first of `options`, none of which FastLoader has, with advice."""
    for name in options:
        near = get_close_matches(name, [each.name for each in fields(LoaderOptions)], 1)
        advice = _INSTEAD.get(name) or (f"did you mean {near[0]}=?" if near else "see LoaderOptions")
        raise OptionError(f"{name} is not an option of FastLoader: {advice}")


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
