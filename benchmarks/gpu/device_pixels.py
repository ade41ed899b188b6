"""Whether the pixels of iofast/gpu/jpegs.py are the kernel's, and if not, from which value of which stage on."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.device_machine import (
    OPTIONS,
    SIDE,
    WIDTH,
    Machine,
    Packed,
    Report,
    by_kernel,
    crops,
    loaded,
    normalised,
    wanted,
)
from iofast import kernel
from iofast.gpu import jpegs
from iofast.kernel import Payloads
from iofast.kernel.contract import ALL_FILTERS


class Compared(NamedTuple):
    """Crops to compare. `varied`: any orientation, either filter of the device's decoder, windows."""

    data: Packed
    count: int
    side: int = SIDE
    varied: bool = False


def draw(rng: np.random.Generator, what: Compared, count: int, fd: int) -> tuple[Payloads, jpegs.Crops]:
    chosen, data = rng.integers(0, len(what.data.lengths), count), what.data
    exif = rng.integers(1, 9, count).astype(np.uint8) if what.varied else np.ones(count, np.uint8)
    sizes = np.where((exif >= 5)[:, None], data.sizes[chosen][:, ::-1], data.sizes[chosen])
    boxes, flips, _ = crops(rng, sizes, what.side)
    if what.varied:
        more = rng.integers(0, 20, (count, 2)) * rng.integers(0, 2, (count, 1))
        boxes[:, 4:6] += more
        boxes[:, 6:8] = rng.integers(0, more + 1)
        flips |= (1 + rng.choice([ALL_FILTERS.index(name) for name in ("bilinear", "bilinear-aliased")], count)).astype(
            np.uint8
        ) << 1
    return data.source(chosen, fd, exif), jpegs.Crops(boxes, flips, exif)


def decoded(
    machine: Machine | None, source: Payloads, drawn: jpegs.Crops, kind: jpegs.Wanted
) -> tuple[np.ndarray, np.ndarray]:
    """Status and pixels by the device, whose memory is full of garbage before, or by the host's build."""
    count = len(drawn.boxes)
    shape = (count, *kind.size, 3)
    if machine is None:
        found = np.zeros(shape, np.uint8)
        return jpegs.run_on_host(source, drawn, OPTIONS, kind, found), found
    torch = machine.torch
    with torch.cuda.stream(machine.stream):
        batch = loaded(machine, source)
        out = torch.full(shape, jpegs.POISON, dtype=torch.uint8, device=machine.device)
        machine.start(batch, drawn, kind, out, poison=True)
        found = out.cpu().numpy()
        return np.where(batch.slot.images["refused"], -1, machine.damaged(count)), found


def equality(report: Report, machine: Machine | None, what: Compared) -> None:
    """Compare crops with the kernel's; and memory of the first batch, and of the first that differs."""
    rng, fd, cores = np.random.default_rng(1), os.open(what.data.path, os.O_RDONLY), os.cpu_count() or 1
    size, kind = min(64, what.count), wanted("uint8", side=what.side)
    statuses, wrong = [], 0
    expected = np.empty((size, what.side, what.side, 3), np.uint8)
    name = f"{what.data.path.stem}, {what.side} px{', varied' if what.varied else ''}"
    with ThreadPoolExecutor(cores) as pool:
        while len(statuses) * size < what.count:
            source, drawn = draw(rng, what, size, fd)
            by_kernel(source, drawn, expected, pool, cores)
            status, found = decoded(machine, source, drawn, kind)
            differ = np.flatnonzero((found != expected).any((1, 2, 3)) & (status == 0))
            if machine and (not statuses or (len(differ) and not wrong)):
                report.add(
                    f"{name}: memory that differs, batch {len(statuses)}",
                    differences(machine, source, drawn, kind),
                )
            if len(differ) and not wrong:
                row = int(differ[0])
                first = tuple(int(each[0]) for each in np.nonzero(found[row] != expected[row]))
                values = {"pixel": first, "expected": int(expected[row][first]), "found": int(found[row][first])}
                report.add(
                    f"{name}: FIRST DIFFERENCE",
                    {"batch": len(statuses), "crop": row, "box": drawn.boxes[row].tolist(), **values},
                )
            statuses.append(status)
            wrong += len(differ)
    every = np.concatenate(statuses)
    report.add(f"{name}: crops compared", int((every == 0).sum()))
    report.add(f"{name}: crops that differ", wrong)
    report.add(f"{name}: left to the kernel, found damaged", (int((every < 0).sum()), int((every > 0).sum())))
    os.close(fd)


def types(report: Report, data: Packed, machine: Machine) -> None:
    """Compare a batch in each type and layout with what the kernel's pixels give."""
    fd, what, count = os.open(data.path, os.O_RDONLY), Compared(data, 256), 256
    source, drawn = draw(np.random.default_rng(7), what, count, fd)
    expected = np.empty((count, SIDE, SIDE, 3), np.uint8)
    with ThreadPoolExecutor() as pool:
        by_kernel(source, drawn, expected, pool, os.cpu_count() or 1)
    for kind, last in itertools.product(("bfloat16", "float32"), (True, False)):
        with machine.torch.cuda.stream(machine.stream):
            batch = loaded(machine, source)
            out = machine.torch.zeros(
                count * 3 * SIDE * SIDE * WIDTH[kind], dtype=machine.torch.uint8, device=machine.device
            )
            machine.start(batch, drawn, wanted(kind, last), out, poison=True)
            bits = out.cpu().numpy().view(np.uint16 if kind == "bfloat16" else np.uint32)
        shape = (count, SIDE, SIDE, 3) if last else (count, 3, SIDE, SIDE)
        found = bits.reshape(shape) if last else bits.reshape(shape).transpose(0, 2, 3, 1)
        report.add(
            f"{kind}, channels {'last' if last else 'first'}: values that differ, images refused",
            (int((found != normalised(expected, kind)).sum()), int(batch.slot.images["refused"].sum())),
        )
    os.close(fd)


def hostile(report: Report, data: Packed, machine: Machine | None, count: int) -> None:
    """Files with flipped bits: what passes has the kernel's pixels."""
    rng, whole = np.random.default_rng(5), np.fromfile(data.path, np.uint8)
    passed = wrong = 0
    for _ in range(0, count, 64):
        chosen = rng.integers(0, len(data.lengths), 64)
        files = [whole[int(data.offsets[row]) : int(data.offsets[row] + data.lengths[row])].copy() for row in chosen]
        for each in files:
            for place in rng.integers(20 if rng.random() < 0.2 else 640, len(each), rng.integers(1, 4)):
                each[place] ^= 1 << rng.integers(8)
        source = Payloads(
            np.full(64, -1, np.int32), np.array([each.ctypes.data for each in files], np.uint64),
            np.array([len(each) for each in files], np.uint64), None, np.ones(64, np.uint8), None,
        )  # fmt: skip
        drawn = crops(rng, data.sizes[chosen])
        expected, status = np.zeros((64, SIDE, SIDE, 3), np.uint8), np.zeros(64, np.int32)
        kernel.decode_batch(kernel.Context(OPTIONS), source, drawn.boxes, drawn.flips, expected, status, 0, 64)
        mine, found = decoded(machine, source, drawn, wanted("uint8"))
        passed += int((mine == 0).sum())
        wrong += int(((found != expected).any((1, 2, 3)) | (status != 0))[mine == 0].sum())
    report.add("damaged files: tried, passed by the device, of them wrong", (count // 64 * 64, passed, wrong))


WRITTEN = {"starts": np.int32, "counts": np.int32, "weights": np.int16, "taps": np.int32, "coefs": np.int16}
WRITTEN |= {"samples": np.uint8, "pixels": np.uint32}


def differences(machine: Machine, source: Payloads, drawn: jpegs.Crops, kind: jpegs.Wanted) -> dict[str, Any]:
    """Where the device's memory after a batch is not the host build's. Both were full of the same garbage before, so
    all of it is compared: what no stage writes, too."""
    host = jpegs.HostMemory(machine.tables)
    out = np.zeros((len(drawn.boxes), *kind.size, 3), np.uint8)
    jpegs.run_on_host(source, drawn, OPTIONS, kind, out, host)
    found = {}
    for name, type_ in WRITTEN.items():
        mine, theirs = host.arrays[name], machine.memory.arrays[name].cpu().numpy()
        if (theirs[mine.size :] != jpegs.POISON).any():
            found[f"{name}: bytes written behind the end"] = int((theirs[mine.size :] != jpegs.POISON).sum())
        mine, theirs = (
            each[: mine.size // np.dtype(type_).itemsize * np.dtype(type_).itemsize].view(type_)
            for each in (mine, theirs)
        )
        wrong = np.flatnonzero(mine != theirs)
        if len(wrong):
            at = int(wrong[0])
            found[name] = {
                "values that differ": len(wrong),
                "of": mine.size,
                **place_of(name, at, host, len(drawn.boxes)),
            }
            found[name] |= {"expected": int(mine[at]), "found": int(theirs[at])}
    return found


def place_of(name: str, at: int, host: jpegs.HostMemory, count: int) -> dict[str, Any]:
    """The image and the coordinates in its memory of a value of an array."""
    if name == "taps":
        return {"image, axis": divmod(at, 2)} if at < 2 * count else {"status of image": at - 2 * count}
    if name in ("starts", "counts", "weights"):
        images = (count, 2, jpegs.TAPS, -1) if name == "weights" else (count, 2, -1)
        shape = host.arrays[name].view(WRITTEN[name]).reshape(images).shape
        return {"image, axis, …, output": [int(each) for each in np.unravel_index(at, shape)]}
    images = host.arrays["images"].view(jpegs.IMAGE)
    image = int(np.searchsorted(images[name], at, "right")) - 1
    within = at - int(images[name][image])
    if name == "pixels":
        width = int(images["right"][image] - images["left"][image])
        return {"image": image, "y, x of its pixels": divmod(within, width)}
    return {
        "image": image,
        "number": within,
        "blocks": int(images["blocks"][image]),
        "fours": images["fours"][image].tolist(),
    }
