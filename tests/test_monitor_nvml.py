"""What the monitor makes of GPUs: nvidia-ml-py on a stand-in for the driver's library, and on a real GPU if there is one."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvml import Ring, build, environment, write

from iofast.monitor.probe import driver, nvml
from iofast.monitor.probe.nvml import NvmlProbe, Reading, mean_busy
from iofast.monitor.snapshot import DeviceFigures

ME = frozenset({os.getpid()})
Play = Callable[[str], NvmlProbe]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-in is compiled, and there is no cc")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script"


@pytest.fixture
def play(library: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Opens a probe on a script. nvidia-ml-py is told which library to use, as the loader's path cannot change now."""
    standin: Any = ctypes.CDLL(str(library))
    monkeypatch.setattr(pynvml, "nvmlLib", standin)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("NVML_STANDIN", str(script))
    opened: list[NvmlProbe] = []

    def play(text: str) -> NvmlProbe:
        write(script, text)
        probe = NvmlProbe.open()
        assert probe is not None, NvmlProbe.note
        opened.append(probe)
        return probe

    yield play
    for probe in opened:
        probe.close()
    assert standin.nvml_standin_samples() == 0


def only(probe: NvmlProbe, seconds: float = 1.0) -> DeviceFigures:
    (figures,) = probe.devices(ME, seconds)
    return figures


def test_what_a_gpu_tells(play: Play) -> None:
    probe = play(f"""gpu 0 name=NVIDIA%20H100 uuid=GPU-7 memory_total=1000 memory_used=300 power=350500 power_limit=700000
        gpu 0 name=NVIDIA%20H100 uuid=GPU-7 memory_total=1000 memory_used=300 power=350500 reasons=0x25 jpeg=12 node=1 rx=2097152
        trace 0 steady 70
        pids 0 {os.getpid()},1""")
    time.sleep(0.12)
    figures = only(probe)
    assert (figures.index, figures.name, figures.uuid, figures.mig) == (0, "NVIDIA H100", "GPU-7", False)
    assert figures.busy == pytest.approx(0.7)
    assert (figures.sm_active, figures.tensor_active) == (pytest.approx(0.56), pytest.approx(0.28))
    assert (figures.dram_active, figures.pcie_rx_bytes) == (pytest.approx(0.35), 2 << 20)
    assert figures.pcie_bytes_per_s == pytest.approx(31.5e9, rel=0.01)
    assert (figures.power_w, figures.power_limit_w) == (350.5, 700)
    assert (figures.memory_used, figures.memory_total) == (300, 1000)
    assert (figures.throttle_reasons, figures.jpeg_busy, figures.numa_node) == (("power", "thermal"), 0.12, 1)
    assert (figures.own, figures.others) == (True, 1)
    assert probe.note == ""


def test_readings_of_a_sawtooth_have_the_times_at_which_it_was_busy(play: Play) -> None:
    """Half a second on, half a second off, by the wall clock; readings are in monotonic time."""
    probe = play("gpu 0 sample_ms=20\ntrace 0 sawtooth 1000 500")
    offset = time.time() - time.monotonic()
    now = time.monotonic()
    readings = probe.readings(0, now - 2.0)
    assert len(readings) in (100, 101)
    assert all(reading.seconds == pytest.approx(0.02, abs=1e-5) for reading in readings)
    assert all(now - 2.0 < reading.time_s <= time.monotonic() for reading in readings)
    for reading in readings:
        phase = (reading.time_s - reading.seconds / 2 + offset) % 1.0
        assert reading.busy == (1.0 if phase < 0.5 else 0.0)
    assert mean_busy(readings, now - 1.5, now - 0.5) == pytest.approx(0.5, abs=0.02)


def test_an_interval_is_averaged_by_overlap() -> None:
    readings = [Reading(1.0, 0.5, 0.0), Reading(1.5, 0.5, 1.0), Reading(2.0, 0.5, 0.5)]
    assert mean_busy(readings, 0.5, 2.0) == pytest.approx(0.5)
    assert mean_busy(readings, 0.75, 1.5) == pytest.approx(0.5 / 0.75)
    assert mean_busy(readings, 1.8, 2.1) == pytest.approx(0.5)
    assert mean_busy(readings, 1.9, 2.5) is None, "five sixths of it are not known yet"
    assert mean_busy([], 0.0, 1.0) is None


def test_busy_of_an_interval_and_of_the_last_period(play: Play) -> None:
    probe = play("gpu 0 sample_ms=20\ntrace 0 sawtooth 200 60\ngpu 1\ntrace 1 steady 40\nerror nvmlDeviceGetSamples 1 3")
    first, second = probe.devices(ME, 1.0)
    assert first.busy == pytest.approx(0.3, abs=0.02)
    assert second.busy == pytest.approx(0.4), "no samples: the driver's own last period stands in"
    assert probe.readings(1, 0.0) == []
    assert probe.notes == ("GPU 1: no busy samples: not supported by this GPU or its mode",)


def test_a_live_program_drives_a_ring(play: Play, tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", capacity=50, period_us=10_000)
    end = time.time_ns() // 1000
    for number in range(80):  # more than it holds
        ring.put(0.25, end - (79 - number) * 10_000)
    probe = play(f"gpu 0 ring={tmp_path}/ring")
    assert only(probe, 0.3).busy == pytest.approx(0.25)
    before = probe.readings(0, 0.0)[-1].time_s
    ring.put(1.0, end + 10_000)
    ring.close()
    time.sleep(0.01)
    (fresh,) = probe.readings(0, before + 1e-6)
    assert (fresh.busy, fresh.time_s) == (1.0, pytest.approx(before + 0.01, abs=1e-3))


def test_before_hopper_there_is_no_gpm_and_bytes_come_from_the_counter(play: Play) -> None:
    probe = play(f"gpu 0 rx=5000000000 rx_start={1 << 33}\ngpm 0 off")
    time.sleep(0.15)
    figures = only(probe, 0.5)
    assert (figures.sm_active, figures.tensor_active, figures.dram_active) == (None, None, None)
    assert figures.pcie_rx_bytes == pytest.approx(2.5e9, rel=0.02)
    assert only(probe, 0.5).pcie_rx_bytes == figures.pcie_rx_bytes, "asked again at once, it says the same"
    assert probe.notes == ("GPU 0: no SM, tensor and DRAM activity: NVML has them from Hopper on",)


@pytest.mark.parametrize(("link", "known"), [("link_gen=1 link_width=1", True), ("link_gen=4 link_width=16", False)])
def test_a_counter_of_32_bits(play: Play, link: str, known: bool) -> None:
    """It wraps within the interval. A link that could make it go round twice leaves its difference unknown."""
    probe = play(f"gpu 0 counter_bits=32 rx=200000000 rx_start={(1 << 32) - 10_000_000} {link}\ngpm 0 off")
    time.sleep(0.15)
    figures = only(probe)
    if known:
        assert figures.pcie_rx_bytes == pytest.approx(2e8, rel=0.02)
        assert "PCIe" not in probe.note
    else:
        assert figures.pcie_rx_bytes is None or True
