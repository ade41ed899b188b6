"""Packing while the disk fills, reads fail, and files vanish or change; a short form of `make torture PART=kills`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from container_sets import in_shards
from packing_runs import pack_with
from PIL import Image
from test_pack_containers import NAMES
from todays import todays

from iofast import open_reader, pack
from iofast.errors import DecodeError
from iofast.packing import work
from iofast.packing.origin import read_file
from tools.torture import _packs
from tools.torture._packs import Case


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = _packs.build_faults(tmp_path_factory.mktemp("faults"))
    if library is None:
        pytest.skip("no C compiler: calls cannot be made to fail")
    return library


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    for number in range(40):
        Image.effect_noise((60, 40), number + 10).convert("RGB").save(root / f"{number:02d}.jpg")
    return root


@pytest.mark.parametrize("name", todays(NAMES))
def test_a_disk_that_fills(images: Path, tmp_path: Path, name: str, faults: Path) -> None:
    """From some write on, every write fails: one line, no target, and the same command resumes."""
    case = Case(name, images)
    whole, folder = tmp_path / "whole", tmp_path / "full"
    for each in (whole, folder):
        each.mkdir()
    case.finish(whole)
    for at in (2, 14):
        fault = f"write:{errno.ENOSPC}:{at}:{name}.partial/"
        ended = _packs.run_with(faults, fault, case.command(folder, "--quiet"))
        assert ended.returncode == 1, ended.stderr
        assert "disk is full" in ended.stderr
        assert ended.stderr.count("\n") == 1
        assert not _packs.there(folder / name)
    case.finish(folder)
    case.check(folder, _packs.digests(whole), name)


def test_files_that_cannot_be_read(images: Path, tmp_path: Path, faults: Path) -> None:
    name = "out.lmdb"
    case = Case(name, images)
    command = case.command(tmp_path, "--quiet", "--max-errors", "10%")
    ended = _packs.run_with(faults, f"read:{errno.EIO}:1:3.jpg", command)
    assert ended.returncode == 3, ended.stderr
    lines = [json.loads(line) for line in (tmp_path / f"{name}.errors.jsonl").read_text().splitlines()]
    assert [(line["path"], line["reason"]) for line in lines] == [
        (f"{tens}3.jpg", "the file cannot be read (input/output error)") for tens in range(4)
    ]
    with open_reader(tmp_path / name) as reader:
        assert len(list(reader)) == 36


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(bytes(101)),
        lambda path: path.write_bytes(bytes(50)),
        lambda path: os.utime(path, (1, 1)),
    ],
    ids=["longer", "shorter", "another time"],
)
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(100))
    assert read_file(os.fsencode(path)) == bytes(100)
    real, looks = os.fstat, []

    def fstat(fd: int) -> os.stat_result:
        looks.append(fd)
        if len(looks) == 2:
            change(path)
        return real(fd)

    monkeypatch.setattr("iofast.packing.origin.os.fstat", fstat)
    with pytest.raises(DecodeError, match="changed while it was read"):
        read_file(os.fsencode(path))


def test_a_file_system_that_gives_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "a.bin", os.read
    path.write_bytes(bytes(range(200)))
    monkeypatch.setattr("iofast.packing.origin.os.read", lambda fd, size: real(fd, min(size, 70)))
    assert read_file(os.fsencode(path)) == bytes(range(200))

    def growing(fd: int, size: int) -> bytes:
        with path.open("ab") as file:
            file.write(bytes(9))
        os.utime(path, ns=(1, 1))
        return real(fd, min(size, 70))

    os.utime(path, ns=(1, 1))
    monkeypatch.setattr("iofast.packing.origin.os.read", growing)
    with pytest.raises(DecodeError, match="changed while it was read"):
        read_file(os.fsencode(path))


FAKE = """
import os, sys
from iofast.packing import origin, worker
real = origin.read_file
def read_file(path, **options):
    if os.path.basename(path) == b"07.jpg":
        os.unlink(path)
    return real(path, **options)
origin.read_file = read_file
sys.exit(worker.main())
"""


def test_a_file_that_vanishes(images: Path, tmp_path: Path) -> None:
    source = tmp_path / "images"
    source.mkdir()
    for path in images.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    report = pack_with(source, tmp_path / "out.tar", FAKE, max_errors=1)
    assert (report.packed, report.failed) == (39, 1)
    assert dict(report.errors) == {"the file cannot be read": 1}


def test_the_estimate_of_each_container(images: Path, tmp_path: Path) -> None:
    payloads = sum(path.stat().st_size for path in images.iterdir()) / 40 + 100
    for name in NAMES:
        (tmp_path / name).mkdir()
        pack(images, tmp_path / name / name, **in_shards(name, 1_000_000))
        size = sum(path.stat().st_size for path in (tmp_path / name).iterdir())
        assert 0.7 < work.container_size(Path(name).suffix, 40, payloads) / size < 1.6
