"""`convert` after interruptions: shards are resumed, with the bytes of one run."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from container_sets import SUFFIXES, build, files, picture, records
from places import ROOT
from tar_sets import foreign

from iofast import pack
from iofast.checking import verify
from iofast.cli import main
from iofast.copying import CopyOptions, convert
from iofast.errors import ContainerError, TargetError
from iofast.opening import open_reader

COUNT, STOP = 60, 37
SMALL = CopyOptions(shard_size=20_000)
SHARDS = SUFFIXES[1:]

Stop = Callable[[int, int, int], None]


def after(number: int, what: BaseException) -> Stop:
    """A `progress` that raises `what` after `number` records."""
    left = [number]

    def progress(*_: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise what

    return progress


def in_full_shards(target: Path, written: int) -> int:
    """How many of the `written` records are in full shards: the next shard has begun."""
    with open_reader(target) as reader:
        ends = itertools.accumulate(shard.count for shard in reader.manifest.shards)
    return max((end for end in ends if end < written), default=0)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in files(path)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return build(tmp_path / "source" / "set.lmdb", COUNT)


@pytest.mark.parametrize("suffix", SHARDS)
class TestShards:
    @pytest.fixture
    def whole(self, source: Path, suffix: str, tmp_path: Path) -> dict[str, bytes]:
        (tmp_path / "whole").mkdir()
        convert(source, tmp_path / "whole" / f"out{suffix}", SMALL)
        return contents(tmp_path / "whole" / f"out{suffix}")

    def test_killed(self, source: Path, suffix: str, tmp_path: Path, whole: dict[str, bytes]) -> None:
        target = tmp_path / f"out{suffix}"
        program = (
            "import os, sys; from iofast.copying import *; done = []\n"
            "def progress(*_):\n"
            f"    done.append(1)\n    if len(done) == {STOP}: os.kill(os.getpid(), 9)\n"
            "convert(sys.argv[1], sys.argv[2], CopyOptions(shard_size=20_000), progress=progress)"
        )
        command = [sys.executable, "-c", program, str(source), str(target)]
        ended = subprocess.run(command, cwd=ROOT, timeout=60)
        assert ended.returncode == -signal.SIGKILL
        told: list[tuple[int, int]] = []
        result = convert(source, target, SMALL, begin=lambda every, done: told.append((every, done)))
        kept = in_full_shards(target, STOP)
        assert (result.records, result.resumed, told) == (COUNT, kept, [(COUNT, kept)])
        assert kept > 9
        assert contents(target) == whole
        assert verify(target).whole
        assert not (tmp_path / f"out{suffix}.partial").exists()

    @pytest.mark.parametrize("what", [KeyboardInterrupt(), TargetError("the disk is full")])
    def test_interrupted(
        self, source: Path, suffix: str, tmp_path: Path, whole: dict[str, bytes], what: BaseException
    ) -> None:
        target = tmp_path / f"out{suffix}"
        for number in (0, STOP, 9):
            with pytest.raises(type(what), match=r"the same command goes on from there; delete .*partial to start"):
                convert(source, target, SMALL, progress=after(number or 1, what))
            assert not files(target.with_name(f"out{suffix}.manifest"))
        resumed, written = convert(source, target, SMALL).resumed, 0
        for number in (1, STOP, 9):
            written = in_full_shards(target, written + number)
        assert resumed == written > STOP // 2
        assert contents(target) == whole

    def test_damage_leaves_nothing(self, source: Path, suffix: str, tmp_path: Path) -> None:
        with pytest.raises(ContainerError):
            convert(source, tmp_path / f"out{suffix}", SMALL, progress=after(9, ContainerError("it is damaged")))
        assert [path.name for path in tmp_path.iterdir()] == ["source"]

    def test_set_that_is_to_be_replaced_can_still_be_read(self, source: Path, suffix: str, tmp_path: Path) -> None:
        target = build(tmp_path / f"out{suffix}", 5)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            convert(source, target, CopyOptions(overwrite=True), progress=after(9, KeyboardInterrupt()))
        assert len(records(target)) == 5

    @pytest.mark.parametrize("other", ["source", "options", "damage"])
    def test_other_work_is_not_gone_on_with(
        self, source: Path, suffix: str, tmp_path: Path, whole: dict[str, bytes], other: str
    ) -> None:
        target = tmp_path / f"out{suffix}"
        first = build(tmp_path / "source" / "other.lmdb", COUNT - 1) if other == "source" else source
        options = CopyOptions(shard_size=50_000) if other == "options" else SMALL
        with pytest.raises(KeyboardInterrupt):
            convert(first, target, options, progress=after(STOP, KeyboardInterrupt()))
        if other == "damage":
            (tmp_path / f"out{suffix}.partial" / "copy.json").write_text("{")
        assert convert(source, target, SMALL).resumed == 0
        assert contents(target) == whole

    def test_a_pack_does_not_sweep_it_away(self, source: Path, suffix: str, tmp_path: Path) -> None:
        target = tmp_path / f"out{suffix}"
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / "a.jpg").write_bytes(picture(1))
        with pytest.raises(KeyboardInterrupt):
            convert(source, target, SMALL, progress=after(STOP, KeyboardInterrupt()))
        with pytest.raises(TargetError, match="holds the work of an interrupted convert"):
            pack(tmp_path / "images", target, workers=1)
        assert convert(source, target, SMALL).resumed == in_full_shards(target, STOP) > 0


class TestResumeOfForeign:
    def test_warnings_speak_of_all_records(self, tmp_path: Path) -> None:
        members = {f"{n}.{kind}": picture(n) if kind == "jpg" else b"x" for n in (3, 5, 7) for kind in ("jpg", "a.pyd")}
        path = foreign(tmp_path / "their.tar", members)
        each = CopyOptions(shard_size=1)
        with pytest.raises(KeyboardInterrupt):
            convert(path, tmp_path / "out.tar", each, progress=after(3, KeyboardInterrupt()))
        result = convert(path, tmp_path / "out.tar", each)
        assert result.resumed == 2
        assert result.warnings == convert(path, tmp_path / "whole.tar").warnings
        assert "field 'a.pyd' of 3 records" in result.warnings[0]

    def test_file_that_changed_in_its_place(self, tmp_path: Path) -> None:
        """The same places and lengths, another content: only the modification time differs."""
        path = foreign(tmp_path / "their.tar", {f"{n}.txt": b"old" for n in range(9)})
        with pytest.raises(KeyboardInterrupt):
            convert(path, tmp_path / "out.tar", progress=after(5, KeyboardInterrupt()))
        path.write_bytes(path.read_bytes().replace(b"old", b"new"))
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
        assert convert(path, tmp_path / "out.tar").resumed == 0
        assert {record.fields["txt"] for record in records(tmp_path / "out.tar")} == {b"new"}


@pytest.mark.parametrize("name", ["out.lmdb", "out"])
def test_other_targets_leave_nothing(source: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        convert(source, tmp_path / name, progress=after(STOP, KeyboardInterrupt()))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert convert(source, tmp_path / name).resumed == 0


def test_command_says_what_was_there(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.tar", SMALL, progress=after(STOP, KeyboardInterrupt()))
    shutil.copytree(tmp_path / "out.tar.partial", tmp_path / "again.tar.partial")
    assert main(["convert", str(source), str(tmp_path / "out.tar"), "--shard-size", "20kB"]) == 0
    kept = in_full_shards(tmp_path / "out.tar", STOP)
    assert f"{kept} records were there already" in capsys.readouterr().out
    assert main(["convert", str(source), str(tmp_path / "again.tar"), "--json", "--shard-size", "20kB"]) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == kept > 0
