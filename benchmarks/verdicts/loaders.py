"""The loader of a program, and its surroundings: a thread that pins, a control group with a quota."""

import contextlib
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from benchmarks import slow_device
from benchmarks.verdicts import timed_datasets
from benchmarks.verdicts.feeders import FEEDERS, UnavailableError
from benchmarks.verdicts.programs import Program

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))

from web_server import web_server

_QUOTA: Final = "cpu.cfs_quota_us"  # one core of the usual 100,000 us
_DISK_BYTES_PER_S: Final = 60 << 20
_WEB_BYTES_PER_S, _ANSWER_S = 8 << 20, 0.03
_OBJECT_BYTES: Final = 100_000  # of the load "store"
_START_S: Final = 0.5  # of a worker, in the programs of load "start"
_COPIES: Final = 150  # of each picture, for loaders that want an epoch of files
_SHARDS = 64  # that webdataset sees: it wants more than there are workers


def loader_of(program: Program, folder: Path) -> Iterable[Any]:
    """The loader that training iterates over; its files are in `folder`."""
    if program.loader == "fast":
        return _fast(program, folder)
    if program.loader == "webdataset":
        return _webdataset(program, folder)
    if program.loader in FEEDERS:
        return FEEDERS[program.loader](program, folder)
    dataset = timed_datasets.KINDS[program.load](program, folder)
    if program.load == "copy":
        _pretend_accelerator()
    return _torch(program, dataset)


def idle_loader(program: Program, folder: Path) -> Iterable[Any]:
    """A cheap loader beside the program's own."""
    cheap = replace(program, load="nothing", workers=1, persistent=True, start="fork")
    return _torch(cheap, timed_datasets.Samples(cheap, folder))


def _torch(program: Program, dataset: timed_datasets.Samples) -> DataLoader[Any]:
    collate: Any = None
    if program.load == "collate":
        collate = timed_datasets.PaddingCollate(program.cost_s)
    elif program.load == "pickle":
        collate = timed_datasets.collate_lists
    elif program.load == "copy":
        collate = timed_datasets.PinnedBatch
    parallel: dict[str, Any] = {"pin_memory": program.load == "copy"}
    if program.workers:
        parallel |= {
            "persistent_workers": program.persistent,
            "multiprocessing_context": multiprocessing.get_context(program.start),
        }
        if program.load == "start":
            parallel["worker_init_fn"] = lambda _: time.sleep(_START_S)  # it opens an index, imports, connects
    return DataLoader(dataset, program.batch, num_workers=program.workers, collate_fn=collate, **parallel)


def _fast(program: Program, folder: Path) -> Iterable[Any]:
    from iofast import FastDataset, FastLoader
    from iofast import transforms as T

    transform: list[Any] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    if program.side:
        transform = [T.Resize((program.side, program.side))]
    if program.load == "web":
        data = FastDataset((folder / "url").read_text())
        return FastLoader(data, program.batch, shuffle=True, transform=transform, num_workers=program.workers)
    many = folder / f"many{_COPIES}"
    if not many.exists():
        part = many.with_suffix(".part")
        for path in timed_datasets.pictures(folder / "pictures"):
            (part / path.parent.name).mkdir(parents=True, exist_ok=True)
            for copy in range(_COPIES):
                with contextlib.suppress(FileExistsError):
                    os.link(path, part / path.parent.name / f"{path.stem}-{copy}.jpg")
        part.rename(many)
    return FastLoader(FastDataset(many), program.batch, shuffle=True, transform=transform, num_workers=program.workers)


def _webdataset(program: Program, folder: Path) -> Iterable[Any]:
    try:
        import webdataset
    except ImportError:
        raise UnavailableError("webdataset is not installed") from None
    shards = [str(timed_datasets.shard(folder))] * _SHARDS
    samples = webdataset.WebDataset(shards, shardshuffle=False).repeat()
    pairs = samples.map(_decoded)
    return webdataset.WebLoader(pairs, batch_size=program.batch, num_workers=program.workers)  # type: ignore[no-any-return]


def _decoded(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return timed_datasets.decoded(io.BytesIO(sample["jpg"])), int(sample["cls"])


def _pretend_accelerator() -> None:
    """Have torch find a GPU, so that its own pin thread runs; `timed_datasets.PinnedBatch` has the cost of pinning."""
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda _index: None


@contextlib.contextmanager
def surroundings(program: Program, folder: Path) -> Iterator[None]:
    """The limits and servers of a program while the block runs. Raises UnavailableError if they cannot be set up."""
    with contextlib.ExitStack() as stack:
        if program.extra == "one-core":
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        try:
            if program.extra == "quota":
                is_first = (slow_device.GROUPS / "cpu" / _QUOTA).exists()  # the version of control groups
                quota = ("cpu", _QUOTA, "100000") if is_first else ("", "cpu.max", "100000 100000")
                stack.enter_context(slow_device.control_group(*quota))
            if program.load == "disk":
                timed_datasets.blobs(folder / "blobs")
                stack.enter_context(slow_device.limited(folder / "blobs", _DISK_BYTES_PER_S))
        except slow_device.SlowDeviceError as error:
            raise UnavailableError(str(error)) from None
        served = None
        if program.load == "store":
            (folder / "object").write_bytes(bytes(_OBJECT_BYTES))
            served = web_server(folder, program.cost_s / program.batch), "/object"
        elif program.load == "web":
            os.environ["IOFAST_CACHE_SIZE"] = "0"  # as slow in every epoch
            served = web_server(timed_datasets.stored(folder, _COPIES), _ANSWER_S, _WEB_BYTES_PER_S), "/set.tar"
        if served is not None:
            (folder / "url").write_text(f"{stack.enter_context(served[0])}{served[1]}")
        yield
