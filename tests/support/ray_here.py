"""A Ray of two processors on this machine. Its processes and files end with the block."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

import psutil
import pytest
from at_once import eventually


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
        assert eventually(lambda: not _running(folder), 30), _running(folder)
    finally:
        for process in _running(folder):
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


def _running(folder: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if folder in " ".join(each.info["cmdline"] or ())]
