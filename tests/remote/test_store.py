"""Operations on an S3 server and a web server: reading, listing, writing, and what is raised."""

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_images import image
from object_store import ENVIRONMENT, Bucket, free_port, served

from iofast.errors import ObjectConflictError, ObjectMissingError, OptionError, SourceError, StorageError
from iofast.packing import pack
from iofast.remote import store as store_module
from iofast.remote.limits import VARIABLE, RequestLimits
from iofast.remote.store import ObjectInfo, Store
from iofast.source.scan import scan

DATA = os.urandom(1 << 16)


@pytest.fixture
def store(bucket: Bucket) -> Store:
    return Store.of(f"s3://{bucket.name}/some/prefix/")


def test_reading(store: Store) -> None:
    etag = store.put_bytes("a/x.bin", DATA)
    assert store.get("a/x.bin") == store.get("a/x.bin", etag) == DATA
    assert store.get_range("a/x.bin", 10, 20, etag) == DATA[10:20]
    assert store.get_range("a/x.bin", 10, 10) == b""
    assert store.head("a/x.bin") == ObjectInfo("a/x.bin", len(DATA), etag)
    assert store.url("a/x.bin").endswith("/some/prefix/a/x.bin")


def test_what_is_missing_or_otherwise(store: Store, bucket: Bucket) -> None:
    store.put_bytes("x", DATA)
    for call in (lambda: store.get("y"), lambda: store.head("y")):
        with pytest.raises(ObjectMissingError, match=r"prefix/y does not exist"):
            call()
    with pytest.raises(ObjectConflictError, match="prefix/x has changed"):
        store.get("x", '"other"')
    with pytest.raises(ObjectConflictError, match="expected bytes up to 65537, found 65536"):
        store.get_range("x", 0, len(DATA) + 1)
    with pytest.raises(ObjectConflictError, match="fewer bytes"):
        store.get_range("x", len(DATA) + 1, len(DATA) + 2)
    with pytest.raises(SourceError, match="no path"):
        store.get("a//b")
    bucket.put("some/prefix/a//b.jpg", b"1")
    with pytest.raises(SourceError, match="no path"):
        list(store.list())


def test_listing_in_pages_and_deleting(store: Store, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iofast.remote.store._PAGE", 10)
    names = [f"n/{number:04d}.jpg" for number in range(30)]
    for name in names:
        bucket.put(f"some/prefix/{name}", b"")
    bucket.put("some/prefix-2/x", b"1")
    bucket.put("some/prefix/", b"")  # marks a folder
    bucket.put("some/prefix/n2/odd ü?#%41.jpg", b"12")
    found = list(store.list())
    assert [each.key for each in found] == [*names, "n2/odd ü?#%41.jpg"]
    assert found[-1].size == 2
    assert found[-1] == store.head("n2/odd ü?#%41.jpg")
    assert [each.key for each in store.list("n2")] == ["n2/odd ü?#%41.jpg"]
    assert list(store.list("nothing")) == []
    store.delete("nothing", *names)
    assert [each.key for each in store.list()] == ["n2/odd ü?#%41.jpg"]


@pytest.mark.parametrize("size", [0, 8 << 20, (20 << 20) + 7])
def test_files_are_uploaded(store: Store, bucket: Bucket, tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA * (size // len(DATA)) + DATA[: size % len(DATA)])
    etag = store.put_file("shard", path)
    assert store.head("shard") == ("shard", size, etag)
    assert store.get("shard") == path.read_bytes()
    assert bucket.unfinished_uploads() == 0


def test_conditional_writes(store: Store) -> None:
    etag = store.put_bytes("marker", b"1", if_none_match=True)
    with pytest.raises(ObjectConflictError, match="exists already"):
        store.put_bytes("marker", b"2", if_none_match=True)
    newer = store.put_bytes("marker", b"3", if_match=etag)
    with pytest.raises(ObjectConflictError, match="has changed"):
        store.put_bytes("marker", b"4", if_match=etag)
    assert store.get("marker", newer) == b"3"
    store.put_bytes("marker", b"5")
    assert store.get("marker") == b"5"


def test_a_bucket_that_does_not_exist(bucket: Bucket) -> None:
    for call in (
        lambda store: list(store.list()),
        lambda store: store.get("x"),
        lambda store: store.put_bytes("x", b""),
    ):
        with pytest.raises(StorageError, match="bucket or container does not exist"):
            call(Store.of("s3://bucket-that-is-not"))


def test_a_pickled_store_has_no_secret(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_bytes("x", DATA)
    pickled = pickle.dumps(store)
    for secret in (ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], ENVIRONMENT["AWS_ACCESS_KEY_ID"]):
        assert secret.encode() not in pickled
        assert secret not in repr(store)
    assert pickle.loads(pickled).get("x") == DATA


def test_plain_http_is_for_loopback(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_module, "_QUIET", 0)
    monkeypatch.setenv(VARIABLE, "connect=1,patience=0.2")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example")
    with pytest.raises(OptionError, match="plain HTTP"):
        Store.of("s3://bucket").get("x")
    assert caplog.messages == []
    for endpoint, allowed in (("http://localhost:1", ""), ("http://[::1]:1", "true")):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", allowed) if allowed else monkeypatch.delenv("AWS_ALLOW_HTTP")
        store_module._warn.cache_clear()
        caplog.clear()
        with pytest.raises(StorageError, match="connection refused"):
            Store.of("s3://bucket").get("x")
        assert caplog.messages == [f"s3://bucket: connection refused; trying again (for how long: {VARIABLE})"]


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("patience=0", "patience=x", "patienc=1"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(OptionError, match=VARIABLE):
            RequestLimits.of_environment()
    monkeypatch.setenv(VARIABLE, "patience=60, read=20")
    assert RequestLimits.of_environment() == RequestLimits(connect=5, read=20, patience=60)
    waits = [[RequestLimits().wait(attempt, chance) for chance in (0.0, 0.999)] for attempt in (0, 1, 5, 500)]
    assert waits[0][0] < waits[0][1] < 2 * waits[0][0]
    assert waits[-1][1] <= 15 < 2.1 * waits[-1][0]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One without ETags."""
    monkeypatch.setenv("IOFAST_STORAGE_LIMITS", ENVIRONMENT["IOFAST_STORAGE_LIMITS"])
    (tmp_path / "web").mkdir()
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), f"--directory={tmp_path / 'web'}", "--bind=127.0.0.1"]
    with served(command, port) as url:
        yield url


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
