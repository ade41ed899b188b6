"""`iofast run` with whole scripts: equal samples, order and random numbers; exit status, signals, reports."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from todays import todays

HERE = Path(__file__).parent
FAKE = """
import numpy as np
import torch


def pil_to_tensor(pic):
    return torch.as_tensor(np.array(pic, copy=True)).permute(2, 0, 1)


def to_tensor(pic):
    return pil_to_tensor(pic).contiguous().to(dtype=torch.get_default_dtype()).div(255)


def convert_image_dtype(image, dtype):
    return image.to(dtype).div(255)


def normalize(tensor, mean, std, inplace=False):
    return tensor.sub(torch.tensor(mean)[:, None, None]).div_(torch.tensor(std)[:, None, None])
"""


@pytest.fixture(scope="module")
def environment(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which the script finds this iofast, and torchvision or what stands for it."""
    folder = tmp_path_factory.mktemp("modules")
    paths = [str(folder), str(ROOT)]
    if importlib.util.find_spec("torchvision") is None:
        transforms = folder / "torchvision" / "transforms"
        transforms.mkdir(parents=True)
        for path, text in ((folder / "torchvision", ""), (transforms, "")):
            (path / "__init__.py").write_text(text)
        (transforms / "functional.py").write_text(FAKE)
    (folder / "sitecustomize.py").write_text("import sys\nsys.hidden_was_run = True\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, and one whose data break off although it has an end marker."""
    folder = tmp_path_factory.mktemp("set")
    for name in ("rgb", "exif", "gray", "progressive"):
        shutil.copy(photos[name], folder)
    data = photos["444"].read_bytes()
    (folder / "cut.jpg").write_bytes(data[: len(data) // 2])
    return folder


def run(environment: dict[str, str], *program: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "iofast", "run", *options, "--", *program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def facts_of(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    facts: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return facts


def script(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(HERE / name), *map(str, arguments)]


@pytest.fixture(scope="module")
def plain(environment: dict[str, str], folder: Path) -> dict[str, Any]:
    """What the training script sees without iofast."""
    program = script("training.py", folder, "fork")
    return facts_of(subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300))


@pytest.mark.parametrize("context", ["fork", *todays(["spawn", "forkserver"])])
def test_a_script_sees_the_same(
    environment: dict[str, str], folder: Path, tmp_path: Path, plain: dict[str, Any], context: str
) -> None:
    report = tmp_path / "run.json"
    done = run(environment, *script("training.py", folder, context), options=("--report", str(report), "--strict"))
    seen = facts_of(done)
    left = seen.pop("left")
    assert {name: (value, plain[name]) for name, value in seen.items() if value != plain[name]} == {}
    assert left == {name: plain["left"][name] for name in left}
    facts = json.loads(report.read_text())
    assert (facts["images"].get("differences", 0), facts["left_alone"]) == (0, {})
    decoded = {loader["name"].partition(" at ")[0]: loader["decoded"] for loader in facts["loaders"]}
    assert decoded["DataLoader(Photos, 6, num_workers=2)"] >= 16  # of 24
    if context == "fork":
        assert decoded["DataLoader(Photos, 4, num_workers=0)"] >= 16
    assert "JPEGs in" in done.stderr


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers"])
def test_trainers_see_the_same(environment: dict[str, str], folder: Path, tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    program, report = script("trainers.py", folder, name, tmp_path), tmp_path / "run.json"
    plain = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)
    assert facts_of(run(environment, *program, options=("--report", str(report), "--strict"))) == facts_of(plain)
    assert json.loads(report.read_text())["images"]["decoded for the loop"] >= 16  # of 24


def test_off_by_the_environment(environment: dict[str, str]) -> None:
    code = "import sys, PIL.Image; PIL.Image.preinit(); print([m for m in sys.modules if m.startswith('iofast')])"
    done = run(environment | {"IOFAST_RUN": "0"}, sys.executable, "-c", code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_process_that_was_killed_at_once(environment: dict[str, str]) -> None:
    done = run(environment, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert "1 process ran" in done.stderr


def test_nothing_heavy_is_imported(environment: dict[str, str]) -> None:
    done = run(environment, sys.executable, "-c", "import sys; print('numpy' in sys.modules, 'PIL' in sys.modules)")
    assert done.stdout == "False False\n"
    assert "no JPEG was opened" in done.stderr


def test_the_hidden_sitecustomize_runs_in_children_too(environment: dict[str, str]) -> None:
    child = "import sys; print(sys.hidden_was_run, 'iofast.run' in sys.modules)"
    done = run(
        environment, sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    )
    assert done.stdout == "True True\n"


@pytest.mark.parametrize("option", ["-I", "-E", "-sE"])
def test_what_ignores_the_environment_is_named(environment: dict[str, str], option: str) -> None:
    done = run(environment, sys.executable, option, "-c", "pass")
    assert f"its option {option} ignores PYTHONPATH" in done.stderr


def test_a_program_without_python_is_named(environment: dict[str, str]) -> None:
    assert "no process of true reported to iofast" in run(environment, "true").stderr
    assert run(environment, "true", options=("--quiet",)).stderr == ""


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 15)", 143), ("1 / 0", 1)]
)
def test_exit_status(environment: dict[str, str], code: str, status: int) -> None:
    assert run(environment, sys.executable, "-c", code).returncode == status


def test_an_interrupt_reaches_the_script(environment: dict[str, str], tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    command = [sys.executable, "-m", "iofast", "run", "--", sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as started:
        while not ready.exists():
            assert started.poll() is None
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        _, stderr = started.communicate(timeout=60)
    assert "KeyboardInterrupt" in stderr
    assert started.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["python", "train.py"], "expected a program behind --"),
        (["--"], "expected a program behind --"),
        (["--report", "/no/such/folder/run.json", "--", "true"], "the folder of --report"),
    ],
)
def test_wrong_usage(environment: dict[str, str], arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "iofast", "run", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("start", ["import iofast.run.here", "import iofast; iofast.load_ipython_extension(None)"])
def test_in_code(environment: dict[str, str], photos: dict[str, Path], start: str) -> None:
    code = f"from PIL import Image; Image.preinit(); {start}; print(type(Image.open({str(photos['rgb'])!r})).__name__)"
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "LazyJpeg\n", done.stderr
