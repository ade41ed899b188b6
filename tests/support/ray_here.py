"""A Ray of two processors on this machine. Its processes and files end with the block."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator

import psutil
import pytest


@contextlib.contextmanager
def own_ray_folders() -> Iterator[str]:
    """Give Ray a folder for its files, and a home for the token that it makes. Its processes must end within."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short: the paths of sockets have at most 107 bytes
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_TMPDIR", folder)
            patch.setenv("HOME", folder)
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE"):  # `ray.init` sets the latter for all that follows
                patch.delenv(variable, raising=False)
            yield folder
        assert not left_running(folder), left_running(folder)
    finally:
        for process in psutil.process_iter():
            if folder in _command(process):
                process.kill()
        shutil.rmtree(folder)


@contextlib.contextmanager
def running_ray() -> Iterator[None]:
    """Start Ray in this process."""
    import ray

    with own_ray_folders():
        try:
            ray.init(
                "local",
                num_cpus=2,
                object_store_memory=100 << 20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
            yield
        finally:
            ray.shutdown()


def left_running(folder: str, seconds: float = 30.0) -> list[str]:
    """The commands of Ray's processes that still run after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        left = [command for process in psutil.process_iter() if folder in (command := _command(process))]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""
