"""Packing in parts: any order, twice, killed or at once, the parts give the bytes of one run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import pytest
from container_sets import SUFFIXES
from pack_kills import kill
from packing_runs import TRANSACTION, digests, interrupt, repeated_images
from places import ROOT
from todays import todays

from iofast import open_reader, pack
from iofast.cli import main
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
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repeated_images(tmp_path_factory.mktemp("parts") / "images")


@pytest.fixture(autouse=True)
def _many_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB files of several sections, else the last part would have all images."""
    monkeypatch.setattr("iofast.packing.work.TRANSACTION_BYTES", TRANSACTION)


def options_of(name: str, **options: Any) -> dict[str, Any]:
    shards = {} if name.endswith(".lmdb") else {"shard_records": RECORDS}
    return {"resize": 12, "max_errors": 20, "workers": 2, **shards, **options}


def in_parts(images: Path, target: Path, order: tuple[int, ...] = (3, 1, 5, 4, 2), **options: Any) -> PackReport:
    """Pack all parts in this order, then join them."""
    target.parent.mkdir(exist_ok=True)
    options = options_of(target.name, **options)
    for number in order:
        pack(images, target, part=f"{number}/{PARTS}", **options)
    return pack(images, target, finish=True, **options)


def comparable(report: PackReport) -> PackReport:
    """A report without times and paths."""
    return replace(report, target="", seconds=0.0, errors_file=None)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "splits"])
@pytest.mark.parametrize("suffix", todays(SUFFIXES))
def test_same_bytes_and_report_as_one_run(
    images: Path, tmp_path: Path, suffix: str, options: Mapping[str, Any]
) -> None:
    one, other = tmp_path / "one" / f"train{suffix}", tmp_path / "other" / f"train{suffix}"
    one.parent.mkdir()
    whole = pack(images, one, **options_of(one.name, **options))
    assert comparable(in_parts(images, other, **options)) == comparable(whole)
    assert digests(other.parent) == digests(one.parent)
    assert whole.failed == 3
    assert {path.name for path in other.parent.iterdir()} == {path.name for path in one.parent.iterdir()}


def test_more_parts_than_shards(images: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "t.tar", tmp_path / "other" / "t.tar"
    one.parent.mkdir()
    pack(images, one, **options_of("t.tar", shard_records=60))
    in_parts(images, other, shard_records=60)
    assert digests(other.parent) == digests(one.parent)


@pytest.mark.parametrize("suffix", todays(SUFFIXES))
def test_a_killed_part_goes_on_and_a_finished_one_is_left_alone(images: Path, tmp_path: Path, suffix: str) -> None:
    one, other = tmp_path / "one" / f"t{suffix}", tmp_path / "other" / f"t{suffix}"
    for folder in (one.parent, other.parent):
        folder.mkdir()
    options = options_of(one.name)
    pack(images, one, **options)
    kill(images, other, 12, part="2/5", **options)
    interrupt(images, other, 3, part="4/5", **{**options, "workers": None})
    assert pack(images, other, part="2/5", **options).resumed > 0
    partial = other.with_name(f"t{suffix}.partial")
    before = {
        path: path.stat().st_mtime_ns for path in partial.rglob("*") if "lock" not in path.name and path.is_file()
    }
    again = pack(images, other, part="2/5", **options)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert (again.part, again.missing, again.images) == ((2, 5), (1, 3, 4, 5), again.images)
    in_parts(images, other)
    assert digests(other.parent) == digests(one.parent)


def test_the_same_part_at_once_and_the_last_one_joins(images: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "t.tar", tmp_path / "other" / "t.tar"
    for folder in (one.parent, other.parent):
        folder.mkdir()
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
    ("source", "options", "words"),
    [
        ("", {"part": "1/5", "shuffle": 2}, "shuffle=None, not 2"),
        ("", {"part": "1/6"}, "a run in 5 parts, expected one in 6 parts"),
        ("a", {"part": "1/5"}, "source images, not a"),
        ("", {}, "a run in 5 parts, expected one without parts"),
        ("", {"finish": True}, "parts 1, 2, 4 and 5 of 5 are missing"),
    ],
)
def test_refusals(images: Path, tmp_path: Path, source: str, options: dict[str, Any], words: str) -> None:
    target = tmp_path / "t.tar"
    pack(images, target, part="3/5", **options_of("t.tar"))
    with pytest.raises(TargetError, match=words):
        pack(images / source, target, **options_of("t.tar", **options))


def test_a_plain_run_is_not_continued_in_parts(images: Path, tmp_path: Path) -> None:
    interrupt(images, tmp_path / "t.tar", 2, **{**options_of("t.tar"), "workers": None})
    with pytest.raises(TargetError, match="a run without parts, expected one in 5 parts"):
        pack(images, tmp_path / "t.tar", part="3/5", **options_of("t.tar"))


def test_joining_nothing(images: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no parts that could be joined"):
        pack(images, tmp_path / "t.tar", finish=True, **options_of("t.tar"))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("options", [{"part": "1/2"}, {"finish": True}, {"on": "ray", "workers": None}], ids=str)
def test_a_folder_is_not_packed_in_parts(images: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    words = r"not packed in parts: .* found out/; leave out part, finish and on$"
    with pytest.raises(OptionError, match=words):
        pack(images, f"{tmp_path}/out/", **{"workers": 2, **options})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("suffix", todays(SUFFIXES))
def test_killed_while_joining(images: Path, tmp_path: Path, suffix: str) -> None:
    """Whatever system call of the publication is the last, the next run ends it."""
    one, other = tmp_path / "one" / f"t{suffix}", tmp_path / "other" / f"t{suffix}"
    for folder in (one.parent, other.parent):
        folder.mkdir()
    options = options_of(one.name)
    pack(images, one, **options)
    for number in range(1, PARTS + 1):
        pack(images, other, part=f"{number}/{PARTS}", **options)
    shutil.copytree(other.parent, tmp_path / "begun", copy_function=shutil.copy2)
    for calls in range(0, 60, 13):
        shutil.rmtree(other.parent)
        shutil.copytree(tmp_path / "begun", other.parent, copy_function=shutil.copy2)
        words = str(images), str(other), str(calls), json.dumps(options)
        ended = forked.run([sys.executable, "-c", _DIES_AFTER, *words], cwd=ROOT)
        if ended.returncode == 0:
            break
        if (other.parent / f"t{suffix}.partial").exists():
            pack(images, other, finish=True, **options)
        assert digests(other.parent, "t") == digests(one.parent, "t")  # not a draft of a list, killed before its rename
    assert calls > 6


_DIES_AFTER = """
import json, os, sys
from iofast import pack
left = int(sys.argv[3])

def dying(call):
    def wrapped(*arguments, **keywords):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return call(*arguments, **keywords)
    return wrapped

for name in ("rename", "unlink", "fsync", "replace", "rmdir"):
    setattr(os, name, dying(getattr(os, name)))
pack(sys.argv[1], sys.argv[2], finish=True, **json.loads(sys.argv[4]))
"""


class TestPart:
    @pytest.mark.parametrize(("least", "step", "expected"), [(0, 1, [1, 2, 3]), (1, 1, [1, 2, 3]), (10, 5, [1, 2, 3])])
    def test_tasks_of_an_array(self, least: int, step: int, expected: list[int]) -> None:
        tasks = range(least, least + 3 * step, step)
        assert [PackPart.parse("slurm", slurm(task, tasks)) for task in tasks] == [(number, 3) for number in expected]

    @pytest.mark.parametrize("environment", [{}, {"SLURM_ARRAY_TASK_ID": "1"}])
    def test_outside_of_an_array(self, environment: dict[str, str]) -> None:
        with pytest.raises(OptionError, match="needs the task of a SLURM array"):
            PackPart.parse("slurm", environment)

    def test_an_array_with_gaps(self) -> None:
        with pytest.raises(OptionError, match="without gaps, found 3 tasks from 1 to 9"):
            PackPart.parse("slurm", {**slurm(1, range(1, 4)), "SLURM_ARRAY_TASK_MAX": "9"})

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


def slurm(task: int, tasks: range) -> dict[str, str]:
    """The environment of a task."""
    facts = {"ID": task, "MIN": tasks[0], "MAX": tasks[-1], "COUNT": len(tasks), "STEP": tasks.step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in facts.items()}


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
