"""What the monitor makes of GPUs: nvidia-ml-py on a stand-in for the driver's library, or on a real GPU."""

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
    keys = (
        "uuid=GPU-7 memory_total=1000 memory_used=300 power=350500 reasons=0x25 jpeg=12 node=1 rx=2097152 capability=86"
    )
    probe = play(f"""gpu 0 name=NVIDIA%20H100 {keys}
        trace 0 steady 70
        pids 0 {os.getpid()},1""")
    time.sleep(0.12)
    figures = only(probe)
    assert (figures.index, figures.name, figures.uuid, figures.mig) == (0, "NVIDIA H100", "GPU-7", False)
    assert figures.busy == pytest.approx(0.7)
    assert (figures.sm_active, figures.tensor_active) == (pytest.approx(0.56, abs=0.01), pytest.approx(0.28, abs=0.01))
    assert (figures.dram_active, figures.pcie_rx_bytes) == (pytest.approx(0.35, abs=0.01), 2 << 20)
    assert figures.pcie_bytes_per_s == pytest.approx(31.5e9, rel=0.01)
    assert (figures.power_w, figures.power_limit_w) == (350.5, 700)
    assert (figures.memory_used, figures.memory_total) == (300, 1000)
    assert (figures.throttle_reasons, figures.jpeg_busy, figures.numa_node) == (("power", "thermal"), 0.12, 1)
    assert (figures.own, figures.others, figures.capability) == (True, 1, (8, 6))
    assert probe.notes == ()


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
    probe = play(
        "gpu 0 sample_ms=20\ntrace 0 sawtooth 200 60\ngpu 1\ntrace 1 steady 40\nerror nvmlDeviceGetSamples 1 3"
    )
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
    (fresh,) = probe.readings(0, before)
    assert (fresh.busy, fresh.time_s) == (1.0, pytest.approx(before + 0.01, abs=1e-3))


def test_before_hopper_there_is_no_gpm_and_bytes_come_from_the_counter(play: Play) -> None:
    probe = play(f"gpu 0 rx=5000000000 rx_start={1 << 33}\ngpm 0 off")
    time.sleep(0.15)
    figures = only(probe, 0.5)
    assert (figures.sm_active, figures.tensor_active, figures.dram_active) == (None, None, None)
    assert figures.pcie_rx_bytes == pytest.approx(2.5e9, rel=0.25)
    assert only(probe, 0.5).pcie_rx_bytes == figures.pcie_rx_bytes, "asked again at once, it says the same"
    assert probe.notes == ("GPU 0: no SM, tensor and DRAM activity: NVML has them from Hopper on",)


@pytest.mark.parametrize(("link", "known"), [("link_gen=1 link_width=1", True), ("link_gen=4 link_width=16", False)])
def test_a_counter_of_32_bits(play: Play, link: str, known: bool) -> None:
    """It wraps within the interval. A link that could make it go round twice leaves its difference unknown."""
    probe = play(f"gpu 0 counter_bits=32 rx=200000000 rx_start={(1 << 32) - 10_000_000} {link}\ngpm 0 off")
    time.sleep(0.15)
    moved = only(probe).pcie_rx_bytes
    assert ("PCIe bytes" in str(probe.notes)) is not known
    assert moved == (pytest.approx(2e8, rel=0.25) if known else None)


def test_the_counter_stands_in_until_gpm_has_two_samples(play: Play) -> None:
    probe = play("gpu 0 rx=1048576")
    assert only(probe).pcie_rx_bytes is None
    time.sleep(0.12)
    assert only(probe).pcie_rx_bytes == 1 << 20
    assert probe.notes == ()


def test_mig_instances_take_the_place_of_their_gpu(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = play(f"gpu 0 uuid=GPU-7 rx=2097152\ntrace 0 steady 60\nmig 0 2\npids 0 {os.getpid()}\ngpu 1\nmig 1 1")
    time.sleep(0.12)
    first, second, other = probe.devices(ME, 1.0)
    assert [(d.index, d.uuid, d.mig) for d in (first, second)] == [(0, "MIG-0-GPU-7", True), (0, "MIG-1-GPU-7", True)]
    assert first.busy == pytest.approx(0.6, abs=0.01), "by GPM: samples are refused"
    assert first.sm_active == pytest.approx(0.48, abs=0.01)
    assert (first.own, second.own, other.own) == (True, False, False)
    assert first.memory_total == (1 << 34) // 8
    assert "busy samples" not in str(probe.notes)
    assert probe.processes() == {os.getpid(): {0}}
    assert probe.readings(0, 0.0) == [], "of which of the two?"
    (reading,) = probe.readings(0, 0.0, first.uuid)
    assert (reading.busy, len(probe.readings(1, 0.0))) == (pytest.approx(0.6, abs=0.01), 1)


def test_mig_that_is_switched_on_meanwhile(play: Play, script: Path) -> None:
    probe = play("gpu 0")
    assert not only(probe).mig
    write(script, "gpu 0\nmig 0 1")
    assert only(probe).mig
    write(script, "gpu 0")
    assert not only(probe).mig


def test_two_gpus_and_whose_they_are(play: Play) -> None:
    here = os.getppid()
    probe = play(f"gpu 0\ngpu 1\ntrace 1 steady 10\npids 0 {here}\npids 1 {here},{os.getpid()}")
    first, second = probe.devices(ME, 1.0)
    assert [(d.index, d.own, d.others) for d in (first, second)] == [(0, False, 1), (1, True, 1)]
    assert (first.busy, second.busy) == (1.0, pytest.approx(0.1))
    assert probe.processes() == {here: {0, 1}, os.getpid(): {1}}
    assert probe.readings(1, time.monotonic() - 0.5)[-1].busy == pytest.approx(0.1)


@pytest.mark.parametrize("pids", ["pids 0 4194303,4194302", "pids 0 -"])
def test_in_a_container_the_pids_may_be_those_of_the_machine(
    play: Play, monkeypatch: pytest.MonkeyPatch, pids: str
) -> None:
    probe = play(f"gpu 0\n{pids}")
    monkeypatch.setattr(nvml, "in_container", lambda: True)
    assert (only(probe).own, only(probe).others) == (None, None)
    monkeypatch.setattr(nvml, "in_container", lambda: False)
    assert only(probe).own is False, "outside, what is not listed is not there"
    assert probe.processes() == {}


def test_each_error_costs_its_own_figure_and_has_its_line(play: Play) -> None:
    """A driver that is too old, a right that is missing, and an answer that comes again later."""
    probe = play("""gpu 0 rx_start=9000000000
        error nvmlDeviceGetPowerUsage 0 NVML_ERROR_NOT_SUPPORTED
        error nvmlDeviceGetJpgUtilization 0 NVML_ERROR_FUNCTION_NOT_FOUND
        error nvmlGpmMetricsGet * NVML_ERROR_FUNCTION_NOT_FOUND
        error nvmlDeviceGetMemoryInfo 0 NVML_ERROR_UNKNOWN
        error nvmlDeviceGetComputeRunningProcesses 0 NVML_ERROR_NO_PERMISSION""")
    time.sleep(0.12)
    figures = only(probe)
    missing = (figures.power_w, figures.jpeg_busy, figures.sm_active, figures.memory_used, figures.own, figures.others)
    assert missing == (None,) * 6
    assert (figures.busy, figures.power_limit_w) == (1.0, 700)
    assert set(probe.notes) == {
        "GPU 0: no power: not supported by this GPU or its mode",
        "GPU 0: no SM, tensor and DRAM activity, JPEG engine: the driver is too old",
        "GPU 0: no memory: the driver answers NVMLError_Unknown, code 999",
        "GPU 0: no processes: no permission",
    }


def test_a_note_goes_when_the_answer_comes(play: Play, script: Path) -> None:
    probe = play("gpu 0\nerror nvmlDeviceGetMemoryInfo 0 NVML_ERROR_UNKNOWN")
    assert only(probe).memory_used is None
    assert probe.notes != ()
    write(script, "gpu 0 ")
    assert only(probe).memory_used == 1 << 30
    assert probe.notes == ()


def test_a_gpu_that_vanishes_and_returns(play: Play, script: Path) -> None:
    probe = play("gpu 0 uuid=GPU-7\ngpu 1 uuid=GPU-8")
    assert [d.busy for d in probe.devices(ME, 1.0)] == [1.0, 1.0]
    write(script, "gpu 0 uuid=GPU-7\ngpu 1 uuid=GPU-8\nvanish 1")
    assert probe.readings(1, 0.0) == []
    for _ in range(2):
        first, second = probe.devices(ME, 1.0)
        assert (first.busy, second.uuid) == (1.0, "GPU-8")
        told = (second.busy, second.sm_active, second.memory_used, second.power_w, second.own, second.pcie_rx_bytes)
        assert told == (None,) * 6
        assert "GPU 1: no figures at all: the GPU is lost" in str(probe.notes)
    write(script, "gpu 0 uuid=GPU-7")  # and the driver no longer counts it
    assert [d.busy for d in probe.devices(ME, 1.0)] == [1.0, None]
    write(script, "gpu 0 uuid=GPU-7\ngpu 1 uuid=GPU-8")
    time.sleep(0.12)
    first, second = probe.devices(ME, 1.0)
    assert (first.busy, second.busy, second.sm_active) == (1.0, 1.0, None), "its earlier sample says nothing any more"
    assert probe.notes == ()


def test_a_driver_that_is_restarted(play: Play, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_RETRY_S", 0.0)
    probe = play("gpu 0\nerror nvmlDeviceGetPowerUsage 0 NVML_ERROR_NOT_SUPPORTED")
    assert only(probe).busy == 1.0
    write(script, "gpu 0\ngeneration 2")
    assert probe.readings(0, 0.0) == []
    assert probe.notes[-1] == "GPU 0: no figures at all: the driver was restarted"
    assert (only(probe).busy, probe.notes) == (1.0, ())
    write(script, "gpu 0\ngeneration 3\nerror nvmlInitWithFlags * NVML_ERROR_DRIVER_NOT_LOADED")
    assert (probe.processes(), probe.readings(0, 0.0), only(probe).busy) == ({}, [], None)
    assert "the driver is not loaded" in str(probe.notes)
    write(script, "gpu 0\ngeneration 3")
    figures = only(probe)
    assert (figures.busy, figures.power_w) == (1.0, 200), "what the driver before refused is asked for again"
    assert probe.notes == ()


def test_samples_of_an_earlier_driver_are_not_freed(play: Play, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_RETRY_S", 0.0)
    probe = play("gpu 0")
    write(script, "gpu 0\ngeneration 2")
    assert probe.readings(0, 0.0) == []
    assert only(probe).busy == 1.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("error nvmlInitWithFlags * NVML_ERROR_DRIVER_NOT_LOADED", "GPUs are not seen: the driver is not loaded"),
        ("error nvmlInitWithFlags * NVML_ERROR_LIB_RM_VERSION_MISMATCH", "different versions"),
        ("error nvmlDeviceGetCount * NVML_ERROR_UNKNOWN", "NVMLError_Unknown"),
        ("", "the NVIDIA driver lists none"),
        ("gpu 0\nvanish 0", "the GPU is lost"),
    ],
)
def test_no_probe_and_why(play: Play, script: Path, text: str, why: str) -> None:
    write(script, text)
    assert NvmlProbe.open() is None
    assert why in NvmlProbe.note
    assert "\n" not in NvmlProbe.note


def test_samples_that_cannot_be(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers have left empty places, values above 100 and times out of order in the buffer."""
    probe = play("gpu 0")
    now = time.time_ns() // 1000
    times = [(now - 100_000, 50), (0, 90), (now - 300_000, 30), (now - 200_000, 400), (now + 60_000_000, 10), (now, 70)]
    samples = [pynvml.c_nvmlSample_t(end, pynvml.c_nvmlValue_t(uiVal=value)) for end, value in times]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", lambda *_: (1, samples))
    assert [round(reading.busy, 2) for reading in probe.readings(0, 0.0)] == [0.3, 0.5, 0.7]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", lambda *_: (1, samples[:1]))
    assert probe.readings(0, 0.0) == [], "one sample does not say how long it is"


def test_by_the_loader_of_the_system_as_users_have_it(library: Path, script: Path) -> None:
    write(script, "gpu 0 name=One\ntrace 0 steady 50")
    program = (
        "from iofast.monitor.probe.nvml import *; p = NvmlProbe.open(); d, = p.devices((), 1); print(d.name, d.busy)"
    )
    told = [sys.executable, "-c", program]
    run = subprocess.run(told, env=environment(library, script), capture_output=True, text=True, timeout=60)
    assert run.stdout == "One 0.5\n", run.stderr


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    """Multiplies matrices for a second and a half on the first GPU, then rests for as long."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    probe = NvmlProbe.open()
    assert probe is not None, NvmlProbe.note
    matrix = torch.zeros(4096, 4096, device="cuda")
    torch.mm(matrix, matrix)
    shares = []
    for work in (True, False):
        torch.cuda.synchronize()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            if work:
                torch.mm(matrix, matrix)
                torch.cuda.synchronize()
            else:
                time.sleep(0.01)
        by_uuid = {d.uuid.removeprefix("GPU-"): d for d in probe.devices(ME, 1.0)}
        figures = by_uuid[str(torch.cuda.get_device_properties(0).uuid)]
        shares.append(figures.busy)
        assert figures.memory_used is not None
        assert figures.memory_used > 3 * 4 * 4096**2
        readings = probe.readings(figures.index, time.monotonic() - 1.0)
        assert readings == sorted(readings, key=lambda reading: reading.time_s)
    busy, idle = shares
    assert busy is not None
    assert idle is not None
    assert busy > 0.8
    assert idle < 0.5
    probe.close()
