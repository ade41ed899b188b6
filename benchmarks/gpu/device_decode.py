"""The device's decoder and steps, by themselves and in the loader: first whether pixels are the kernel's, then speed.

    python -m benchmarks.gpu.device_decode [--device cuda] [--quick] [--packed FILE] [--part NAME]… [FOLDER]

Results go to FOLDER ($OUT, or device-decode) as device_decode.json and device_decode.md, after each figure. `--packed`
is an .npz of JPEGs (`bytes`, `lengths`); without it photographs are made and packed here. `--device cpu` needs no GPU:
the host's build takes the device's place, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.any_work import any_work
from iofast import FastDataset, FastLoader, kernel, open_writer
from iofast import transforms as T
from iofast.choices import Draw
from iofast.gpu import CudaStreams, Direct, Transfer
from iofast.gpu.images import DeviceImages, make
from iofast.gpu.stages import launch_on_host
from iofast.kernel.contract import TYPES, DecodeOptions, Finish
from iofast.loader.finishing import finish_of
from iofast.meter import StageCounter
from iofast.work import Step, Work, no_work

SIDE = 224
SCALE = np.array([[0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]], np.float32)
CROP = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]
NORMALIZE = T.Normalize.imagenet()
RECIPES: dict[str, list[Any]] = {
    "normalise": [NORMALIZE],
    "colour jitter": [T.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE],
    "equalise": [T.RandomEqualize(1.0), NORMALIZE],
    "blur, 23 taps": [T.GaussianBlur(23, (1.9, 2.0)), NORMALIZE],
    "rotation": [T.RandomRotation(30, "bilinear"), NORMALIZE],
    "RandAugment": [T.RandAugment(), NORMALIZE],
    "erasing and MixUp": [NORMALIZE, T.RandomErasing(1.0), T.MixUp(alpha=0.4, num_classes=9)],
    "SimCLR's colours": [T.ColorJitter(0.8, 0.8, 0.8, 0.2), T.RandomGrayscale(0.2), T.GaussianBlur(23), NORMALIZE],
}


class HostTransfer(Direct):
    """The CPU in place of a device."""

    run = staticmethod(launch_on_host)


@dataclass
class Session:
    device: torch.device
    quick: bool
    folder: Path
    data: Path
    start: float = field(default_factory=time.monotonic)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.transfer: Transfer | Direct = HostTransfer(self.device, StageCounter())
        if self.cuda:
            self.transfer = Transfer(self.device, CudaStreams(self.device), StageCounter())
        self.transfer.begin()

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def add(self, name: str, value: Any) -> None:
        """Record and print a fact, and write all of them."""
        self.facts[name] = value
        print(f"[{time.monotonic() - self.start:6.1f} s] {name}: {value}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "device_decode.json").write_text(json.dumps(self.facts, indent=1, default=str))
        lines = ["| | |", "| --- | ---: |", *(f"| {name} | {value} |" for name, value in self.facts.items())]
        (self.folder / "device_decode.md").write_text("\n".join(lines) + "\n")

    def made(self, images: torch.Tensor, finish: Finish) -> torch.Tensor:
        """Finished by the device's code, float32 or bytes in channels last."""
        dtype = {"uint8": torch.uint8, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
        pictures = DeviceImages.of(images)
        issued = self.transfer.issue(lambda bus: make(bus, pictures, finish, dtype[finish.type], torch.channels_last))
        return self.transfer.hand_over(issued).images


def steps(session: Session) -> None:
    """Each step, then several with erasing and mixing, in every type: bits beside the kernel's."""
    rng, count, context = np.random.default_rng(1), 8 if session.quick else 96, kernel.Context(DecodeOptions())
    size = (40, 31) if session.quick else (SIDE, SIDE - 13)
    cases = [(step.name, [step], 1, 0, "uint8") for step in Step]
    cases += [(f"six steps, two erasings, mixed, {type}", list(Step), 6, 2, type) for type in TYPES]
    cases += [("forty point steps", list(Step)[: Step.SHARPNESS], 40, 0, "uint8")]
    differ, compared = {}, 0
    for name, codes, steps, erasings, type in cases:
        images = rng.integers(0, 256, (count, *size, 3), np.uint8)
        images[::3] = images[::3] // 4 + 60
        work = any_work(rng, count, size, steps, erasings, codes)
        finish = Finish(work, SCALE, rng.random((erasings, 3)).astype(np.float32), type)
        expected = np.zeros(images.shape, TYPES[type])
        kernel.finish_batch(context, images, finish, expected)
        there = torch.from_numpy(images).to(session.device).permute(0, 3, 1, 2)
        found = session.made(there, finish).permute(0, 2, 3, 1).contiguous().view(torch.uint8).cpu().numpy()
        wrong = found.reshape(count, -1) != expected.view(np.uint8).reshape(count, -1)
        compared += count
        if wrong.any():
            differ[name] = int(wrong.any(axis=1).sum())
    session.add("steps: images compared", compared)
    session.add("steps: images that differ", sum(differ.values()))
    if differ:
        session.add("steps: DIFFER", differ)


def loader_of(session: Session, decode: str, batch: int, transform: list[Any], **options: Any) -> FastLoader:
    dataset = FastDataset(session.data)
    order = np.random.default_rng(3).integers(0, len(dataset), 10_000 if session.quick else 3_000_000)  # a long epoch
    options = {"dtype": torch.bfloat16, "order": order, "num_workers": 8, **options}
    device = "cpu" if decode == "cpu" or not session.cuda else session.device
    decode = ("auto" if options.get("cache") else decode) if session.cuda else "cpu"
    return FastLoader(dataset, batch, transform=transform, device=device, decode=decode, **options)


def same(session: Session) -> None:
    """Batches of the loader, decoded by the device and by the CPU."""
    batch, batches = (8, 2) if session.quick else (512, 20)
    for name, transform, dtype, count in (
        ("crops", CROP, torch.uint8, batches),
        ("with colours, RandAugment, erasing and MixUp", [*CROP, T.RandAugment(), *RECIPES["colour jitter"],
          T.RandomErasing(0.5, value="random"), T.MixUp(num_classes=1000)], torch.bfloat16, max(2, batches // 5)),
    ):  # fmt: skip
        differ = 0
        both = (loader_of(session, way, batch, transform, dtype=dtype) for way in ("gpu", "cpu"))
        for number, ((own, _), (other, _)) in enumerate(zip(*map(iter, both), strict=True)):
            differ += int((own.cpu() != other).flatten(1).any(dim=1).sum())
            if number + 1 == count:
                break
        session.add(f"loader, {name}: images that differ of {count * batch}", differ)
    cached = loader_of(session, "gpu", batch, CROP, dtype=torch.uint8, cache="device")
    usual, differ = loader_of(session, "cpu", batch, CROP, dtype=torch.uint8), 0
    for number, ((own, _), (other, _)) in enumerate(zip(cached, usual, strict=True)):
        differ += int((own.cpu() != other).flatten(1).any(dim=1).sum())
        if number + 1 == batches:
            break
    session.add(f"cache='device': images that differ of {batches * batch}", differ)


def rates(session: Session) -> None:
    """Microseconds on the device of a batch of 256 decoded images, by recipe."""
    count = 4 if session.quick else 256
    images = torch.randint(0, 256, (count, SIDE, SIDE, 3), dtype=torch.uint8, device=session.device).permute(0, 3, 1, 2)
    if session.cuda:
        torch.cuda.synchronize()  # another stream works with them
    for name, recipe in RECIPES.items():
        pipeline, side = T.compile(recipe), np.full(count, SIDE)
        drawn = pipeline.drawn
        work: Work = pipeline.work(Draw(0, 0, np.arange(count)), side, side) if drawn else no_work(count)
        if pipeline.mix is not None:
            work = work.paired(np.arange(count) ^ 1)
        finish = finish_of(pipeline.ops, work, torch.bfloat16)
        turns = 1 if session.quick else 10
        samples = [timed(session, lambda finish=finish: session.made(images, finish), turns) for _ in range(4)]
        session.add(f"finishing {count} images, {name}: µs", round(1e6 * min(samples[1:])))


def timed(session: Session, run: Callable[[], object], turns: int) -> float:
    """Seconds of a call on the device, behind other work, so that no gap of the host counts."""
    if not session.cuda:
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    side = session.transfer._streams.side()  # type: ignore[union-attr]
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        torch.cuda._sleep(40_000_000)
        start.record()
    for _ in range(turns):
        run()
    with torch.cuda.stream(side):
        stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / turns


@contextlib.contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_for(session: Session, loader: FastLoader, seconds: float) -> tuple[float, float]:
    """Images a second, and cores that the process used."""
    images, begun, cores = 0, 0.0, 0.0
    end, warm = None, 6 if not session.quick else 1
    for number in range(1 << 30):
        for batch, _ in loader:
            number += 1
            if end is None and number > warm:
                if session.cuda:
                    torch.cuda.synchronize()
                begun, cores, images = time.monotonic(), time.process_time(), 0
                end = begun + seconds
            images += len(batch)
            if end is not None and time.monotonic() > end:
                if session.cuda:
                    torch.cuda.synchronize()
                wall = time.monotonic() - begun
                return images / wall, (time.process_time() - cores) / wall
    raise AssertionError


def whole(session: Session) -> None:
    """The loader: from the page cache by cores, and from device memory."""
    seconds = 0.2 if session.quick else 4.0
    batches, every = ((8,), os.cpu_count() or 1) if session.quick else ((256, 1024), os.cpu_count() or 1)
    transform = [*CROP, NORMALIZE]
    for batch in batches:
        for cache in ("device", None):
            for cores in (every,) if cache else (2, 8):
                with on_cores(cores):
                    workers = 2 if cache else cores
                    loader = loader_of(session, "gpu", batch, transform, cache=cache, num_workers=workers)
                    rate, used = run_for(session, loader, seconds)
                name = "cache='device'" if cache else f"decode='gpu', {cores} cores"
                session.add(f"{name}, batches of {batch}: images/s", round(rate))
                session.add(f"{name}, batches of {batch}: host cores", round(used, 2))
                del loader
    rate, used = run_for(session, loader_of(session, "cpu", batches[0], transform, num_workers=every), seconds)
    session.add(f"decode='cpu', {every} cores, batches of {batches[0]}: images/s", round(rate))
    colours = [*CROP, T.RandAugment(), *RECIPES["colour jitter"], T.RandomErasing(0.5)]
    loader = loader_of(session, "gpu", batches[0], colours, cache="device", num_workers=2)
    session.add(
        "cache='device' with RandAugment, jitter and erasing: images/s", round(run_for(session, loader, seconds)[0])
    )


def beside(session: Session) -> None:
    """A step of about 5 ms, beside a batch that stays and beside the loader."""
    if not session.cuda:
        return
    one = torch.randn(4096, 4096, device=session.device, dtype=torch.bfloat16)

    def step() -> None:
        for _ in range(26):
            one @ one

    def seconds(batches: Iterator[Any] | None, count: int = 120) -> float:
        for number in range(count + 20):
            if number == 20:
                torch.cuda.synchronize()
                begun = time.monotonic()
            if batches is not None:
                next(batches)
            step()
        torch.cuda.synchronize()
        return (time.monotonic() - begun) / count

    for cache in (None, "device"):
        loader = loader_of(session, "gpu", 256, [*CROP, NORMALIZE], cache=cache, num_workers="auto")

        def endless(loader: FastLoader = loader) -> Iterator[Any]:
            while True:
                yield from loader

        batches = endless()
        next(batches)
        alone, with_loader = seconds(None), seconds(batches)
        name = f"cache={cache!r}" if cache else "decode='gpu'"
        session.add(f"a step, ms, alone and beside {name}", (round(1e3 * alone, 3), round(1e3 * with_loader, 3)))
        session.add(f"a step beside {name}: slower by", f"{with_loader / alone - 1:.1%}")
        batches.close()  # type: ignore[attr-defined]


PARTS = {"steps": steps, "same": same, "rates": rates, "whole": whole, "beside": beside}


def write(given: Path | None, path: Path, times: int, most: int) -> None:
    """A container of packed JPEGs, each several times."""
    if given is None:
        from benchmarks.gpu.data import one

        with tempfile.TemporaryDirectory() as folder:
            for number in range(most):
                one(Path(folder), number)
            recipe = kernel.TranscodeRecipe(size=256, mode="short", restart="auto")
            made = [kernel.transcode(file.read_bytes(), recipe).data for file in sorted(Path(folder).rglob("*.jpg"))]
    else:
        with np.load(given) as kept:
            ends = np.cumsum(kept["lengths"].astype(np.int64))[:-1]
            made = [bytes(part) for part in np.split(kept["bytes"], ends)][:most]
    with open_writer(path) as writer:
        for number in range(times):
            for row, data in enumerate(made):
                writer.write({"jpg": bytes(data), "cls": (number * len(made) + row) % 1000})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("OUT", "device-decode")))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        session = Session(torch.device(args.device), args.quick, args.folder, Path(folder) / "packed.lmdb")
        write(args.packed, session.data, 1 if args.quick else 40, 24 if args.quick else 500)
        session.add("packed photographs", len(FastDataset(session.data)))
        session.add("kernel", kernel.describe())
        what = torch.cuda.get_device_name(0) if session.cuda else "the host's build"
        session.add("device", f"{what}, {os.cpu_count()} cores, torch {torch.__version__}")
        for name in args.part or PARTS:
            try:
                PARTS[name](session)
            except Exception:
                traceback.print_exc()
                session.add(f"{name} FAILED", traceback.format_exc(limit=-2).strip().splitlines()[-1])


if __name__ == "__main__":
    main()
