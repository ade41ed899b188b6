"""Packing with dying workers, killed runs, full disks, and two runs at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from container_sets import build, records
from folder_images import few
from packing_runs import digests, interrupt, pack_with
from PIL import Image

from iofast.errors import SourceError, TargetError, WorkerError
from iofast.packing import PackOptions, pack
from iofast.packing.messages import ChunkJob
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run

OPTIONS: dict[str, Any] = {"resize": 128, "shard_records": 20}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 pictures in two classes, noisy enough that packing them takes a while."""
    root = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    for number in range(200):
        pixels = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        path = root / f"c{number // 100}" / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).resize((320, 240)).save(path, quality=90)
    return root


@pytest.fixture(scope="module")
def packed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run makes of `images`."""
    folder = tmp_path_factory.mktemp("whole")
    pack(images, folder / "out.tar", **OPTIONS)
    return digests(folder)


def finished(target: Path) -> dict[str, str]:
    """The rows of the sections that are finished."""
    partial = target.with_name(target.name + ".partial")
    return digests(partial, "rows-") if partial.exists() else {}


FAKE = """
import os, signal, sys, time
from iofast.packing import worker
deaths = "DEATHS"  # the size of this file is the number of unlucky deaths
real = worker.make_record
def make_record(sample, *rest):
    path = sample.image.path
    if "killer" in path:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "unlucky" in path and (died := os.path.getsize(deaths)) < 2:
        os.truncate(deaths, died + 1)
        os.kill(os.getpid(), signal.SIGKILL)
    if "stuck" in path:
        time.sleep(3600)
    return real(sample, *rest)
worker.make_record = make_record
sys.exit(worker.main())
"""


DIES_EARLY = """
import os, signal, sys
from iofast.packing import worker
worker.Worker._chunk = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(worker.main())
"""


class TestDyingWorkers:
    def test_an_image_that_kills_workers_is_one_error(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=130)
        for name in ("050_killer.png", "051_killer.png"):  # of one chunk
            (source / name).write_bytes((source / "000.png").read_bytes())
        report = pack_with(source, tmp_path / "out.lmdb", FAKE, max_errors=2)
        assert (report.packed, report.failed) == (130, 2)
        assert dict(report.errors) == {"the worker process died on this image": 2}
        line = json.loads((tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines()[0])
        assert line["path"] == "050_killer.png"
        assert "SIGSEGV" in line["reason"]

    def test_one_death_alone_is_no_failed_image(self, tmp_path: Path) -> None:
        """Killed in a whole chunk, then again image by image, as when memory runs out."""
        source = few(tmp_path / "images", good=5)
        (source / "002_unlucky.png").write_bytes((source / "000.png").read_bytes())
        deaths = tmp_path / "deaths"
        deaths.touch()
        report = pack_with(source, tmp_path / "out.lmdb", FAKE.replace("DEATHS", str(deaths)), max_errors=0)
        assert deaths.stat().st_size == 2
        assert (report.packed, report.failed) == (6, 0)

    def test_an_image_that_never_ends_is_one_error(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=3)
        (source / "stuck.png").write_bytes((source / "000.png").read_bytes())
        report = pack_with(source, tmp_path / "out.lmdb", FAKE, silence=2.5, max_errors=1)  # to import takes 0.3 s
        assert (report.packed, report.failed) == (3, 1)
        assert "stuck" in (tmp_path / "out.lmdb.errors.jsonl").read_text()

    def test_workers_killed_from_outside_change_nothing(
        self, images: Path, packed: dict[str, str], tmp_path: Path
    ) -> None:
        class Killing(PackProgress):
            killed = 0

            def step(self, images: int, size: int, failed: int) -> None:
                # an image that took a worker already would be blamed if it was in hand by chance again
                others = [worker for worker in pool._workers if not any(job.suspects for job in worker.jobs)]
                if others and self.killed < 3:
                    self.killed += 1
                    others[0].process.kill()

        progress = Killing()
        with WorkerPool(2) as pool:
            report = run(images, tmp_path / "out.tar", PackOptions(**OPTIONS, max_errors=0), progress, pool)
        assert progress.killed == 3
        assert report.failed == 0
        assert digests(tmp_path) == packed

    @pytest.mark.parametrize(
        ("program", "words"),
        [
            ("import sys; sys.exit('no module named horse')", "no module named horse"),
            (DIES_EARLY, "without doing anything: SIGKILL"),
        ],
    )
    def test_workers_that_cannot_work_are_an_error(
        self, tmp_path: Path, program: str, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("iofast.packing.pool._FRUITLESS", 1)
        source = few(tmp_path / "images", good=3)
        with pytest.raises(WorkerError, match=words):
            pack_with(source, tmp_path / "out.lmdb", program)
        assert not (tmp_path / "out.lmdb").exists()

    def test_a_worker_that_cannot_be_started_is_an_error(self) -> None:
        with pytest.raises(WorkerError, match="cannot be started"):
            WorkerPool(1, ("/no/such/python",)).start()

    def test_a_module_in_the_users_folder_is_not_the_workers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = few(tmp_path / "images", good=2)
        (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
        monkeypatch.chdir(tmp_path)
        assert pack(source, tmp_path / "out.lmdb", workers=1).packed == 2

    def test_what_a_workers_start_prints_is_no_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "sitecustomize.py").write_text("import os\nos.write(1, b'hello\\n')\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
        assert pack(few(tmp_path / "images", good=2), tmp_path / "out.lmdb", workers=1).packed == 2

    def test_a_workers_exception_is_the_cause(self) -> None:
        with WorkerPool(1) as pool, pytest.raises(WorkerError, match="exit status 1: KeyError: 'recipe'"):
            list(pool.results({}, iter([ChunkJob(0, [])])))

    def test_a_parent_without_standard_streams(self, tmp_path: Path) -> None:
        """A daemon: its first pipes are descriptors 0, 1 and 2."""
        words = ("pack", str(few(tmp_path / "images", good=3)), str(tmp_path / "a.lmdb"), "--workers=2", "--quiet")
        command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "iofast", *words]
        subprocess.run(command, timeout=120, check=True)

    def test_no_worker_is_left_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("iofast.packing.run.WorkerPool", WorkerPool)  # tests share a pool that stays open
        before = psutil.Process().children()  # other tests' children, such as multiprocessing's resource tracker
        pack(few(tmp_path / "images", good=2), tmp_path / "out.lmdb", workers=2)
        with pytest.raises(SourceError):
            pack(tmp_path / "missing", tmp_path / "b.lmdb", workers=1)
        assert set(psutil.Process().children()) <= set(before)


class TestPackResume:
    def test_a_killed_run_goes_on_to_the_same_bytes(self, images: Path, packed: dict[str, str], tmp_path: Path) -> None:
        target = tmp_path / "out.tar"
        words = ("--resize", "128", "--shard-records", "20", "--quiet", "--workers", "2")
        command = [sys.executable, "-m", "iofast", "pack", str(images), str(target), *words]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while len(finished(target)) <= 2 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)
        workers = psutil.Process(process.pid).children()
        process.kill()
        process.wait()
        assert workers
        _, alive = psutil.wait_procs(workers, timeout=5)
        assert not alive, "workers outlive a killed parent"
        assert not target.exists()
        report = pack(images, target, workers=1, **OPTIONS)
        assert 0 < report.resumed < 200
        assert report.bytes_in == sum(path.stat().st_size for path in images.rglob("*.jpg"))
        assert digests(tmp_path) == packed
        assert not target.with_name("out.tar.partial").exists()

    def test_other_options_and_sources_are_an_error(self, images: Path, tmp_path: Path) -> None:
        interrupt(images, tmp_path / "out.tar", 20, **OPTIONS)
        before = finished(tmp_path / "out.tar")
        with pytest.raises(TargetError, match="resize=128, not 64: give that command again"):
            pack(images, tmp_path / "out.tar", **{**OPTIONS, "resize": 64})
        assert finished(tmp_path / "out.tar") == before
        with pytest.raises(TargetError, match="a run with 200 images, not 3"):
            pack(few(tmp_path / "other", good=3), tmp_path / "out.tar", **OPTIONS)

    def test_a_finished_run_stopped_while_publishing_is_published(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = few(tmp_path / "images", good=5, bad=1)

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", stop)
            with pytest.raises(KeyboardInterrupt):
                pack(source, tmp_path / "out.lmdb", max_errors=1)
        assert not (tmp_path / "out.lmdb").exists()
        report = pack(source, tmp_path / "out.lmdb", max_errors=1)
        assert (report.packed, report.failed, report.resumed) == (5, 1, 6)
        assert sorted(os.listdir(tmp_path)) == ["images", "out.lmdb", "out.lmdb.errors.jsonl"]


@pytest.mark.parametrize("copied", [False, True])
def test_too_little_space_is_an_error_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """Nothing is left, and a set that was to be replaced is still there."""
    source = build(tmp_path / "set.lmdb") if copied else few(tmp_path / "images", good=20)
    target = build(tmp_path / "out.tar", 3)
    before = sorted(tmp_path.iterdir())
    usage = type("Usage", (), {"free": 4096, "total": 8192, "used": 4096})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(TargetError, match="too little disk space"):
        pack(source, target, overwrite=True, **({"format": "keep", "check": "end"} if copied else {}))
    assert sorted(tmp_path.iterdir()) == before
    assert len(records(target)) == 3


def test_a_list_of_errors_is_drafted_in_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other user can put a link in the draft's place."""
    replace, drafts = os.replace, []

    def note(draft: Path, path: Path, **folders: int | None) -> None:
        drafts.append((path.name, draft.parent.name))
        replace(draft, path, **folders)

    monkeypatch.setattr(os, "replace", note)
    pack(few(tmp_path / "images", good=3, bad=1), tmp_path / "out.tar", max_errors=1)
    assert ("out.tar.errors.jsonl", "out.tar.partial") in drafts
