"""For every test: no trace outside the temporary folder, markers, hypothesis without a clock."""

import gc
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from own_pages import close_page
from small_blocks import BLOCK, blocks_of
from started_workers import close_pools, shared_pool

import iofast

# No deadline: a shared machine stalls for seconds. No database: a checkout stays unchanged. `make test` tries the same
# examples every time, so that a failure is due to the change; `make torture PART=examples` tries others each time.
FEW, MANY = 25, 200
settings.register_profile("iofast", deadline=None, database=None, print_blob=True, derandomize=True, max_examples=FEW)
settings.register_profile("full", settings.get_profile("iofast"), max_examples=MANY)
settings.register_profile("others", settings.get_profile("full"), derandomize=False)
settings.load_profile("full" if os.environ.get("CI_FULL") == "1" else "iofast")

# Background processes of a shell without job control ignore Ctrl-C, which tests send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if not any((Path(iofast.__file__).parent / "kernel").glob("_native*.so")):
    pytest.exit("the tests need the native kernel: make kernel, or python setup.py build_ext --inplace", 2)

# tools/sanitize.sh sets the build under test; else another one could pass in its place.
if BUILD := os.environ.get("IOFAST_BUILD"):
    native = importlib.import_module("iofast.kernel._native")
    assert Path(str(native.__file__)).is_relative_to(BUILD), f"expected the build {BUILD}, found {native.__file__}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three processes on two cores, since many tests wait for something: a fifth less time than with two."""
    return (os.cpu_count() or 1) * 3 // 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests without --slow, and GPU tests without a GPU."""
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="gpu: no CUDA device here"))


def pytest_collection_finish() -> None:
    """Freeze the objects of the imports: with torch a collection takes 0.2 s, and a thousand tests collect."""
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
    """Check that none of a loader's threads runs after the test."""
    yield
    from loader_sets import eventually, workers  # which imports torch

    assert eventually(lambda: workers() == 0)


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cache of folder indexes and the telemetry page in folders of pytest."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
            folder = tmp_path_factory.mktemp(variable.lower())
            folder.chmod(0o700)
            patch.setenv(variable, str(folder))
        yield


@pytest.fixture(autouse=True, scope="session")
def started_workers() -> Iterator[None]:
    """Let calls of `pack` share workers."""
    with pytest.MonkeyPatch.context() as patch:
        for user in ("run", "pool"):  # the command imports it from there when it runs
            patch.setattr(f"iofast.packing.{user}.WorkerPool", shared_pool)
        yield
    close_pools()


@pytest.fixture
def own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for the telemetry page, without a page of the test before."""
    close_page()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # hides other processes' pages
    yield tmp_path
    close_page()


@pytest.fixture
def small_blocks() -> Iterator[None]:
    """Blocks of stored objects of 64 KiB instead of 4 MiB, so that small sets have many."""
    with blocks_of(BLOCK):
        yield
