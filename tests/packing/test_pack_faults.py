"""System calls that fail while packing and after publishing, and files that change; more in `make torture`."""

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from container_sets import in_shards
from folder_images import few
from packing_runs import digests
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
    case.check(folder, digests(whole), name)


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


def test_the_estimate_of_each_container(images: Path, tmp_path: Path) -> None:
    payloads = sum(path.stat().st_size for path in images.iterdir()) / 40 + 100
    for name in NAMES:
        (tmp_path / name).mkdir()
        pack(images, tmp_path / name / name, **in_shards(name, 1_000_000))
        size = sum(path.stat().st_size for path in (tmp_path / name).iterdir())
        assert 0.7 < work.container_size(Path(name).suffix, 40, payloads) / size < 1.6


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = few(tmp_path_factory.mktemp("published") / "images", good=6).parent
    pack(folder / "images", folder / "all.tar", shard_records=2, workers=1)
    return folder


@pytest.mark.parametrize(
    ("name", "call", "words"),
    [
        ("out.lmdb", "fsync", "run the same command again"),
        ("out.tar", "unlink", "run the same command again"),
        ("out.lmdb", "stat", "run the same command again"),  # it was an error, "the same command goes on"
        ("out.lmdb", "rmdir", "input/output error; delete {target}.partial"),
    ],
)
def test_cleaning_up_that_fails(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    call: str,
    words: str,
) -> None:
    """The target is published and reported so, and the same command removes what is left."""
    target, real = tmp_path / name, getattr(os, call)
    copied: dict[str, Any] = {"format": "keep", "check": "end", **in_shards(name, 2_000)}
    source, options = (packed / "all.tar", copied) if name == "out.tar" else (packed / "images", {"workers": 1})

    def fail(*arguments: Any, **keywords: Any) -> Any:
        if any(os.access(f"{target}{suffix}", os.F_OK) for suffix in ("", ".manifest")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments, **keywords)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "iofast"):
        patch.setattr(os, call, fail)
        first = pack(source, target, **options)
    assert (first.packed, first.images) == (6, 6)
    assert "is published, but cleaning up failed" in caplog.text
    assert words.format(target=target) in caplog.text
    with open_reader(target) as reader:
        assert len(list(reader)) == 6
    if call != "rmdir":
        again = pack(source, target, **options)
        assert replace(again, seconds=0) == replace(first, seconds=0, resumed=6, warnings=())
        assert not target.with_name(f"{name}.partial").exists()
