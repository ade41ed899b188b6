"""What every test gets: no trace outside the temporary folder, markers, hypothesis without a clock."""

from __future__ import annotations

import gc
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import iofast
from iofast.meter import close_page

# No deadline: a shared machine stalls for seconds. No database: a checkout stays as it was. `make test` tries the same
# examples every time, so that what it says is about the change; `make torture PART=examples` tries others each time.
settings.register_profile("iofast", deadline=None, database=None, print_blob=True, derandomize=True)
settings.register_profile("others", settings.get_profile("iofast"), derandomize=False)
settings.load_profile("iofast")

# A shell without job control has what it starts in the background ignore Ctrl-C, and tests send that to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton decides at import whether it compiles or interprets. With a GPU its passes are compiled, and tested so.
if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):  # Linux, and Linux within Windows
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Without the native kernel the tests are of its twin. Said once, here: programs that the tests start would each warn.
NATIVE = any((Path(iofast.__file__).parent / "kernel").glob("_native*.so"))
if not NATIVE:
    os.environ.setdefault("IOFAST_KERNEL", "python")


# tools/sanitize.sh says which build it wants tested: without a word another one would pass in its place.
if BUILD := os.environ.get("IOFAST_BUILD"):
    native = importlib.import_module("iofast.kernel._native")
    assert Path(str(native.__file__)).is_relative_to(BUILD), f"{native.__file__} is not of the build {BUILD}"


def pytest_report_header() -> str:
    wanted = os.environ.get("IOFAST_KERNEL", "native")
    return f"kernel: {wanted}" + ("" if NATIVE else " (the native one is NOT built; its tests are skipped)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this run did not ask for or this machine does not have."""
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="gpu: no CUDA device here"))


def pytest_collection_finish() -> None:
    """What is there now stays: with torch loaded a collection takes 0.2 s, and a thousand tests collect."""
    gc.collect()
    gc.freeze()


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """After the test none of a loader's threads runs any more."""
    yield
    from loader_sets import eventually, workers  # which imports torch

    assert eventually(lambda: workers() == 0)


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache of folder indexes and the telemetry page go where pytest cleans up, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
            folder = tmp_path_factory.mktemp(variable.lower())
            folder.chmod(0o700)
            patch.setenv(variable, str(folder))
        yield


@pytest.fixture
def own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the telemetry page: one of its own for this test, and no page from the test before."""
    close_page()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # other processes' pages are none of these tests' business
    monkeypatch.setattr("tempfile.tempdir", None)
    yield tmp_path
    close_page()
