"""What stands between DataLoader's workers and the loop."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from test_tensors import defer
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import pin_memory

from iofast.batch_memory import BatchMemory
from iofast.run import loaders, notes
from iofast.run.contents import Threads
from iofast.run.deferred import Deferred, lazily
from iofast.run.loaders import BatchLoop

FACTS = {"workers": 2, "batch_size": 2} | dict.fromkeys(
    ("decoded", "images", "nanoseconds", "waited", "begun", "ended"), 0
)


class Inbox(queue.Queue[Any]):
    """DataLoader's queue, whose items were pickled, with errors among them."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item if isinstance(item, Exception) else ForkingPickler.dumps(item))  # type: ignore[attr-defined]

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        if isinstance(item, Exception):
            raise item
        return pickle.loads(item)


def loop_over(*items: Any) -> BatchLoop:
    inbox = Inbox()
    for item in items:
        inbox.put(item)
    return BatchLoop(dict(FACTS), inbox)


@pytest.fixture
def lazy(photos: dict[str, Path], by_iofast: Callable[[bool], None]) -> Callable[[], Deferred]:
    def batch() -> Deferred:
        by_iofast(True)
        notes.notes().counts["checked"] = 1000
        stacked = torch.stack([defer(Image.open(photos["rgb"]).crop((0, 0, 200, 200))) for _ in range(2)])
        assert isinstance(stacked, Deferred)
        return stacked

    return batch


def test_batches_that_wait_together_are_each_decoded_in_any_container(lazy: Callable[[], Deferred]) -> None:
    expected = lazy().make()
    box = loop_over((0, [torch.zeros(2), 1]), (1, [lazy(), 1]), (2, SimpleNamespace(pixels=[lazy()])), (3, 5))
    (zeros, _), (first, _), second, other = (box.get(timeout=30)[1] for _ in range(4))
    assert ([*zeros], other, box.facts["decoded"]) == ([0, 0], 5, 4)
    for each in (first, *second.pixels):
        assert type(each) is torch.Tensor
        assert torch.equal(each, expected)


def test_a_thread_that_pins_gets_decoded_batches(lazy: Callable[[], Deferred]) -> None:
    """Without a device: memory is not page-locked here."""
    expected, loop = lazy().make(), BatchLoop(dict(FACTS), pins=True)
    loop.memory, sent = BatchMemory(pinned=False, spare=1), ForkingPickler.dumps([lazy()])  # type: ignore[attr-defined]
    with lazily(loop):
        (arrived,) = pickle.loads(sent)
        assert isinstance(arrived, Deferred)
        pinned = pin_memory([arrived])[0]
    assert type(pinned) is torch.Tensor
    assert torch.equal(pinned, expected)
    assert loop.facts["decoded"] == 2


def test_an_error_is_of_its_own_batch(lazy: Callable[[], Deferred]) -> None:
    damaged = lazy()
    for row in damaged.contents.rows:
        row.source.data = bytes(row.source.data)[:300]
    box = loop_over((0, lazy()), (1, damaged), (2, lazy()))
    items = [box.get(timeout=30) for _ in range(3)]
    assert [(number, type(batch)) for number, batch in items] == [
        (0, torch.Tensor),
        (1, ExceptionWrapper),
        (2, torch.Tensor),
    ]
    assert any("rgb.jpg" in line for line in items[1][1].exc_msg.splitlines())


def test_an_error_of_the_queue_is_the_loops(lazy: Callable[[], Deferred]) -> None:
    box = loop_over(RuntimeError("received 0 items of ancdata"), (0, lazy()))
    with pytest.raises(RuntimeError, match="ancdata"):
        box.get(timeout=30)
    assert type(box.get(timeout=30)[1]) is torch.Tensor


def test_images_are_counted_between_batches_of_one_epoch() -> None:
    facts, inbox = dict(FACTS), queue.Queue[Any]()
    box = BatchLoop(facts, inbox)
    for number in range(40):
        inbox.put((number, [torch.zeros(2), None]))
        box.get()
    assert facts["images"] == 2 * (40 - 32)  # without those that may be checked, 32 by each worker
    inbox.put((object(), None))  # a persistent worker begins another epoch
    inbox.put((0, {"pixels": torch.zeros(2)}))
    inbox.put((1, {"pixels": torch.zeros(1)}))  # the last, short one
    for _ in range(3):
        box.get()
    assert facts["images"] == 2 * (40 - 32) + 1


def test_a_wait_that_dataloader_begins_again_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, now = dict(FACTS), [0]
    monkeypatch.setattr(loaders, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    inbox = queue.Queue[Any]()
    box = BatchLoop(facts, inbox)
    box._first = 0
    for now[0] in (1_000, 6_000):
        with pytest.raises(queue.Empty):
            box.get(timeout=0.001)
    inbox.put((0, torch.zeros(2)))
    now[0] = 7_000
    box.get()
    assert (facts["waited"], facts["nanoseconds"], facts["ended"]) == (6_000, 7_000, 7_000)


def test_a_batch_that_an_interrupt_stopped_comes_again(
    lazy: Callable[[], Deferred], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = loop_over((0, lazy()))
    with monkeypatch.context() as patched:
        patched.setattr(loaders, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            box.get(timeout=30)
    number, batch = box.get(timeout=30)
    assert (number, type(batch)) == (0, torch.Tensor)


def interrupted(jobs: Any) -> None:
    raise KeyboardInterrupt


def test_threads_of_a_forked_process_and_at_exit() -> None:
    threads = Threads(2, dict(FACTS))
    jobs = [threads.begin(lambda: 1)]
    threads._of = 0  # as in a forked process
    jobs.append(threads.begin(lambda: 2))
    threads._pool.shutdown()  # as Python does at exit
    jobs.append(threads.begin(lambda: 3))
    assert [wait() for wait in jobs] == [1, 2, 3]
