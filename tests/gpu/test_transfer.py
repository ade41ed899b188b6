"""Batches on their way to a device: on a model that is as late as a device may be."""

import random
import threading
from typing import Any
from unittest.mock import MagicMock, call

import numpy as np
import pytest
import torch
from device_model import Device
from hypothesis import example, given
from hypothesis import strategies as st

from iofast.errors import StateError
from iofast.gpu import Bus, CudaStreams, Direct, Issued, Transfer, transfer_to
from iofast.meter.counters import StageCounter

SHAPE = (4, 6)
CPU = torch.device("cpu")


class Training:
    """A transfer and its consumer. Batch n is full of n before a kernel on the device finishes it, then of n + 1."""

    def __init__(self, device: Device) -> None:
        self.device, self.counter = device, StageCounter()
        self.transfer = Transfer(CPU, device, self.counter)
        self.transfer.begin()
        self.number = 0
        self.issued: list[tuple[int, Issued[Any]]] = []
        self.kept: list[Any] = []
        self.wrong: list[str] = []

    def issue(self) -> None:
        number = self.number = self.number + 1
        batch = self.device.host(np.full(SHAPE, number % 200, np.uint8))
        labels = self.device.host(np.full(SHAPE[:1], number % 200, np.uint8))

        def work(bus: Bus) -> dict[str, Any]:
            images, copied = bus.copy([batch, labels])
            finished = self.device.empty(images)
            self.device.launch(lambda out, source: np.add(source, 1, out), finished, images)
            return {"images": [finished], "labels": (copied, "a name")}

        self.issued.append((number % 200, self.transfer.issue(work)))

    def take(self, stream: str) -> None:
        """Take a batch and read it on one of the consumer's streams."""
        if self.issued:
            number, issued = self.issued.pop(0)
            with self.device.on(self.device.queues[stream]):
                batch = self.transfer.hand_over(issued)
                self.kept.append(batch)
                del issued
                self.read(number, batch)

    def read(self, number: int, batch: Any) -> None:
        def look(images: Any, labels: Any) -> None:
            if not (images == number + 1).all() or not (labels == number).all():
                self.wrong.append(f"batch {number} holds {np.unique(images)}, {np.unique(labels)}")

        self.device.launch(look, batch["images"][0], batch["labels"][0])

    def drop(self) -> None:
        if self.kept:
            self.kept.pop(0)


STEPS = {
    "issue": lambda t: t.issue(),
    "take": lambda t: t.take("default"),
    "take on another stream": lambda t: t.take("other"),
    "drop": lambda t: t.drop(),
    "close the iterator": lambda t: t.issued.clear(),
}


# Without `wait` a batch is read too early; without `keep` the next one overwrites it.
BUSY = ["issue", "issue", *["take", "drop", "issue", "take on another stream", "drop", "issue"] * 10]


@given(steps=st.lists(st.sampled_from([*STEPS, "issue", "take", "drop"]), max_size=60), chance=st.randoms())
@example(steps=BUSY, chance=random.Random(0))
@example(steps=BUSY, chance=random.Random(1))
@example(steps=BUSY, chance=random.Random(2))
def test_no_batch_is_read_early_or_written_over(steps: list[str], chance: random.Random) -> None:
    training = Training(Device(chance))
    for step in steps:
        STEPS[step](training)
    while training.issued:
        training.take("default")
    training.device.go_on(to_the_end=True)
    assert training.wrong == []
    training.transfer.collect()
    found = training.counter.stats()
    assert (found.items, found.bytes) == (training.number, training.number * (SHAPE[0] * SHAPE[1] + SHAPE[0]))
    assert (found.work_s > 0) == (training.number > 0)


def test_an_error_leaves_the_current_stream_as_it_was_and_no_batch_comes_within_a_capture() -> None:
    device = Device()
    transfer = Transfer(CPU, device, StageCounter())
    transfer.begin()

    def work(bus: Bus) -> None:
        assert device.current().name == "side"
        raise ValueError("a faulty kernel")

    with pytest.raises(ValueError, match="a faulty kernel"):
        transfer.issue(work)
    assert device.current().name == "default"
    transfer.check()
    device.is_capturing = True
    with pytest.raises(StateError, match="no batch can be handed over while a CUDA graph is captured"):
        transfer.check()


def test_events_do_not_pile_up_for_a_device_far_behind() -> None:
    chance = random.Random(0)
    chance.choice = lambda among: 0  # type: ignore[method-assign]
    training = Training(Device(chance))
    for _ in range(100):
        training.issue()
    assert len(training.transfer._pending) == 64
    assert training.counter.stats().items == 100


def test_devices_without_streams_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = StageCounter()
    assert isinstance(transfer_to(torch.device("meta"), counter), Direct)
    with pytest.warns(RuntimeWarning, match=r"device mps \(mps\): batches are copied in next\(\)"):
        transfer = transfer_to(torch.device("mps"), counter)
    assert isinstance(transfer, Direct)
    transfer.device = CPU  # which has the same calls
    transfer.begin()
    transfer.check()
    batch = transfer.hand_over(transfer.issue(lambda bus: bus.copy([torch.arange(3)])))
    assert torch.equal(batch[0], torch.arange(3))
    assert (counter.stats().items, counter.stats().bytes) == (1, 24)
    assert isinstance(transfer_to(torch.device("cuda:0"), StageCounter()), Transfer)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.warns(RuntimeWarning, match=r"device cuda:0 \(ROCm\)"):
        assert isinstance(transfer_to(torch.device("cuda:0"), StageCounter()), Direct)


def test_cuda_is_the_consumers_device_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread enters the device before its stream, so that no context is made on another device."""
    consumer, cuda, own = threading.current_thread(), MagicMock(), torch.device("cuda:3")
    cuda.current_device = lambda: 3 if threading.current_thread() is consumer else 0
    cuda.is_current_stream_capturing = lambda: False
    cuda.mem_get_info, cuda.memory_reserved, cuda.memory_allocated = lambda: (1000, 5000), lambda: 300, lambda: 100
    monkeypatch.setattr(torch, "cuda", cuda)
    streams = CudaStreams(torch.device("cuda"))
    transfer = Transfer(torch.device("cuda"), streams, StageCounter())
    transfer.begin()
    issued: list[Issued[str]] = []
    thread = threading.Thread(target=lambda: issued.append(transfer.issue(lambda bus: "a batch")))
    thread.start()
    thread.join()
    side, event, left = cuda.Stream.return_value, cuda.Event.return_value, (None, None, None)
    entered = [call.device(own), call.device().__enter__(), call.stream(side), call.stream().__enter__()]
    recorded = [call.Event(enable_timing=True), call.Event().record(side)]
    ended = [call.stream().__exit__(*left), call.device().__exit__(*left)]
    assert cuda.mock_calls == [call.Stream(own), *entered, *recorded, *ended]
    assert streams.current() == cuda.current_stream.return_value
    cuda.current_stream.assert_called_with(own)
    assert streams.free_bytes() == 1200
    event.elapsed_time.return_value = 1.5
    for passed, elapsed in ((0, None), (1, 1_500_000)):
        event.query.return_value = passed
        assert streams.elapsed_ns(issued[0].ready, issued[0].ready) == elapsed
        assert event.elapsed_time.called == passed, "not ready"
        assert streams.passed(issued[0].ready) == passed
    transfer.check()


def test_the_calls_that_order_streams_are_torchs() -> None:
    """The device waits for a batch, its memory is kept for the consumer's stream, and a copy does not block."""
    streams, stream = CudaStreams(torch.device("cuda:0")), MagicMock()
    streams.wait(stream, "ready")  # type: ignore[arg-type]
    stream.wait_event.assert_called_once_with("ready")
    there, here = MagicMock(is_cuda=True), MagicMock(is_cuda=False)
    for tensor in (there, here):
        streams.keep(tensor, stream)
    there.record_stream.assert_called_once_with(stream)
    assert not here.record_stream.called
    pinned = MagicMock(device=torch.device("cpu"), layout=torch.strided)
    streams.copy(pinned)
    pinned.to.assert_called_once_with(torch.device("cuda:0"), non_blocking=True)


def test_any_tensor_of_a_users_function_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page-locked memory is dense; a tensor that is on the device already is not copied."""
    dense, empty_like = list[bool](), torch.empty_like

    def pinned(tensor: torch.Tensor, *, pin_memory: bool) -> torch.Tensor:
        copy = empty_like(tensor)
        dense.append(pin_memory and copy.untyped_storage().nbytes() == copy.nbytes == tensor.nbytes)
        return copy

    monkeypatch.setattr(torch, "empty_like", pinned)
    streams = CudaStreams(torch.device("meta"))
    whole = torch.arange(24).view(4, 6)
    for tensor in (whole, whole.t(), whole[:, ::2], torch.tensor([7]).expand(5)):
        copy = streams.copy(tensor)
        assert (copy.device.type, copy.shape, copy.dtype) == ("meta", tensor.shape, tensor.dtype)
    assert dense == [True] * 4
    there = torch.empty(3, device="meta")
    assert streams.copy(there) is there
