"""The exposed stall by the device's clock: on a model of a stream, and on a GPU if there is one."""

from __future__ import annotations

import time as host
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stall_loaders import MS, Time, TimedLoader

from iofast.meter import LoaderInfo, LoaderReport, Meter, Stages, Stall, StallClock, watch
from iofast.meter.device import MAX_PENDING, DeviceTimes


class Stream:
    """A device that works in order, behind the host. No call waits for it."""

    def __init__(self, time: Time) -> None:
        self.time, self.free_at, self.events = time, 0, 0
        self.capturing = self.failing = False

    def launch(self, ms: float) -> None:
        self.free_at = max(self.free_at, self.time.ns) + round(ms * MS)

    def wait_until(self, ns: int) -> None:
        self.free_at = max(self.free_at, ns)

    def cuda(self) -> Any:
        """Return the part of torch.cuda that a meter uses."""
        stream = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                stream.events += 1
                self.at: int | None = None

            def record(self, on: Stream) -> None:
                if stream.failing:
                    raise RuntimeError("CUDA error: device-side assert triggered")
                assert on is stream
                self.at = max(stream.free_at, stream.time.ns)

            def query(self) -> bool:
                assert not stream.capturing, "a query ends the capture"
                assert self.at is not None
                return self.at <= stream.time.ns

            def elapsed_time(self, end: Event) -> float:
                assert self.at is not None
                assert end.at is not None
                assert max(self.at, end.at) <= stream.time.ns, "not ready"
                return (end.at - self.at) / MS

        return SimpleNamespace(
            Event=Event,
            current_stream=lambda device: stream,
            current_device=lambda: 0,
            is_current_stream_capturing=lambda: stream.capturing,
        )


@pytest.fixture
def stream(time: Time) -> Stream:
    return Stream(time)


def watched(stream: Stream, waits_ms: list[float]) -> Meter[Any]:
    """Return a meter of batches with these waits, on the model's device."""
    meter = watch(TimedLoader(stream.time, waits_ms))
    modelled(meter.clock, stream)
    meter.clock.device = "cuda"
    return meter


def modelled(clock: StallClock, stream: Stream) -> None:
    """Let a clock measure by the model."""
    clock.now, clock.cuda = stream.time, stream.cuda()


def train(meter: Meter[Any], stream: Stream, device_ms: float, host_ms: float = 1.0) -> None:
    """Launch each step in `host_ms`; it takes the device `device_ms`. At the end wait for the device."""
    for _ in meter:
        stream.time.go(host_ms)
        stream.launch(device_ms)
    stream.time.ns = max(stream.time.ns, stream.free_at)


def test_a_host_that_waits_beside_a_busy_device_is_no_stall(stream: Stream) -> None:
    meter = watched(stream, [5.0] * 20)
    train(meter, stream, device_ms=20)
    stats = meter.stats
    assert (stats.device, stats.steps) == ("cuda:0", 19)
    assert stats.host_wait == pytest.approx(5 / 6)
    assert stats.stall == Stall(0, 0, "inside")
    assert stats.step_median_s == pytest.approx(0.020)
    assert "stall 0.0% on cuda:0 (host wait 83.3%)" in str(stats)


def test_a_device_that_runs_dry(stream: Stream, reported: Callable[[], LoaderReport]) -> None:
    """Of each 31 ms the device works 10 and is idle 21, of which the host needs 1 to launch the next step."""
    meter = watched(stream, [30.0] * 20)
    train(meter, stream, device_ms=10)
    figures = reported().figures
    assert reported().info.device == "cuda:0"
    assert (figures.device_stall_ns, figures.device_step_ns) == (19 * 20 * MS, 19 * 31 * MS)
    stats = meter.stats
    assert stats.stall == Stall(pytest.approx(20 / 31), pytest.approx(20 / 31), "inside")
    assert stats.host_wait == pytest.approx(30 / 31)
    assert stats.step_mean_s == pytest.approx(0.031)
    assert stats.transfer is None


def test_the_third_event_splits_off_the_transfer(stream: Stream) -> None:
    stages, info = Stages(), LoaderInfo("own", "FastLoader")
    clock = StallClock(info, device="cuda:0", stages=stages)
    modelled(clock, stream)
    timing = clock.begin()
    for _ in range(11):
        timing.waiting()
        stream.time.go(6)  # until the batch is ready
        timing.arrived()
        stream.wait_until(stream.time.ns + 4 * MS)  # until it is copied; the host does not wait
        timing.got(32)
        stream.launch(30)
        stream.time.ns = stream.free_at  # the training loop reads its loss
    timing.left()
    stats = clock.stats
    assert stats.step_mean_s == pytest.approx(0.040)
    assert stats.stall.low == pytest.approx(10 / 40)
    assert stats.transfer == pytest.approx(4 / 40)
    assert stats.host_wait == pytest.approx(6 / 40)
    assert stages.transfer.stats().wait_s == pytest.approx(0.040)


def test_events_are_read_when_the_device_has_passed_them(stream: Stream) -> None:
    """Until then only bounds are known. The clock proves that nothing waits."""
    meter = watched(stream, [0.0] * 3)
    for _ in meter:
        stream.time.go(2)
        stream.launch(1_000)
    assert meter.stats.stall == Stall(0.0, 0.0)
    stream.time.go(100_000)
    assert meter.stats.step_mean_s == pytest.approx(1.001)
    starved = watched(stream, [1.0] * 3)
    for _ in starved:
        stream.launch(100_000)
    assert starved.stats.stall == Stall(0.0, 1.0), "the host waits for the whole step"


def test_phases_by_the_devices_clock(stream: Stream, reported: Callable[[], LoaderReport]) -> None:
    meter = watched(stream, [0.0] * 10)
    for number, _ in enumerate(meter):
        with meter.step("forward"):
            stream.launch(6)
        if number % 2:
            with meter.step("optimizer"):
                stream.launch(4)
        stream.time.go(1)
    forward = reported().phases["forward"]
    assert reported().phases_on_device
    assert 0 < forward.timed < forward.entered == 10, "the device is behind"
    assert forward.ns == forward.timed * 6 * MS
    assert meter.stats.phases["forward"].seconds == pytest.approx(0.006)
    stream.time.go(1_000)
    phases, step = meter.stats.phases, meter.stats.step_mean_s
    assert phases["optimizer"].seconds == pytest.approx(0.002)
    assert step is not None
    assert phases["forward"].share == pytest.approx(0.006 / step)


def test_a_host_far_ahead_skips_steps_and_measures_later_ones(stream: Stream) -> None:
    meter = watched(stream, [0.0] * 5_000)
    for number, _ in enumerate(meter):
        with meter.step("forward"):
            stream.launch(10)
        stream.time.go(0.001 if number < 2_000 else 10)  # at first only launches, as with CUDA graphs
        if number == 2_000:
            assert stream.events <= 3 * MAX_PENDING
            stream.time.ns = stream.free_at
    stats = meter.stats
    assert stats.steps == 4_999
    assert stats.stall.high == 0
    assert stats.phases["forward"].seconds == pytest.approx(0.010)
    times = meter.clock._times
    assert times is not None
    assert 2_900 < times.steps < 4_000, "steps are skipped only while too many are pending"


def test_nothing_is_recorded_into_a_graph(stream: Stream) -> None:
    meter = watched(stream, [1.0] * 6)
    for number, _ in enumerate(meter):
        stream.capturing = number in (2, 3)
        stream.time.go(9)
    times = meter.clock._times
    assert times is not None
    assert times.steps == 2, "those without a capture at either end: the first and the last"


def test_a_failing_device_raises_nothing_here(stream: Stream) -> None:
    meter = watched(stream, [1.0] * 6)
    for number, _ in enumerate(meter):
        stream.failing = number >= 3
        with meter.step("forward"):
            stream.time.go(1)
    assert (meter.stats.batches, meter.stats.steps) == (6, 5)


def test_epochs_left_early_and_nested_ones_share_no_step(stream: Stream) -> None:
    meter = watched(stream, [1.0] * 4)
    for _ in meter:
        stream.time.go(1_009)
        break
    for _ in meter:
        for _ in meter:
            stream.time.go(9)
    stream.time.go(1)
    _ = meter.stats
    times: Any = meter.clock._times
    assert (times.steps, times.step_ns, times.stall_ns) == (4 * 3 + 3, (4 * 3 * 10 + 3 * 41) * MS, 15 * MS)


def test_two_streams_and_rounding() -> None:
    """An event on another stream may come later than the step's; equal stamps may have a negative difference."""
    event = SimpleNamespace
    late = event(query=lambda: False, elapsed_time=lambda end: 1.0)
    done = event(query=lambda: True, elapsed_time=lambda end: -1e-4)
    times = DeviceTimes("cuda:0", event(is_current_stream_capturing=lambda: False))
    times.step(late, done, None, done)
    times.collect()
    assert times.steps == 0
    late.query = lambda: True
    times.collect()
    assert (times.steps, times.step_ns, times.stall_ns) == (1, MS, 0)


# --- on a GPU


class SlowBatches:
    """Eight batches, each after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(8):
            host.sleep(self.seconds)
            yield torch.zeros(4, 3)


def trained(seconds: float, products: int, device: str | None) -> Meter[torch.Tensor]:
    meter = watch(SlowBatches(seconds), device=device)
    matrix = torch.ones(2048, 2048, device="cuda")
    for _ in meter:
        with meter.step("products"):
            for _ in range(products):
                matrix = matrix @ matrix * 1e-4
    torch.cuda.synchronize()
    return meter


@pytest.mark.gpu
@pytest.mark.parametrize("device", [None, "cuda", "cuda:0"])
def test_on_a_gpu_steps_and_phases_are_the_devices(device: str | None) -> None:
    meter = trained(0.01, 2, device)
    stats = meter.stats
    assert (stats.device, stats.batches, stats.steps, stats.images) == ("cuda:0", 8, 7, 32)
    assert 0 <= stats.stall.low == stats.stall.high <= 1
    assert stats.step_mean_s is not None
    assert 0 < stats.phases["products"].seconds < stats.step_mean_s
    times = meter.clock._times
    assert times is not None
    assert times.steps == 7, "the device has finished all"


@pytest.mark.gpu
def test_on_a_gpu_a_capture_is_left_alone() -> None:
    meter = watch([torch.zeros(2)] * 6, device="cuda")
    x = torch.ones(8, device="cuda")
    batches = iter(meter)
    next(batches)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        next(batches)
    graph.replay()
    assert len(list(batches)) == 4
    torch.cuda.synchronize()
    assert y.sum().item() == 16
    assert meter.stats.batches == 6


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_on_a_gpu_nothing_synchronises() -> None:
    meter = watch(SlowBatches(0.0), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in meter:
            with meter.step("forward"):
                torch.ones(64, device="cuda").add_(1)
        _ = meter.stats
    finally:
        torch.cuda.set_sync_debug_mode("default")
