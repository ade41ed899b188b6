"""Storage that is slow, broken or gone: bounded retries, no wrong byte, and errors that say whose fault it is."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from object_store import REFUSED, Bucket, Fault, FaultProxy, Plan, Request, first
from packing_runs import digests
from test_pack_remote import below, photos, write
from todays import todays

from iofast.errors import ObjectConflictError, StorageError
from iofast.packing import PackOptions, pack
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run
from iofast.remote import requests
from iofast.remote.ahead import Ahead, ListedObject
from iofast.remote.limits import VARIABLE, RequestLimits
from iofast.remote.store import Store

QUICK = RequestLimits(connect=1, read=1, write=2, patience=10)
BRIEF = RequestLimits(connect=1, read=0.5, write=1, patience=2)
DATA = os.urandom(300_000)

# What happens to an answer, and the reason that the error gives if it does not end.
FAULTS = {
    "503": (Fault(status=503, headers={"Retry-After": "1"}), "503 service unavailable, SlowDown, for 2 s"),
    "429": (Fault(status=429, body=b"", headers={"Retry-After": "1"}), "429 too many requests, for 2 s"),
    "500": (Fault(status=500, body=b""), "500 internal server error, for 2 s"),
    "reset": (Fault(reset=True), "the connection broke, for 2 s"),
    "no answer": (Fault(delay=3, status=503), "no answer in time, for 2 s"),
    "stall": (Fault(stall=1000, delay=3), "for 2 s"),
    "cut": (Fault(cut=1000), "for 2 s"),
    "403": (REFUSED, "403 forbidden, AccessDenied"),
    "401": (Fault(status=401, body=b""), "401 unauthorized"),
    "expired": (Fault(status=400, body=b"<Error><Code>ExpiredToken</Code></Error>"), "400 bad request, ExpiredToken"),
}
PASSING = list(FAULTS)[:7]


def always(fault: Fault, part: str = "") -> Plan:
    return lambda request: fault if part in request.path else None


@pytest.mark.parametrize("name", PASSING)
def test_passing_faults_are_waited_out(bucket: Bucket, proxy: FaultProxy, name: str) -> None:
    store = Store.of(f"s3://{bucket.name}", QUICK)
    etag = store.put_bytes("x", DATA)
    proxy.plan = first(1, FAULTS[name][0])
    assert store.get("x", etag) == DATA
    assert proxy.count("GET") == 2
    proxy.plan = first(2, FAULTS[name][0], part="list-type")
    assert [each.key for each in store.list()] == ["x"]


@pytest.mark.parametrize("name", FAULTS)
def test_lasting_faults_end_after_some_attempts(bucket: Bucket, proxy: FaultProxy, name: str) -> None:
    store = Store.of(f"s3://{bucket.name}", BRIEF)
    store.put_bytes("x", DATA)
    proxy.plan = always(FAULTS[name][0])
    with pytest.raises(StorageError, match=rf"s3://{bucket.name}/x cannot be read: ") as caught:
        store.get("x")
    assert 2 <= proxy.count("GET") < 60 if name in PASSING else proxy.count("GET") == 1
    assert FAULTS[name][1] in str(caught.value)
    assert bucket.endpoint.rpartition(":")[2] not in str(caught.value)


@pytest.mark.parametrize("length", ["4", "5000000"])
def test_a_wrong_length(bucket: Bucket, proxy: FaultProxy, length: str) -> None:
    """An answer that claims another length than it has is never taken."""
    store = Store.of(f"s3://{bucket.name}", BRIEF)
    etag = store.put_bytes("x", DATA)
    proxy.plan = always(Fault(cut=len(DATA), headers={"Content-Length": length}))
    with pytest.raises((StorageError, ObjectConflictError)):
        requests.run(store.fetch("x", etag, len(DATA)))


def test_another_version_is_never_taken(bucket: Bucket, proxy: FaultProxy) -> None:
    """Not from a server that ignores If-Match, and not after an answer broke off."""
    store = Store.of(f"s3://{bucket.name}", QUICK)
    etag = store.put_bytes("x", DATA)
    proxy.plan = always(Fault(headers={"ETag": '"other"'}))
    with pytest.raises(ObjectConflictError, match="has changed"):
        store.get("x", etag)
    proxy.plan = lambda request: bucket.put("x", b"new" * 100_000) if request.number else Fault(cut=1000)
    with pytest.raises(ObjectConflictError, match="has changed"):
        store.get("x", etag)


class TestUploads:
    def test_parts_are_tried_again(self, bucket: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(DATA * 60)
        proxy.plan = first(1, Fault(status=503), method="PUT", part="partNumber")
        store = Store.of(f"s3://{bucket.name}", QUICK)
        store.put_file("shard", tmp_path / "file")
        assert store.get("shard") == DATA * 60

    @pytest.mark.parametrize("part", ["partNumber=2", "uploadId"])
    def test_nothing_is_left_of_a_failure(self, bucket: Bucket, proxy: FaultProxy, tmp_path: Path, part: str) -> None:
        (tmp_path / "file").write_bytes(DATA * 60)
        proxy.plan = lambda request: REFUSED if part in request.path and request.method in ("PUT", "POST") else None
        store = Store.of(f"s3://{bucket.name}", QUICK)
        with pytest.raises(StorageError, match=r"shard cannot be written: 403 forbidden"):
            store.put_file("shard", tmp_path / "file")
        assert list(store.list()) == []
        assert bucket.unfinished_uploads() == 0

    def test_a_file_that_changes(self, bucket: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(DATA * 100)
        proxy.plan = lambda request: os.truncate(tmp_path / "file", 10) if "uploads" in request.path else None
        store = Store.of(f"s3://{bucket.name}", QUICK)
        with pytest.raises(OSError, match="file changed while it was uploaded"):
            store.put_file("shard", tmp_path / "file")
        assert list(store.list()) == []
        assert bucket.unfinished_uploads() == 0

    def test_a_lost_answer_of_a_conditional_write(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """The object was written, but its answer was lost: the next attempt finds it, and it counts as written."""
        store = Store.of(f"s3://{bucket.name}", QUICK)

        def lost(request: Request) -> Fault | None:
            if request.method != "PUT" or request.number:
                return None
            bucket.put("marker", DATA)
            return Fault(reset=True)

        proxy.plan = lost
        etag = store.put_bytes("marker", DATA, if_none_match=True)
        assert store.head("marker").etag == etag
        with pytest.raises(ObjectConflictError, match="exists already"):
            store.put_bytes("marker", DATA, if_none_match=True)


def test_memory_of_an_upload_is_flat(bucket: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    """It is measured in a process of its own, against a server that drops what it gets."""
    begun = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
    ended = b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
    proxy.plan = lambda request: Fault(
        status=200, body=begun if "uploads=" in request.path else ended, headers={"ETag": '"part"'}
    )
    with (tmp_path / "file").open("wb") as file:
        file.truncate(200 << 20)
    program = """
import resource, sys
from iofast.remote.store import Store
store = Store.of(sys.argv[1])
store.put_bytes('x', b'1')
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store.put_file('big', sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"""
    command = [sys.executable, "-c", program, f"s3://{bucket.name}", str(tmp_path / "file")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
    assert proxy.count("PUT", "partNumber=25&") == 1
    assert int(ended.stdout) < 100 << 10  # KiB


class TestPacking:
    @pytest.fixture
    def url(self, bucket: Bucket, tmp_path: Path) -> str:
        folder = write(tmp_path / "images", below("a", photos(20)) | below("b", photos(20, start=100)))
        (tmp_path / "local").mkdir()
        pack(folder, tmp_path / "local" / "out.tar", resize=24, workers=2, shard_records=10)
        return bucket.upload(folder, "p")

    @pytest.mark.parametrize("name", ["503", "slow", *todays(["reset", "no answer", "cut", "stall"])])
    def test_no_record_is_lost_or_doubled(
        self, proxy: FaultProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(VARIABLE, "connect=2,read=1,patience=30")
        fault = Fault(delay=0.03) if name == "slow" else FAULTS[name][0]
        proxy.plan = lambda request: (
            fault if request.number == 0 and (name == "slow" or zlib.crc32(request.path.encode()) % 7 == 0) else None
        )
        report = pack(url, tmp_path / "out.tar", resize=24, workers=2, shard_records=10)
        assert (report.packed, report.failed) == (40, 0)
        assert digests(tmp_path, "out") == digests(tmp_path / "local")

    @pytest.mark.parametrize("name", ["503", *todays(["403", "reset", "bucket"])])
    def test_a_failing_store_ends_the_run_and_it_resumes(
        self, proxy: FaultProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(VARIABLE, "connect=1,read=1,patience=2")
        gone = Fault(status=404, body=b"<Error><Code>NoSuchBucket</Code></Error>")
        proxy.plan = always(gone if name == "bucket" else FAULTS[name][0], "/p/b/01")
        with pytest.raises(StorageError, match=r"/p/b/01\d\.jpg cannot be read: .*the same command goes on") as caught:
            pack(url, tmp_path / "out.tar", resize=24, workers=2, shard_records=10)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out.tar.errors.jsonl").exists()
        proxy.plan = lambda _: None
        before = proxy.count("GET", "/p/")
        report = pack(url, tmp_path / "out.tar", resize=24, workers=2, shard_records=10)
        assert report.resumed >= (10 if name == "503" else 0)  # a refusal comes while earlier shards are being written
        assert report.failed == 0
        assert proxy.count("GET", "/p/") - before <= 40 - report.resumed
        assert digests(tmp_path, "out") == digests(tmp_path / "local")

    def test_waiting_for_the_store_is_no_stuck_image(
        self, proxy: FaultProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker gives signs of life while it waits, so that its images are not blamed."""
        monkeypatch.setenv(VARIABLE, "connect=1,read=15,patience=20")
        proxy.plan = first(1, Fault(delay=8), part="/p/a/003")
        with WorkerPool(1, silence=6) as pool:
            report = run(url, tmp_path / "out.tar", PackOptions(resize=24, shard_records=10), PackProgress(), pool)
        assert report.failed == 0

    def test_images_are_fetched_ahead(
        self, bucket: Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Within a chunk of four images, and those of the next chunk."""
        monkeypatch.setattr("iofast.packing.work._CHUNKS", 16)
        url = bucket.upload(write(tmp_path / "images", photos(64)), "q")
        proxy.plan = always(Fault(delay=0.1), "/q/")
        assert pack(url, tmp_path / "out.tar", resize=24, workers=1).packed == 64
        assert 5 <= proxy.most <= 64


def test_what_is_held_ahead_is_bounded(bucket: Bucket) -> None:
    store = Store.of(f"s3://{bucket.name}")
    etag = store.put_bytes("x", DATA)
    ahead = Ahead(3 * len(DATA))
    numbers = ahead.add([ListedObject(store.url("x"), len(DATA), etag)] * 10)
    held: list[int] = []
    for number in numbers:
        held.append(len(ahead._begun))
        if number % 4 != 1:  # some are never taken
            assert ahead.take(number) == DATA
    assert max(held) == 3
    ahead.add([ListedObject(store.url("x"), 1 << 40, "")])  # larger than all: alone
    assert len(ahead._begun) == 1
    ahead.close()
    assert not ahead._begun
