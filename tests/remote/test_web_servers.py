"""Images of a web server, which has no listing, no If-Match and perhaps no ETag."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_images import image
from object_store import ENVIRONMENT

from iofast.errors import ObjectConflictError, ObjectMissingError, OptionError
from iofast.packing import pack
from iofast.remote.store import Store
from iofast.source.scan import scan

pytest.importorskip("obstore")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("IOFAST_STORAGE_LIMITS", ENVIRONMENT["IOFAST_STORAGE_LIMITS"])
    (tmp_path / "web").mkdir()
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "web")))
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    made.server_close()


def test_a_manifest_of_urls(server: str, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "web" / f"a b{number}.jpg").write_bytes(image(40, 30, seed=number))
    names = [*(f"{server}/a%20b{number}.jpg" for number in range(3)), f"{server}/none.jpg"]
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(names) + "\n")
    report = pack(tmp_path / "list.csv", tmp_path / "out.lmdb", workers=1, max_errors=2)
    assert (report.packed, dict(report.errors)) == (3, {"the object does not exist": 1})
    before = scan(tmp_path / "list.csv").fingerprint()
    (tmp_path / "web" / "a b1.jpg").write_bytes(image(40, 31))
    assert scan(tmp_path / "list.csv").fingerprint() != before


def test_a_version_without_etags(server: str, tmp_path: Path) -> None:
    """The time of change stands for it; other sizes are noticed in any case."""
    import os

    path = tmp_path / "web" / "x"
    path.write_bytes(b"hello")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    store = Store.of(server)
    version = store.head("x").etag
    assert store.get("x", version) == b"hello"
    os.utime(path, (1_100_000_000, 1_100_000_000))
    with pytest.raises(ObjectConflictError, match="has changed"):
        store.get("x", version)
    with pytest.raises(ObjectMissingError):
        store.get("y")


def test_what_a_web_server_cannot(server: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no listing; name its files in a manifest"):
        pack(f"{server}/photos/", tmp_path / "out.lmdb", workers=1)
    with pytest.raises(OptionError, match="plain HTTP to"):
        Store.of("http://storage.example").get("x")
