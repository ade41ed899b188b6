"""The stages of kernel/src/device.h on a batch: its memory, and their launches on a device.

`benchmarks/gpu/on_host.py` runs them on the host, with NumPy's memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from iofast.gpu.compiled import Kernels
from iofast.gpu.structs import BATCH, BLUR, TABLES, TAPS, TYPE_NUMBERS
from iofast.kernel import _native
from iofast.kernel.contract import Finish
from iofast.work import PillowStep, Step

DECODING = ("see", "weigh", "entropy", "blocks", "colour")
STAGES = (*DECODING, "finish", "store", "steps")
GROUPS = {"see": 128, "weigh": 128, "entropy": 64, "blocks": 128, "colour": 256, "finish": 256, "store": 256}  # threads
GROUPS["steps"] = 512  # an image's
_MIXED, _OF_BATCH = ("partners", "shares", "patches"), ("images", "blurs", "blurred")
_REMADE = (Step.SHARPNESS, Step.BLUR, Step.WARP_NEAREST, Step.WARP_BILINEAR, Step.FLIP, Step.PAD)

Given = tuple[int, tuple[int, int, int, int]]
NOTHING: Given = (0, (0, 0, 0, 0))
Sizes = tuple[int, int, int, int, int]  # of `place`: coefficients, pixels; most segments, blocks, pixels of an image


class Output(NamedTuple):
    """What is made of a batch: (N, height, width, 3) with byte `strides` (image, row, column, channel)."""

    size: tuple[int, int]
    strides: tuple[int, int, int, int]
    finish: Finish

    @property
    def draws(self) -> bool:
        """Whether images get steps, erasings or partners before they are stored."""
        work = self.finish.work
        return bool(work.steps.size or (self.finish.type != "uint8" and (work.erased.size or work.mixes)))


class Memory(Protocol):
    """Where a batch's memory comes from."""

    def reserve(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The addresses of so many bytes each."""

    def zero(self, names: Sequence[str]) -> None:
        """Fill those, which were reserved one after the other, with zeros."""

    def put(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        """The addresses of copies of arrays."""


class Prepared(NamedTuple):
    """A batch whose memory is set up: the structure, and the most threads of an image, by stage (0 = not run)."""

    batch: NDArray[np.void]
    images: int
    threads: Mapping[str, int]

    def groups(self, stage: str) -> int:
        """How many groups of threads a stage needs for each image."""
        return -(-self.threads[stage] // GROUPS[stage])


def prepare(memory: Memory, output: Output, images: NDArray[np.void], sizes: Sizes, given: Given = NOTHING) -> Prepared:
    """Reserve the working memory of a batch. `given`: address and byte strides of pixels that are not decoded here.

    The caller fills the addresses of jpegs, codes and out.
    """
    batch = np.zeros(1, BATCH)
    count, (height, width) = len(images), output.size
    room, pixels = (max(height, width) + 31) // 32 * 32, height * width
    for name, address in memory.reserve(_room(output, count, room, sizes)).items():
        batch[name] = address
    memory.zero(("coefs", "taps"))
    batch["status"] = batch["taps"] + np.uint64(8 * count)
    batch["moved"] = batch["taps"] + np.uint64(12 * count)
    batch["count"], batch["room"], batch["width"], batch["height"] = count, room, width, height
    batch["strides"], batch["type"] = output.strides, TYPE_NUMBERS[output.finish.type]
    batch["given"], batch["given_strides"] = given
    batch["work"]["scale"] = ((1, 1, 1), (0, 0, 0)) if output.finish.type == "uint8" else output.finish.scale
    columns = _work_columns(batch, output.finish) if output.draws else {}
    for name, address in memory.put({"images": images} | columns).items():
        group = batch if name in _OF_BATCH else batch["mix" if name in _MIXED else "work"]
        group[name] = address
    decodes = bool((images["refused"] == 0).any())
    _, _, segments, blocks, crop = sizes if decodes else (0,) * 5
    axes = 2 * room if decodes else 0
    stored = pixels if output.draws else 0
    most = (axes, axes, segments, blocks, crop, pixels, stored, GROUPS["steps"] if output.finish.work.steps.size else 0)
    return Prepared(batch, count, dict(zip(STAGES, most, strict=True)))


def _room(output: Output, count: int, room: int, sizes: Sizes) -> dict[str, int]:
    """Bytes of each part of a batch's working memory."""
    coefs, pixels, axes, every = sizes[0], sizes[1], 2 * count, count * output.size[0] * output.size[1]
    steps = set(np.unique(output.finish.work.steps).tolist())
    return {
        "coefs": 2 * coefs,
        "taps": 16 * count,  # with `status` and `moved`
        "samples": coefs,
        "pixels": 4 * pixels,
        "starts": 4 * axes * room,
        "counts": 4 * axes * room,
        "weights": 2 * TAPS * axes * room,
        **({"canvas": 4 * every} if output.draws else {}),
        **({"other": 4 * every} if steps & set(map(int, _REMADE)) else {}),
        **({"rows": 6 * every} if int(Step.BLUR) in steps else {}),
    }


def _work_columns(batch: NDArray[np.void], finish: Finish) -> dict[str, NDArray[Any]]:
    """The columns of a batch's work, whose lengths are noted in `batch`."""
    work = finish.work
    if (others := work.steps[np.isin(work.steps, tuple(PillowStep))]).size:
        raise ValueError(f"a device has the steps of iofast.work.Step, found PillowStep {int(others[0])}")
    columns: dict[str, NDArray[Any]] = {"codes": work.steps, "numbers": work.numbers}
    if blurs := int((work.steps == Step.BLUR).sum()):
        columns |= {"blurs": np.zeros(blurs, BLUR), "blurred": np.zeros(work.steps.shape, np.int32)}
        codes, numbers = np.ascontiguousarray(work.steps), np.ascontiguousarray(work.numbers)
        _native.device_blurs(codes, numbers, columns["blurs"], columns["blurred"])
    batch["work"]["steps"] = work.steps.shape[1]
    if finish.type != "uint8":
        columns |= {"erased": work.erased, "fills": work.fills, "noise": work.noise, "amounts": finish.amounts}
        batch["work"]["erasings"] = work.erased.shape[1]
        if work.mixes:
            columns |= {"partners": work.partner, "shares": work.share, "patches": work.patch}
    return columns


def order(prepared: Prepared) -> list[str]:
    """The stages of a batch in their order."""
    return [stage for stage in (*DECODING, "finish", "steps", "store") if prepared.threads[stage]]


def launch(kernels: Kernels, prepared: Prepared, stream: int) -> None:
    """Launch the stages of a batch on the device."""
    stages = ((STAGES.index(name), (prepared.groups(name), prepared.images), GROUPS[name]) for name in order(prepared))
    kernels.launch(stages, prepared.batch, stream)


def new_tables() -> NDArray[np.uint8]:
    """An empty set of Huffman tables."""
    block = np.zeros(TABLES + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + TABLES]
