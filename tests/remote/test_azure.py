"""Packing from Azure's emulator Azurite, and writing to it; skipped where it is not installed (CONTRIBUTING.md)."""

import base64
import datetime
import hashlib
import hmac
import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import ENVIRONMENT, free_port, served
from packing_runs import digests
from test_pack_remote import CLASSES, write

from iofast.errors import StorageError
from iofast.packing import pack
from iofast.remote.store import Store

AZURITE = shutil.which("azurite-blob") or os.environ.get("AZURITE_BLOB", "")
pytestmark = pytest.mark.skipif(not AZURITE, reason="needs Azurite: npm install azurite")
# The emulator's account, which its documentation publishes.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    port, options = free_port(), ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    with served([AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options], port) as url:
        yield f"{url}/{ACCOUNT}"


@pytest.fixture
def container(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": server,
        "IOFAST_STORAGE_LIMITS": ENVIRONMENT["IOFAST_STORAGE_LIMITS"],
    }.items():
        monkeypatch.setenv(name, value)
    name = "c" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    _create(server, name)
    return f"az://{name}"


def _create(server: str, name: str) -> None:
    """Create a container; the signature is that of Azure's shared keys."""
    date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03"}
    lines = [f"{key}:{value}" for key, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    request = urllib.request.Request(f"{server}/{name}?restype=container", None, headers, method="PUT")
    urllib.request.urlopen(request, timeout=20).close()


def test_packing(container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From it into it: a set, and one that replaces it."""
    monkeypatch.setenv("IOFAST_WORK", os.fspath(tmp_path / "work"))
    folder, store = write(tmp_path / "images", CLASSES), Store.of(f"{container}/out")
    for path in folder.rglob("*.*"):
        Store.of(f"{container}/in").put_file(os.fspath(path.relative_to(folder)), path)
    for overwrite, options in ((False, {"shard_records": 2}), (True, {"shard_records": 5})):
        local = tmp_path / str(overwrite)
        local.mkdir()
        pack(folder, local / "out.tar", resize=24, workers=1, **options)
        options |= {"resize": 24, "workers": 1, "overwrite": overwrite}
        pack(f"{container}/in/", f"{container}/out/out.tar", part="2/2", **options)
        pack(f"{container}/in/", f"{container}/out/out.tar", **options)
        found = {each.key: hashlib.sha256(store.get(each.key)).hexdigest() for each in store.list()}
        assert found == digests(local)


def test_failures(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match="container does not exist"):
        list(Store.of("az://none").list())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"wrong" * 12).decode())
    with pytest.raises(StorageError, match=r"403 forbidden, \w+$"):
        Store.of(container).get("x")
