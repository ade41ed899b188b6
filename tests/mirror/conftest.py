"""A cache folder for each test, and a server of objects."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from web_server import Server

from iofast.mirror import cache

pytest.importorskip("obstore", reason="needs iofast[remote]")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which does not exist yet."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serves random bytes as an object, by a thread of this process: its URL."""
    root = tmp_path / "objects"
    root.mkdir()
    server = Server(root, ("127.0.0.1", 0), latency=0.0, rate=0.0)
    url = server.begin()

    def made(name: str, size: int) -> str:
        (root / name).write_bytes(random.Random(name).randbytes(size))
        return f"{url}/{name}"

    yield made
    server.shutdown()
    server.server_close()
