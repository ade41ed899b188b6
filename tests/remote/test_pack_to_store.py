"""Packing into a bucket: the bytes of a local run, whatever happens on the way, and never a partial set."""

import contextlib
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from at_once import at_once, in_child
from object_store import ENVIRONMENT, REFUSED, Bucket, Fault, FaultProxy, Request
from packing_runs import digests, repeated_images

from iofast.errors import ContainerError, ErrorBudgetError, ObjectConflictError, StorageError, TargetError
from iofast.opening import open_reader
from iofast.packing import PackOptions, PackReport, pack
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run
from iofast.packing.to_store import StoreRun, work_folder

RECORDS = 20


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repeated_images(tmp_path_factory.mktemp("to_store") / "images")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all tests, so that they share workers."""
    return tmp_path_factory.mktemp("machine") / "work"


@pytest.fixture(autouse=True)
def work(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the work on this machine."""
    monkeypatch.setenv("IOFAST_WORK", os.fspath(machine))
    return machine


def options_of(**options: Any) -> dict[str, Any]:
    return {"resize": 12, "max_errors": 20, "workers": 1, "shard_records": RECORDS, **options}


def names(bucket: Bucket, prefix: str = "") -> list[str]:
    """The keys of all objects below a prefix."""
    text = bucket.request("GET", query=f"?list-type=2&prefix={prefix}").decode()
    return [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]


def stored(bucket: Bucket, prefix: str = "out/") -> dict[str, str]:
    """Digests of all objects below a prefix."""
    return {
        name.removeprefix(prefix): sha256(bucket.request("GET", name)).hexdigest() for name in names(bucket, prefix)
    }


def locally(images: Path, folder: Path, name: str, **options: Any) -> tuple[PackReport, dict[str, str]]:
    """The report and the digests of a local run."""
    folder.mkdir()
    report = pack(images, folder / name, **options_of(**options))
    return report, digests(folder)


def comparable(report: PackReport) -> PackReport:
    """A report without times and places."""
    lists = {each: Path(getattr(report, each) or "").name for each in ("errors_file", "target")}
    return replace(report, seconds=0.0, **lists)


def test_bucket_and_folder_get_equal_bytes(bucket: Bucket, images: Path, tmp_path: Path, work: Path) -> None:
    """Those of tar without further options are compared in most of the tests below."""
    options: dict[str, Any] = {"split": "val=0.2,test=0.1", "shuffle": 1}
    whole, expected = locally(images, tmp_path / "local", "train.tfrecord", **options)
    report = pack(images, f"s3://{bucket.name}/out/train.tfrecord", **options_of(**options))
    assert stored(bucket) == expected
    assert comparable(report) == comparable(whole)
    assert report.target == f"s3://{bucket.name}/out/train.tfrecord"
    assert report.failed == 3
    assert bucket.unfinished_uploads() == 0
    assert not any(work.iterdir())


def target_in(bucket: Bucket) -> str:
    return f"s3://{bucket.name}/out/t.tar"


@pytest.fixture(scope="module")
def expected(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of a local run."""
    return locally(images, tmp_path_factory.mktemp("expected") / "out", "t.tar")[1]


def packed(images: Path | str, bucket: Bucket, **options: Any) -> PackReport:
    return pack(images, target_in(bucket), **options_of(**options))


def test_the_work_of_a_killed_run_is_removed(work: Path) -> None:
    def dies() -> bool:
        own = work_folder()
        (own.__enter__() / "shard-000000.tar").touch()
        os._exit(0)

    assert in_child(dies) == 0
    assert len([*work.iterdir()]) == 1
    with work_folder() as folder:
        assert [*work.iterdir()] == [folder]


class TestParts:
    def test_of_two_machines(self, bucket: Bucket, images: Path, expected: dict[str, str]) -> None:
        """From a bucket into a bucket: the sizes and versions of the source's objects are in the stored listing."""
        source = bucket.upload(images, "in")
        reports = [packed(source, bucket, part=part) for part in ("3/3", "1/3", "3/3")]
        assert [report.part for report in reports] == [(3, 3), (1, 3), (3, 3)]
        assert [report.missing for report in reports] == [(1, 2), (2,), (2,)]
        assert reports[0].packed == reports[2].packed > 0
        with pytest.raises(TargetError, match=r"s3://.*/out/t.tar cannot be finished: part 2 of 3 is missing"):
            packed(source, bucket, finish=True)
        with pytest.raises(TargetError, match="a run in 3 parts, expected one in 4 parts"):
            packed(source, bucket, part="1/4")
        assert "out/t.tar.manifest" not in names(bucket)
        report = packed(source, bucket, part="2/3", finish_when_complete=True)
        assert (report.part, report.images) == (None, 100)
        assert stored(bucket) == expected
        with pytest.raises(TargetError, match=r"out/t.tar exists already: choose another name, or give overwrite=True"):
            packed(source, bucket, finish=True)

    def test_at_once(self, bucket: Bucket, images: Path, expected: dict[str, str]) -> None:
        """The same command on three machines, in the place of another set: they share the work, and all report it."""
        pack(images / "a", target_in(bucket), **options_of(shard_records=2))
        found: list[PackReport | BaseException] = []

        def one() -> None:
            try:
                with WorkerPool(1) as pool:
                    options = PackOptions(**options_of(overwrite=True))
                    found.append(run(images, target_in(bucket), options, PackProgress(), pool))
            except BaseException as error:
                found.append(error)

        at_once(*[one] * 3)
        assert [(each.packed, each.failed) for each in found if isinstance(each, PackReport)] == [(97, 3)] * 3, found
        assert stored(bucket) == expected


def faults(seed: int) -> Callable[[Request], Fault | None]:
    """Something happens to every fifth request; twice, an object seems to have changed since it was listed."""
    chance, changes = random.Random(seed), [Fault(headers={"ETag": f'"{"0" * 32}"'})] * 2
    slow_down = Fault(status=503, headers={"Retry-After": "0"})
    kinds = [Fault(delay=0.05), slow_down, Fault(status=500, body=b""), Fault(reset=True), Fault(cut=100), Fault(cut=0)]

    def plan(request: Request) -> Fault | None:
        if chance.random() > 0.2:
            return None
        return changes.pop() if changes and "if-match" in request.headers else chance.choice(kinds)

    return plan


def test_passing_faults(bucket: Bucket, proxy: FaultProxy, images: Path, expected: dict[str, str]) -> None:
    proxy.plan = faults(3000)
    for _ in range(3):  # the changed objects end two runs
        with contextlib.suppress(ObjectConflictError):
            packed(images, bucket)
            break
        assert "out/t.tar.manifest" not in names(bucket)
    assert stored(bucket) == expected


class TestFaults:
    def test_a_store_that_is_gone(
        self, bucket: Bucket, proxy: FaultProxy, images: Path, expected: dict[str, str]
    ) -> None:
        """The run ends after a few attempts, says how it goes on, and loses nothing that was stored."""
        late = Fault(delay=1.5, status=503)
        proxy.plan = lambda request: late if "rows-000003" in request.path else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("IOFAST_STORAGE_LIMITS", "connect=1,read=1,write=1,patience=2")
            with pytest.raises(StorageError, match=r"rows-000003.* for 2 s; .* goes on from there; delete s3"):
                packed(images, bucket)
        attempts = [request for request in proxy.requests if "rows-000003" in request.path]
        assert 1 <= len(attempts) < 10, "each takes a second of the two"
        assert "out/t.tar.manifest" not in names(bucket)
        proxy.plan = lambda _: None
        assert packed(images, bucket).resumed >= 3 * RECORDS
        assert stored(bucket) == expected

    def test_cleaning_up_fails(
        self, bucket: Bucket, proxy: FaultProxy, images: Path, expected: dict[str, str], caplog: Any
    ) -> None:
        """The set is published: a warning, and the same command removes the rest, whatever it is."""
        removals = itertools.count()
        for number, failing in enumerate(({0}, {2}, set[int]())):  # nothing is removed; the listing is
            proxy.plan = lambda request, failing=failing: (
                REFUSED if "?delete" in request.path and next(removals) in failing else None
            )
            assert (report := packed(images, bucket)).packed == 97
            assert report.failed == 3
            assert len(caplog.records) == min(number + 1, 2)
        assert "t.tar is published, but cleaning up failed: s3://" in caplog.text
        assert stored(bucket) == expected

    def test_an_interrupt_leaves_no_upload(self, bucket: Bucket, proxy: FaultProxy, images: Path) -> None:
        def plan(request: Request) -> Fault | None:
            if request.method == "PUT" and "t-000002" in request.path:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                return Fault(delay=2)
            return None

        proxy.plan = plan
        with pytest.raises(KeyboardInterrupt, match=r"^[^;]*; [^;]*goes on from there; delete s3:[^;]* anew$"):
            packed(images, bucket)
        assert bucket.unfinished_uploads() == 0


class TestOverwriting:
    def test_a_set_of_more_shards_is_replaced(self, bucket: Bucket, images: Path, expected: dict[str, str]) -> None:
        packed(images / "a", bucket, shard_records=2)
        packed(images, bucket, part="1/2", overwrite=True)
        with pytest.raises(ContainerError, match=r"out/t.tar.manifest is empty"):
            open_reader(target_in(bucket))
        packed(images, bucket, part="2/2", overwrite=True)
        packed(images, bucket, finish=True, overwrite=True)
        assert stored(bucket) == expected  # without the further shards of the old set

    def test_what_another_program_has_written_stays(self, bucket: Bucket, images: Path) -> None:
        bucket.put("out/t-000002.tar", b"another")
        with pytest.raises(TargetError, match=r"out/t-000002.tar exists already and is no part of a set"):
            packed(images, bucket, overwrite=True)
        assert bucket.request("GET", "out/t-000002.tar") == b"another"
        bucket.request("DELETE", "out/t-000002.tar")
        packed(images, bucket, part="1/1")
        shard = bucket.request("GET", "out/t-000002.tar")
        bucket.put("out/t-000002.tar", b"another")
        with pytest.raises(TargetError, match=r"out/t-000002.tar is lost or was overwritten"):
            packed(images, bucket, finish=True)
        assert "out/t.tar.manifest" not in names(bucket)
        bucket.put("out/t-000002.tar", shard)
        bucket.put("out/t.tar.manifest", b"another")
        with pytest.raises(TargetError, match=r"out/t.tar was made by another run meanwhile"):
            packed(images, bucket, finish=True, overwrite=True)
        assert bucket.request("GET", "out/t.tar.manifest") == b"another"


def test_a_run_whose_work_was_removed(bucket: Bucket, images: Path, expected: dict[str, str], work: Path) -> None:
    """Nothing of it gets into the run that is begun anew."""
    packed(images, bucket, part="1/2")
    for name in names(bucket):
        bucket.request("DELETE", name)
    with pytest.raises(TargetError, match=r"has no parts that could be joined"):
        packed(images, bucket, finish=True)
    packed(images, bucket)
    assert stored(bucket) == expected


def test_the_disk_holds_two_shards(bucket: Bucket, images: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, send = [], StoreRun._send

    def measured(*arguments: Any) -> bool:
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(work) for name in names if "shard-" in name]
        with contextlib.suppress(FileNotFoundError):  # removed just now
            sizes.append(sum(os.stat(path).st_blocks * 512 for path in paths))
        return send(*arguments)

    monkeypatch.setattr(StoreRun, "_send", measured)
    assert packed(images, bucket, resize=256, format="rgb", shard_records=5).bytes_out > 15_000_000
    assert 0 < max(sizes) < 5_000_000


def test_secrets_are_nowhere(
    bucket: Bucket, proxy: FaultProxy, images: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "SESSIONTOKENEXAMPLE")
    secrets = [ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], ENVIRONMENT["AWS_ACCESS_KEY_ID"], "SESSIONTOKENEXAMPLE"]
    monkeypatch.setenv("IOFAST_STORAGE_LIMITS", "connect=1,read=1,write=1,patience=1")
    proxy.plan = lambda request: (
        Fault(status=403, body="".join(secrets).encode()) if "t-000002" in request.path else None
    )
    with pytest.raises(StorageError, match="403 forbidden") as raised:
        packed(images, bucket)
    texts = [str(raised.value).encode(), *(bucket.request("GET", name) for name in names(bucket))]
    texts += [path.read_bytes() for path in work.rglob("*") if path.is_file()]
    assert len(texts) > 6
    assert not [secret for secret in secrets for text in texts if secret.encode() in text]


def test_a_dry_run_and_the_error_budget(bucket: Bucket, images: Path) -> None:
    report = packed(images, bucket, dry_run=True)
    assert (report.target, report.estimate is not None) == (target_in(bucket), True)
    assert names(bucket) == []
    with pytest.raises(ErrorBudgetError, match=r"images failed: expected at most 1"):
        packed(images, bucket, max_errors=1)
    assert packed(images, bucket, max_errors=3).failed == 3
