"""Packing in parts: any order, twice, killed or at once, the parts give the bytes of one run."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from container_sets import SUFFIXES
from packing_runs import TRANSACTION, digests, interrupt, repeated_images
from places import ROOT
from todays import todays

from iofast import open_reader, pack
from iofast.cli import main
from iofast.containers.lmdb_writer import LmdbWriter
from iofast.containers.publish import Target
from iofast.errors import ErrorBudgetError, OptionError, TargetError, UnfinishedError
from iofast.packing import PackReport
from iofast.packing.part import PackPart, missing_words
from iofast.packing.parts import PackParts
from iofast.packing.plan import PackPlan

RECORDS = 7
PARTS = 5
OPTIONS: list[dict[str, Any]] = [
    {},
    {"split": "val=0.2,test=0.1", "shuffle": 1},
    {"shard_records": 60},
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repeated_images(tmp_path_factory.mktemp("parts") / "images")


@pytest.fixture(autouse=True)
def _many_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB files of several sections, else the last part would have all images."""
    monkeypatch.setattr("iofast.containers.targets.TRANSACTION_BYTES", TRANSACTION)


def options_of(name: str, **options: Any) -> dict[str, Any]:
    shards = {} if name.endswith(".lmdb") else {"shard_records": RECORDS}
    return {"resize": 12, "max_errors": 20, "workers": 2, **shards, **options}


def both(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """The same target in two folders: for one run, and for parts."""
    targets = tmp_path / "one" / name, tmp_path / "other" / name
    for target in targets:
        target.parent.mkdir()
    return targets


def in_parts(images: Path, target: Path, order: tuple[int, ...] = (3, 1, 5, 4, 2), **options: Any) -> PackReport:
    """Pack all parts in this order, then join them."""
    options = options_of(target.name, **options)
    for number in order:
        pack(images, target, part=f"{number}/{PARTS}", **options)
    return pack(images, target, finish=True, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "splits", "more parts than shards"])
@pytest.mark.parametrize("suffix", todays(SUFFIXES))
def test_same_bytes_and_report_as_one_run(
    images: Path, tmp_path: Path, suffix: str, options: Mapping[str, Any]
) -> None:
    if suffix == ".lmdb" and "shard_records" in options:
        suffix = ".tar"
    one, other = both(tmp_path, f"train{suffix}")
    whole = pack(images, one, **options_of(one.name, **options))
    joined = in_parts(images, other, **options)
    assert replace(joined, seconds=whole.seconds, target=whole.target, errors_file=whole.errors_file) == whole
    assert digests(other.parent) == digests(one.parent)
    assert whole.failed == 3
    assert {path.name for path in other.parent.iterdir()} == {path.name for path in one.parent.iterdir()}


@pytest.mark.parametrize("suffix", todays(SUFFIXES))
def test_an_interrupted_part_goes_on_and_a_finished_one_stays(images: Path, tmp_path: Path, suffix: str) -> None:
    one, other = both(tmp_path, f"t{suffix}")
    options = options_of(one.name)
    pack(images, one, **options)
    for steps, part in ((12, "2/5"), (3, "4/5")):
        interrupt(images, other, steps, part=part, **{**options, "workers": None})
    assert pack(images, other, part="2/5", **options).resumed > 0
    partial = other.with_name(f"t{suffix}.partial")
    done = [path for path in partial.rglob("*") if "lock" not in path.name and path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in done}
    again = pack(images, other, part="2/5", **options)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert (again.part, again.missing, again.images) == ((2, 5), (1, 3, 4, 5), again.images)
    in_parts(images, other)
    assert digests(other.parent) == digests(one.parent)


def test_the_same_part_at_once_and_the_last_one_joins(images: Path, tmp_path: Path) -> None:
    one, other = both(tmp_path, "t.tar")
    pack(images, one, **options_of("t.tar"))
    shape = ["--resize", "12", "--max-errors", "20", "--shard-records", str(RECORDS), "--workers", "1", "--quiet"]
    command = [sys.executable, "-m", "iofast", "pack", str(images), str(other), *shape, "--finish-when-complete"]
    runs = [
        subprocess.Popen([*command, "--part", part], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for part in ("1/2", "1/2", "2/2")
    ]
    said = [run.communicate(timeout=300)[1] for run in runs]
    late = [text for run, text in zip(runs, said, strict=True) if run.returncode != 3]  # 3: some images failed
    assert len(late) <= 1, said
    # a run that begins when all is published finds the result
    assert all("another run has published all parts" in text or "exists already" in text for text in late), late
    assert digests(other.parent) == digests(one.parent)


@pytest.mark.parametrize("mode", [{}, {"overwrite": True}], ids=str)
def test_a_part_whose_set_another_run_publishes_meanwhile(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: dict[str, bool]
) -> None:
    target = tmp_path / "t.tar"
    options = options_of("t.tar") | mode
    if mode:
        pack(images, target, **options)
    for number in range(1, PARTS + 1):
        pack(images, target, part=f"{number}/{PARTS}", **options)
    locked = PackParts._locked

    def late(self: PackParts, part: PackPart) -> Target:
        monkeypatch.setattr(PackParts, "_locked", locked)
        pack(images, target, finish=True, **options)
        return locked(self, part)

    monkeypatch.setattr(PackParts, "_locked", late)
    with pytest.raises(TargetError, match="another run has published all parts"):
        pack(images, target, part=f"2/{PARTS}", **options)
    assert not target.with_name("t.tar.partial").exists()


def test_the_error_budget_is_that_of_the_whole(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.tar"
    options = options_of("t.tar", max_errors=2)
    for number in range(1, PARTS + 1):
        pack(images, target, part=f"{number}/{PARTS}", **options)  # none has more than two
    with pytest.raises(ErrorBudgetError, match=r"3 of 100 images failed.* at most 2"):
        pack(images, target, finish=True, **options)
    with pytest.raises(UnfinishedError):
        open_reader(target)
    assert pack(images, target, finish=True, **{**options, "max_errors": 3}).failed == 3


@pytest.mark.parametrize(
    ("begun", "source", "options", "words"),
    [
        ("3/5", "", {"part": "1/5", "shuffle": 2}, "shuffle=None, not 2"),
        ("3/5", "", {"part": "1/6"}, "a run in 5 parts, expected one in 6 parts"),
        ("3/5", "a", {"part": "1/5"}, "source images, not a"),
        ("3/5", "", {}, "a run in 5 parts, expected one without parts"),
        ("3/5", "", {"finish": True}, "parts 1, 2, 4 and 5 of 5 are missing"),
        ("all", "", {"part": "3/5"}, "a run without parts, expected one in 5 parts"),
        ("", "", {"finish": True}, "no parts that could be joined"),
    ],
)
def test_refusals(images: Path, tmp_path: Path, begun: str, source: str, options: dict[str, Any], words: str) -> None:
    target = tmp_path / "t.tar"
    if begun == "all":
        interrupt(images, target, 2, **{**options_of("t.tar"), "workers": None})
    elif begun:
        pack(images, target, part=begun, **options_of("t.tar"))
    before = os.listdir(tmp_path)
    with pytest.raises(TargetError, match=words):
        pack(images / source, target, **options_of("t.tar", **options))
    assert os.listdir(tmp_path) == before


@pytest.mark.parametrize("options", [{"part": "1/2"}, {"finish": True}, {"on": "ray", "workers": None}], ids=str)
def test_a_folder_is_not_packed_in_parts(images: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    words = r"not packed in parts: .* found out/; leave out part, finish and on$"
    with pytest.raises(OptionError, match=words):
        pack(images, f"{tmp_path}/out/", **{"workers": 2, **options})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "place", "call", "calls"), [("t.tar", os, "rename", 0), ("t.lmdb", LmdbWriter, "_commit", 3)]
)
def test_stopped_while_joining(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: object, call: str, calls: int
) -> None:
    """Before the first shard has its final name, after three transactions; more in `make torture PART=parts`."""
    real, done = getattr(place, call), list[object]()

    def stop(*arguments: Any, **keywords: Any) -> Any:
        if len(done) == calls:
            raise KeyboardInterrupt
        done.append(None)
        return real(*arguments, **keywords)

    (one, other), options = both(tmp_path, name), options_of(name)
    pack(images, one, **options)
    for number in range(1, PARTS + 1):
        pack(images, other, part=f"{number}/{PARTS}", **options)
    with monkeypatch.context() as patch:
        patch.setattr(place, call, stop)
        with pytest.raises(KeyboardInterrupt):
            pack(images, other, finish=True, **options)
    pack(images, other, finish=True, **options)
    assert digests(other.parent, "t") == digests(one.parent, "t")


def slurm(task: int, tasks: range) -> dict[str, str]:
    """The environment of a task."""
    facts = {"ID": task, "MIN": tasks[0], "MAX": tasks[-1], "COUNT": len(tasks), "STEP": tasks.step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in facts.items()}


class TestPart:
    @pytest.mark.parametrize("tasks", [range(3), range(10, 25, 5)])
    def test_tasks_of_an_array(self, tasks: range) -> None:
        assert [PackPart.parse("slurm", slurm(task, tasks)) for task in tasks] == [(1, 3), (2, 3), (3, 3)]

    @pytest.mark.parametrize(
        ("environment", "words"),
        [
            ({}, "needs the task of a SLURM array"),
            ({"SLURM_ARRAY_TASK_ID": "1"}, "needs the task of a SLURM array"),
            (slurm(1, range(1, 4)) | {"SLURM_ARRAY_TASK_MAX": "9"}, "without gaps, found 3 tasks from 1 to 9"),
        ],
    )
    def test_no_array_that_can_be_parts(self, environment: dict[str, str], words: str) -> None:
        with pytest.raises(OptionError, match=words):
            PackPart.parse("slurm", environment)

    @pytest.mark.parametrize("total", [1, 2, 3, 7, 40])
    def test_runs_of_sections_are_equal_and_cover_all(self, total: int) -> None:
        sections = PackPlan(61, (("train", 0, 50), ("val", 50, 61)), "", {}, 7).sections()
        assert [each.start for each in sections] == [*range(0, 50, 7), *range(50, 61, 7)]
        runs = [PackPart(number, total).of(sections) for number in range(1, total + 1)]
        assert [each for own in runs for each in own] == sections
        assert max(map(len, runs)) - min(map(len, runs)) <= 1

    def test_words(self) -> None:
        assert missing_words((3,), 8) == "part 3 of 8 is missing"
        assert missing_words((2, 5, 7), 8) == "parts 2, 5 and 7 of 8 are missing"
        assert missing_words(range(1, 13), 2000).endswith(" 9, 10 and 2 more of 2,000 are missing")


def test_a_part_waits_for_the_plan(images: Path, tmp_path: Path) -> None:
    """A run that finds the folder locked waits until the other has made the plan."""
    from iofast.containers.targets import target_of

    place = target_of(tmp_path / "t.tar")
    place.acquire()
    found: list[PackReport] = []
    other = threading.Thread(
        target=lambda: found.append(pack(images, tmp_path / "t.tar", part="1/5", **options_of("t.tar")))
    )
    other.start()
    other.join(0.6)
    assert other.is_alive()
    place.release()
    other.join(60)
    assert [report.part for report in found] == [(1, 5)]


class TestInfo:
    def test_of_unfinished_parts(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for number in (1, 4):
            pack(images, tmp_path / "t.tar", part=f"{number}/5", **options_of("t.tar"))
        assert main(["info", str(tmp_path / "t.tar")]) == 1
        assert "parts 2, 3 and 5 of 5 are missing" in capsys.readouterr().out
        assert main(["info", "--json", str(tmp_path / "t.tar")]) == 1
        assert json.loads(capsys.readouterr().out)["unfinished"] == {"images": 100, "parts": 5, "missing": [2, 3, 5]}
