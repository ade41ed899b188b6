"""What the monitor makes of GPUs: nvidia-ml-py on a stand-in for the driver's library, or on a real GPU."""

import ctypes
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvml import build, write

from benchmarks.verdicts.device import Ring
from iofast.monitor.probe import nvml
from iofast.monitor.probe.nvml import NvmlProbe
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
        probe = NvmlProbe()
        assert not probe.missing
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
    probe = play(f"""gpu 0 name=NVIDIA%20H100 uuid=GPU-7 memory_total=1000 memory_used=300 power=350500 reasons=0x25
        trace 0 steady 70
        pids 0 {os.getpid()},1""")
    time.sleep(0.12)
    figures = only(probe)
    assert (figures.index, figures.name, figures.uuid) == (0, "NVIDIA H100", "GPU-7")
    assert figures.busy == pytest.approx(0.7)
    assert (figures.sm_active, figures.tensor_active) == (pytest.approx(0.56, abs=0.01), pytest.approx(0.28, abs=0.01))
    assert figures.dram_active == pytest.approx(0.35, abs=0.01)
    assert (figures.power_w, figures.power_limit_w) == (350.5, 700)
    assert (figures.memory_used, figures.memory_total) == (300, 1000)
    assert (figures.throttle_reasons, figures.own, figures.others) == (("power", "thermal"), True, 1)
    assert probe.notes == ()


def test_busy_is_the_mean_since_the_last_question(play: Play, tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", period_us=1_000)
    end = time.time_ns() // 1000
    for number in range(1500):  # more than it holds
        ring.add(end - (1499 - number) * 1_000, 0.25 if number % 2 else 0.75)
    probe = play(f"gpu 0 ring={tmp_path}/ring")
    assert only(probe).busy == pytest.approx(0.5)
    ring.add(end + 1_000, 1.0)
    ring.add(end + 2_000, 0.5)
    assert only(probe).busy == pytest.approx(0.75), "what was told before does not count again"
    assert probe.devices((1,), 1.0)[0].busy == pytest.approx(0.51, abs=0.02), "another job was told nothing yet"


def test_without_samples_the_last_period_stands_in(play: Play) -> None:
    probe = play("gpu 0\ntrace 0 steady 40\nerror nvmlDeviceGetSamples 0 3\ngpm 0 off")
    figures = only(probe)
    assert (figures.busy, figures.sm_active, figures.dram_active) == (pytest.approx(0.4), None, None)
    assert probe.notes == ("GPU 0: no busy samples: not supported by this GPU or its mode",)


def test_two_gpus_and_whose_they_are(play: Play) -> None:
    here = os.getppid()
    probe = play(f"gpu 0\ngpu 1\ntrace 1 steady 10\npids 0 {here}\npids 1 {here},{os.getpid()}")
    first, second = probe.devices(ME, 1.0)
    assert [(d.index, d.own, d.others) for d in (first, second)] == [(0, False, 1), (1, True, 1)]
    assert (first.busy, second.busy) == (1.0, pytest.approx(0.1))
    assert probe.processes() == {here: {0, 1}, os.getpid(): {1}}


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


def test_each_error_costs_its_own_figure_and_has_its_line(play: Play, script: Path) -> None:
    """A driver that is too old, a right that is missing, and an answer that comes again later."""
    probe = play("""gpu 0
        error nvmlDeviceGetPowerUsage 0 NVML_ERROR_NOT_SUPPORTED
        error nvmlGpmMetricsGet * NVML_ERROR_FUNCTION_NOT_FOUND
        error nvmlDeviceGetMemoryInfo 0 NVML_ERROR_UNKNOWN
        error nvmlDeviceGetComputeRunningProcesses 0 NVML_ERROR_NO_PERMISSION""")
    time.sleep(0.12)
    figures = only(probe)
    assert (figures.power_w, figures.sm_active, figures.memory_used, figures.own, figures.others) == (None,) * 5
    assert (figures.busy, figures.power_limit_w) == (1.0, 700)
    assert set(probe.notes) == {
        "GPU 0: no power: not supported by this GPU or its mode",
        "GPU 0: no SM, tensor and DRAM activity: the driver is too old",
        "GPU 0: no memory: the driver answers NVMLError_Unknown, code 999",
        "GPU 0: no processes: no permission",
    }
    write(script, "gpu 0 ")
    assert only(probe).memory_used == 1 << 30
    assert "memory" not in str(probe.notes)


def test_a_gpu_that_vanishes_and_returns(play: Play, script: Path) -> None:
    probe = play("gpu 0\ngpu 1")
    assert [d.busy for d in probe.devices(ME, 1.0)] == [1.0, 1.0]
    write(script, "gpu 0\ngpu 1\nvanish 1")
    assert [d.index for d in probe.devices(ME, 1.0)] == [0]
    assert "GPU 1: no handle: the GPU is lost" in str(probe.notes)
    write(script, "gpu 0\ngpu 1 ")
    assert [d.busy for d in probe.devices(ME, 1.0)] == [1.0, 1.0]
    assert probe.notes == ()


def test_a_driver_that_goes_away(play: Play, script: Path) -> None:
    probe = play("gpu 0")
    assert only(probe).busy == 1.0
    write(script, "gpu 0\nerror nvmlDeviceGetCount * NVML_ERROR_DRIVER_NOT_LOADED")
    assert (probe.devices(ME, 1.0), probe.processes()) == ((), {})
    assert probe.notes == ("the driver: no list of GPUs: the driver is not loaded",)


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
    probe = NvmlProbe()
    assert why in probe.missing
    assert "\n" not in probe.missing
    assert (probe.devices(ME, 1.0), probe.processes(), probe.notes) == ((), {}, (probe.missing,))


def test_samples_that_cannot_be(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers have left empty places and values above 100 in the buffer."""
    probe, now = play("gpu 0"), time.time_ns() // 1000 + 1_000_000
    times = [(now - 100_000, 50), (0, 90), (now - 200_000, 400), (now, 70)]
    samples = [pynvml.c_nvmlSample_t(end, pynvml.c_nvmlValue_t(uiVal=value)) for end, value in times]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", lambda *_: (1, samples))
    assert only(probe).busy == pytest.approx(0.6)


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    """Multiplies matrices for a second and a half on the first GPU, then rests for as long."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    probe = NvmlProbe()
    assert not probe.missing
    matrix = torch.zeros(4096, 4096, device="cuda")

    def busy(work: bool) -> float:
        probe.devices(ME, 1.0)  # what was before does not count
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            torch.mm(matrix, matrix) if work else time.sleep(0.01)
            torch.cuda.synchronize()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        (figures,) = (one for one in probe.devices(ME, 1.0) if one.uuid.removeprefix("GPU-") == uuid)
        assert (figures.memory_used or 0) > 2 * 4 * 4096**2
        return figures.busy or 0.0

    assert busy(work=True) > 0.8
    assert busy(work=False) < 0.5
    probe.close()
