"""What stands between DataLoader's workers and the loop."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from test_tensors import defer
from torch._utils import ExceptionWrapper

from iofast.run import loaders, notes
from iofast.run.contents import Threads
from iofast.run.deferred import Deferred
from iofast.run.loaders import BatchLoop

FACTS = {"workers": 2, "batch_size": 2} | dict.fromkeys(
    ("decoded", "images", "nanoseconds", "waited", "begun", "ended"), 0
)


class Inbox(queue.Queue[Any]):
    """DataLoader's queue, with errors among its items."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        if isinstance(item, Exception):
            raise item
        return item


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
        stacked = torch.stack([defer(Image.open(photos["rgb"]).crop((0, 0, 40, 40))) for _ in range(2)])
        assert isinstance(stacked, Deferred)
        return stacked

    return batch


def test_batches_that_wait_together_are_each_decoded(lazy: Callable[[], Deferred]) -> None:
    box = loop_over((0, [lazy(), 1]), (1, {"pixels": lazy()}))
    assert [type(box.get(timeout=30)[1][0]), type(box.get(timeout=30)[1]["pixels"])] == [torch.Tensor] * 2


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
    facts = dict(FACTS)
    inbox = queue.Queue[Any]()
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


def test_a_batch_without_lazy_tensors_is_the_same_object(lazy: Callable[[], Deferred]) -> None:
    class Pair(NamedTuple):
        image: Any
        label: int

    class Own(Pair):
        def __new__(cls, pair: tuple[Any, int]) -> Own:
            return super().__new__(cls, *pair)

    own, other = Own((torch.zeros(2), 1)), lazy()
    box = loop_over((0, own), (1, [other, 5]), (2, own))
    assert box.get(timeout=30)[1] is own
    assert [type(each) for each in box.get(timeout=30)[1]] == [torch.Tensor, int]
    assert box.get(timeout=30)[1] is own


def test_a_batch_that_an_interrupt_stopped_comes_again(
    lazy: Callable[[], Deferred], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = loop_over((0, lazy()))
    with monkeypatch.context() as patched:
        patched.setattr(notes, "write_sometimes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            box.get(timeout=30)
    number, batch = box.get(timeout=30)
    assert (number, type(batch)) == (0, torch.Tensor)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_threads_of_a_forked_process_and_at_exit() -> None:
    threads, done = Threads(2), list[int]()

    def job(number: int) -> int:
        done.append(number)
        return number

    for _ in range(2):
        threads.begin(job, 1)
        threads._of = 0  # as in a forked process
    threads.begin(job, 2)
    threads._pool.shutdown()  # as Python does at exit
    threads.begin(job, 3)
    assert [wait() for wait in threads.under_way] == [1, 1, 2, 3]
    assert sorted(done) == [1, 1, 2, 3]
