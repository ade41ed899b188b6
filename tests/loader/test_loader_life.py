"""However a loop ends, its threads end too, and nothing is left: no memory, no descriptor, no process."""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from at_once import at_once, in_child
from device_model import lend
from loader_sets import break_out, descriptors, digest, eventually, fail_in_the_loop, photographs, workers, write_lmdb
from todays import todays

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import DecodeError, WorkerError

AUGMENT = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


@pytest.fixture(scope="module", params=["set.lmdb", "folder"])
def dataset(request: pytest.FixtureRequest, place: Path) -> FastDataset:
    return FastDataset(place / request.param)


@pytest.fixture(params=["set.lmdb", "folder", "device"])
def loader(request: pytest.FixtureRequest, place: Path) -> FastLoader:
    """Of a container, of a folder, and on a model of a device."""
    name = "set.lmdb" if request.param == "device" else request.param
    loader = FastLoader(FastDataset(place / name), 4, shuffle=True, transform=AUGMENT, num_workers=3)
    if request.param == "device":
        lend(loader)
    return loader


def close_the_iterator(loader: FastLoader) -> None:
    batches = iter(loader)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert next(batches, None) is None


def leave_in_a_cycle(loader: FastLoader) -> None:
    cycle: list[object] = [iter(loader)]
    next(cycle[0])  # type: ignore[call-overload]
    cycle.append(cycle)
    del cycle
    gc.collect()


ENDINGS = [break_out, fail_in_the_loop, close_the_iterator, leave_in_a_cycle]


@pytest.mark.parametrize("ending", ENDINGS)
def test_threads_end_and_the_loader_starts_again(loader: FastLoader, ending: Callable[[FastLoader], None]) -> None:
    expected = digest(loader)
    for _ in range(2):
        ending(loader)
        assert workers() == 0  # at once
        loader.set_epoch(0)
        assert digest(loader) == expected


def test_iterators_side_by_side(loader: FastLoader) -> None:
    beginning = loader.state_dict()
    expected = digest(loader)
    loader.load_state_dict(beginning)
    first = iter(loader)
    begun = [next(first)]
    loader.load_state_dict(beginning)
    assert digest(loader) == expected  # the same epoch, while the first iterator is in it
    assert digest([*begun, *first]) == expected
    assert [len(list(islice(loader, 3))) for _ in loader] == [3] * 10  # nested


def test_loops_in_threads_at_once(dataset: FastDataset) -> None:
    shared = FastLoader(dataset, 4, transform=T.evaluate(24)[:2], num_workers=2)
    gc.collect()  # datasets of the tests before
    expected, before = digest(shared), descriptors()
    results: list[str] = []
    at_once(*[lambda: results.extend(digest(shared) for _ in range(4))] * 4)
    assert results == [expected] * 16
    assert descriptors() == before


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_batch_in_hand_never_changes(dataset: FastDataset, dtype: torch.dtype) -> None:
    loader = FastLoader(dataset, 4, shuffle=True, transform=AUGMENT, dtype=dtype, num_workers=3, prefetch=2)
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    places = set()
    for epoch in range(6):
        for number, (images, _) in enumerate(loader):
            places.add(images.data_ptr())
            if number % 4 == epoch % 4:
                held.append((images[1:3, 1], images[1:3, 1].clone()))
            del images
            if len(held) > 3:
                del held[0]
            assert all(torch.equal(view, copy) for view, copy in held)
    assert len(places) <= 2 + 2 + 4  # ahead and spare, and those of which something was held


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_failed_batches_are_not_kept(place: Path, no_collector: None) -> None:
    """Their memory comes back without the garbage collector, although an error's traceback had them."""
    loader = FastLoader(FastDataset(place / "broken.lmdb"), 40, transform=AUGMENT, num_workers=2)
    for _ in range(3):
        with pytest.raises(DecodeError, match=r": 0+5: "):
            next(iter(loader))
    assert eventually(lambda: not loader._resources.memory._out), "its threads may still be ending"
    assert loader._resources.memory._free
    batches = iter(FastLoader(loader.dataset, 4, transform=AUGMENT))
    held = list(next(batches))
    gone = weakref.ref(held[0])
    held.clear()
    assert eventually(lambda: gone() is None), "the thread that made it may not have come to its next line yet"


def test_fork_with_a_live_iterator(dataset: FastDataset) -> None:
    normalized: dict[str, Any] = {"shuffle": True, "transform": T.train(64), "dtype": torch.float32, "num_workers": 2}
    loader = FastLoader(dataset, 16, **normalized)
    beginning = loader.state_dict()
    expected = digest(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    begun = [next(batches)]

    def child() -> bool:
        with pytest.raises(WorkerError):
            next(batches)
        batches.close()  # type: ignore[attr-defined]
        loader.load_state_dict(beginning)
        return digest(loader) == digest(FastLoader(dataset, 16, **normalized)) == expected

    for _ in range(5):  # the threads are at another point each time
        assert in_child(child) == 0
    assert in_child(lambda: gc.collect() >= 0) == 0
    assert digest([*begun, *batches]) == expected


@pytest.mark.filterwarnings("ignore:unclosed file")  # a signal between open() and `with`
def test_every_ctrl_c_arrives(monkeypatch: pytest.MonkeyPatch, loader: FastLoader) -> None:
    """A signal in a finalizer written in Python is lost; of 600 in such a loop, 14 once were."""
    monkeypatch.setattr("device_model.Memory.reused", False)
    interrupt, expected = signal.getsignal(signal.SIGINT), digest(loader)
    delays = random.Random(0)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for _ in range(60):
            with pytest.raises(KeyboardInterrupt):
                loop_until_interrupted(loader, delays.random() * 0.02)
            assert eventually(lambda: workers() == 0)
        loader.set_epoch(0)
        assert digest(loader) == expected
    finally:
        signal.signal(signal.SIGINT, interrupt)


def loop_until_interrupted(loader: FastLoader, delay: float) -> None:
    end = time.monotonic() + 20
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    while time.monotonic() < end:
        for _ in loader:
            pass


def test_ctrl_c_while_waiting_for_a_batch(monkeypatch: pytest.MonkeyPatch, loader: FastLoader) -> None:
    """The consumer waits without a timeout, and is interrupted at once."""
    from iofast.loader.batches import BatchJob

    release, made = threading.Event(), list[bool]()
    monkeypatch.setattr(BatchJob, "finish", lambda job: made.append(release.wait(60)))
    monkeypatch.setattr("iofast.prefetch.jobs.JOIN_S", 0.01)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - a signal may come as soon as the timer runs
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        next(iter(loader))
    assert made == []
    release.set()


# In a process of its own: torch starts its threads at the first use in each thread.
LIMITS = """
import json, os, sys, threading
import torch
from iofast import FastDataset, FastLoader, transforms as T

def work(where, same=None):
    "Note the limit there, and how many threads begin when elements and matrices are computed for the first time."
    if where not in seen:
        before = set(os.listdir("/proc/self/task"))
        torch.ones(3_000_000).exp()
        torch.ones(400, 400) @ torch.ones(400, 400)
        seen[where] = torch.get_num_threads(), len(set(os.listdir("/proc/self/task")) - before)
    return same

seen = {}
if sys.argv[2] == "set":
    torch.set_num_threads(3)
seen["before"] = torch.get_num_threads()
batches = iter(FastLoader(
    FastDataset(sys.argv[1]), 4, transform=T.train(64), dtype=torch.float32, num_workers=1, prefetch=1, readahead=False,
    map_sample=lambda sample, rng: work("sample", sample), map_batch=lambda batch: work("batch", batch),
))
next(batches)
work("training")
later = threading.Thread(target=work, args=("later thread",))
later.start()
later.join()
print(json.dumps(seen))
"""


@pytest.mark.parametrize("limit", todays(["set", "environment"]))
def test_each_thread_computes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Operations of torch in a loader's threads run in those alone; training's own keep their number of threads.

    Whether training's number of threads was set by it, or by its environment.
    """
    write_lmdb(tmp_path / "set.lmdb", photographs(8))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False) if limit == "set" else monkeypatch.setenv(name, "3")
    command = [sys.executable, "-c", LIMITS, str(tmp_path / "set.lmdb"), limit]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    seen = json.loads(run.stdout)
    threads = seen["before"]  # MKL allows no more than there are cores, unless it was said in the program
    assert threads == 3 or limit == "environment"
    assert seen["sample"] == seen["batch"] == [1, 0]
    assert seen["training"] == seen["later thread"] == [threads, threads - 1]
