"""Batches on their way to a device: on a model of one that is as late as it may be, and where there is a GPU on it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from device_model import Device
from hypothesis import given
from hypothesis import strategies as st

from iofast.errors import StateError
from iofast.gpu import Bus, CudaStreams, Direct, Issued, Transfer, aside, way_to
from iofast.meter.counters import StageCounter

SHAPE = (4, 6)
CPU = torch.device("cpu")


class Training:
    """A consumer beside a transfer, each step of which hypothesis chooses. Batch n is full of n before it is finished,
    and of n + 1 behind that."""

    def __init__(self, device: Device) -> None:
        self.device, self.counter = device, StageCounter()
        self.transfer = Transfer(CPU, device, self.counter)
        self.transfer.begin()
        self.number = 0
        self.issued: list[tuple[int, Issued[Any]]] = []
        self.held: list[tuple[int, Any]] = []
        self.wrong: list[str] = []

    def issue(self) -> None:
        number = self.number = self.number + 1
        batch = self.device.host(np.full(SHAPE, number % 200, np.uint8))
        labels = self.device.host(np.full(SHAPE[:1], number % 200, np.uint8))

        def work(bus: Bus) -> dict[str, Any]:
            images, there = bus.copy([batch, labels])
            finished = self.device.empty(images)
            self.device.launch(lambda out, source: np.add(source, 1, out), finished, images)
            return {"images": [finished], "labels": (there, "a name")}

        self.issued.append((number % 200, self.transfer.issue(work)))

    def take(self, stream: str) -> None:
        """On one of the consumer's streams, which reads the batch now and again before it lets go of it."""
        if self.issued:
            number, issued = self.issued.pop(0)
            with self.device.on(self.device.queues[stream]):
                batch = self.transfer.hand_over(issued)
                self.held.append((number, batch))
                del issued
                self.read(number, batch)

    def read(self, number: int, batch: Any) -> None:
        def look(images: Any, labels: Any) -> None:
            if not (images == number + 1).all() or not (labels == number).all():
                self.wrong.append(f"batch {number} holds {np.unique(images)}, {np.unique(labels)}")

        self.device.launch(look, batch["images"][0], batch["labels"][0])

    def drop(self) -> None:
        if self.held:
            self.held.pop(0)

    def forget(self) -> None:
        """An iterator that is closed: what was issued is never handed over."""
        self.issued.clear()


STEPS = {
    "issue": lambda t: t.issue(),
    "take": lambda t: t.take("default"),
    "take on another stream": lambda t: t.take("other"),
    "drop": lambda t: t.drop(),
    "forget": lambda t: t.forget(),
}


def train(steps: list[str], chance: random.Random, faults: frozenset[str] = frozenset()) -> Training:
    training = Training(Device(chance, faults))
    for step in steps:
        STEPS[step](training)
    while training.issued:
        training.take("default")
    training.device.go_on(to_the_end=True)
    return training


@given(steps=st.lists(st.sampled_from([*STEPS, "issue", "take", "drop"]), max_size=60), chance=st.randoms())
def test_no_batch_is_read_early_or_written_over(steps: list[str], chance: random.Random) -> None:
    training = train(steps, chance)
    assert training.wrong == []
    training.transfer.collect()
    items, _, nbytes, work_ns, _, _ = training.counter.sums()
    assert items == training.number
    assert nbytes == training.number * (SHAPE[0] * SHAPE[1] + SHAPE[0])
    assert (work_ns > 0) == (training.number > 0)


@pytest.mark.parametrize("fault", ["wait", "keep", "pin"])
def test_the_model_notices(fault: str) -> None:
    """Without the wait a batch is read before it is there; without `keep` a later one is written over it; and memory of
    the host that does not wait for copies is filled with the next batch while the device still reads it."""
    steps = ["issue", "issue", *["take", "drop", "issue", "take on another stream", "drop", "issue"] * 10]
    found = [train(steps, random.Random(seed), frozenset({fault})).wrong for seed in range(20)]
    assert sum(bool(wrong) for wrong in found) >= 15
    sound = [train(steps, random.Random(seed)).wrong for seed in range(20)]
    assert not any(sound)


def test_what_fails_on_the_way_leaves_the_stream_as_it_was() -> None:
    device = Device()
    transfer = Transfer(CPU, device, StageCounter())
    transfer.begin()

    def work(bus: Bus) -> None:
        assert device.current().name == "side"
        raise ValueError("a faulty kernel")

    with pytest.raises(ValueError, match="a faulty kernel"):
        transfer.issue(work)
    assert device.current().name == "default"


def test_no_batch_within_a_capture() -> None:
    device = Device()
    transfer = Transfer(CPU, device, StageCounter())
    transfer.check()
    device.is_capturing = True
    with pytest.raises(StateError, match="a batch was asked for while a CUDA graph is captured"):
        transfer.check()


def test_copies_beyond_what_is_read_go_untimed() -> None:
    """A device that is far behind: events do not pile up."""
    chance = random.Random(0)
    chance.choice = lambda among: 0  # type: ignore[method-assign]
    training = Training(Device(chance))
    for _ in range(100):
        training.issue()
    assert len(training.transfer._pending) == 64
    assert training.counter.sums()[0] == 100


def test_devices_without_streams_of_ours() -> None:
    counter = StageCounter()
    assert way_to(CPU, counter) is None
    assert isinstance(way_to(torch.device("meta"), counter), Direct)
    with pytest.warns(RuntimeWarning, match=r"device mps \(mps\): batches are copied when they are asked for"):
        way = way_to(torch.device("mps"), counter)
    assert isinstance(way, Direct)
    way.device = CPU  # which has the same calls
    way.begin()
    way.check()
    batch = way.hand_over(way.issue(lambda bus: bus.copy([torch.arange(3)])))
    assert torch.equal(batch[0], torch.arange(3))
    assert counter.sums()[:3] == (1, 0, 24)


def test_rocm_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.warns(RuntimeWarning, match=r"device cuda:0 \(ROCm\)"):
        assert isinstance(way_to(torch.device("cuda:0"), StageCounter()), Direct)
    monkeypatch.setattr(torch.version, "hip", None)
    assert isinstance(way_to(torch.device("cuda:0"), StageCounter()), Transfer)


class Cuda:
    """What CudaStreams may call of torch.cuda, in a process whose consumer works on the fourth GPU."""

    def __init__(self) -> None:
        self.consumer = threading.current_thread()
        self.told: list[str] = []
        self.stopped_at = 0

    def current_device(self) -> int:
        return 3 if threading.current_thread() is self.consumer else 0

    def Stream(self, device: torch.device) -> str:  # noqa: N802 (torch's name)
        self.told.append(f"stream on {device}")
        return "side"

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        assert enable_timing

        def elapsed_time(end: Any) -> float:
            assert end.query(), "not ready"
            return 1.5

        event = SimpleNamespace(query=lambda: self.stopped_at, elapsed_time=elapsed_time)
        event.record = lambda stream: self.told.append(f"record on {stream}")
        return event

    def current_stream(self, device: torch.device) -> str:
        return f"current of {device}"

    def device(self, device: torch.device) -> Any:
        return self._within(f"device {device}")

    def stream(self, stream: str) -> Any:
        return self._within(f"stream {stream}")

    @contextlib.contextmanager
    def _within(self, name: str) -> Iterator[None]:
        self.told.append(f"enter {name}")
        yield
        self.told.append(f"leave {name}")

    def mem_get_info(self) -> tuple[int, int]:
        return 1000, 5000

    def memory_reserved(self) -> int:
        return 300

    def memory_allocated(self) -> int:
        return 100

    def is_current_stream_capturing(self) -> bool:
        return False


def test_cuda_is_the_consumers_device_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a thread of ours enters that device before its stream, so that it leaves none on another one."""
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    streams = CudaStreams(torch.device("cuda"))
    transfer = Transfer(torch.device("cuda"), streams, StageCounter())
    transfer.begin()
    issued: list[Issued[str]] = []
    thread = threading.Thread(target=lambda: issued.append(transfer.issue(lambda bus: "a batch")))
    thread.start()
    thread.join()
    assert cuda.told == [
        "stream on cuda:3",
        "enter device cuda:3",
        "enter stream side",
        "record on side",
        "leave stream side",
        "leave device cuda:3",
    ]
    assert streams.current() == "current of cuda:3"
    assert streams.free_bytes() == 1200
    assert streams.elapsed_ns(issued[0].ready, issued[0].ready) is None
    assert not streams.passed(issued[0].ready)
    cuda.stopped_at = 1
    assert streams.elapsed_ns(issued[0].ready, issued[0].ready) == 1_500_000
    assert streams.passed(issued[0].ready)
    transfer.check()


def test_cuda_is_told_who_waits_and_who_still_reads() -> None:
    """The three calls on which the order of streams rests are the real ones: a batch is waited for on the device, its
    memory is kept for the consumer's stream, and a copy does not hold up the host."""
    told: list[Any] = []
    streams, stream = CudaStreams(torch.device("cuda:0")), SimpleNamespace(wait_event=told.append)
    streams.wait(stream, "ready")
    for there in (True, False):
        streams.keep(SimpleNamespace(is_cuda=there, record_stream=lambda stream: told.append("kept")), stream)  # type: ignore[arg-type]
    locked = SimpleNamespace(
        device=torch.device("cpu"),
        layout=torch.strided,
        is_pinned=lambda: True,
        to=lambda device, non_blocking=False: told.append((device, non_blocking)),
    )
    streams.copy(locked)  # type: ignore[arg-type]
    assert told == ["ready", "kept", (torch.device("cuda:0"), True)]


def test_cuda_takes_what_a_users_function_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page-locked memory is dense: what is no such tensor, or is on the device already, is not put there as it is."""
    dense, empty_like = list[bool](), torch.empty_like

    def locked(tensor: torch.Tensor, *, pin_memory: bool) -> torch.Tensor:
        made = empty_like(tensor)
        dense.append(pin_memory and made.untyped_storage().nbytes() == made.nbytes == tensor.nbytes)
        return made

    monkeypatch.setattr(torch, "empty_like", locked)
    streams = CudaStreams(torch.device("meta"))
    whole = torch.arange(24).view(4, 6)
    for tensor in (whole, whole.t(), whole[:, ::2], torch.tensor([7]).expand(5)):
        made = streams.copy(tensor)
        assert (made.device.type, made.shape, made.dtype) == ("meta", tensor.shape, tensor.dtype)
    assert dense == [True] * 4
    there = torch.empty(3, device="meta")
    assert streams.copy(there) is there


def test_a_thread_stands_aside_once_the_driver_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, modes = [3, 0], []

    def exchange(mode: Any) -> int:
        modes.append(mode._obj.value)
        return answers.pop(0)

    driver = SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr("iofast.gpu.streams.ctypes.CDLL", lambda name: driver)

    def work() -> None:
        for _ in range(5):
            aside()

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert answers == []
        answers.append(0)
    assert modes == [2, 2, 2], "relaxed: until it succeeds, and again in another thread"
