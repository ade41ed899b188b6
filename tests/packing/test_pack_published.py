"""System calls that fail after the result has its final name: it is reported, and the same command cleans up."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from container_sets import in_shards
from PIL import Image
from todays import todays

from iofast import open_reader, pack
from iofast.packing import PackReport

CALLS = ("unlink", "rmdir", "fsync", "open", "stat")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    (folder / "images").mkdir()
    for number in range(6):
        Image.effect_noise((30, 20), number + 10).convert("RGB").save(folder / "images" / f"{number}.jpg")
    pack(folder / "images", folder / "all.tar", shard_records=2, workers=1)
    return folder


class Fault:
    """The `number`th call of `os.<call>` after `is_due` fails with EIO, and each later one if it `lasts`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        number: int,
        is_due: Callable[[], bool],
        *,
        lasts: bool = False,
    ) -> None:
        self.left, self._real, self._is_due, self._lasts = number, getattr(os, call), is_due, lasts
        monkeypatch.setattr(os, call, self)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.left and self._is_due():
            self.left -= not (self._lasts and self.left == 1)
            if not self.left or (self._lasts and self.left == 1):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._real(*args, **keywords)


def _is_there(target: Path) -> bool:
    return any(os.access(target.with_name(target.name + suffix), os.F_OK) for suffix in ("", ".manifest"))


@pytest.mark.parametrize("call", todays(CALLS))
@pytest.mark.parametrize("name", ["out.lmdb", "out.tar"])
def test_a_copy(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    name: str,
) -> None:
    _every_failure(
        lambda target: pack(packed / "all.tar", target, format="keep", check="end", **in_shards(name, 2_000)),
        tmp_path, monkeypatch, caplog, call, name,
    )  # fmt: skip


@pytest.mark.parametrize("call", ["unlink", "fsync"])
def test_a_pack(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    _every_failure(
        lambda target: pack(packed / "images", target, workers=1), tmp_path, monkeypatch, caplog, call, "out.lmdb"
    )


def test_cleaning_up_when_nothing_can_be_asked_of_the_system(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each `stat` fails after publishing: it was an error, "the same command goes on"."""
    target = tmp_path / "out.lmdb"
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "iofast"):
        Fault(patch, "stat", 1, lambda: _is_there(target), lasts=True)
        assert pack(packed / "images", target, workers=1).packed == 6
    assert "is published, but cleaning up failed" in caplog.text
    assert "run the same command again" in caplog.text
    assert pack(packed / "images", target, workers=1).packed == 6
    assert os.listdir(tmp_path) == ["out.lmdb"]


def test_an_empty_folder_that_stays_is_told(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "out.lmdb"
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "iofast"):
        Fault(patch, "rmdir", 1, lambda: _is_there(target))
        assert pack(packed / "images", target, workers=1).packed == 6
    assert f"input/output error; delete {target}.partial" in caplog.text


def _every_failure(
    run: Callable[[Path], PackReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    name: str,
) -> None:
    for number in range(1, 40):
        target = tmp_path / str(number) / name
        target.parent.mkdir()
        partial = target.with_name(f"{name}.partial")
        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "iofast"):
            fault = Fault(patch, call, number, lambda place=target: _is_there(place))  # type: ignore[misc]
            first = run(target)
        assert (first.packed, first.images) == (6, 6)
        assert first.bytes_out == sum(path.stat().st_size for path in target.parent.iterdir() if path.is_file())
        with open_reader(target) as reader:
            assert len(list(reader)) == 6
        if (partial / "publishing").exists():
            assert "is published, but cleaning up failed" in caplog.text
            assert "run the same command again" in caplog.text
            again = run(target)
            assert replace(again, seconds=0) == replace(first, seconds=0, resumed=6, warnings=())
            assert not partial.exists()
        if fault.left:  # there was no such call any more
            assert not partial.exists()
            return
    pytest.fail("the calls never end")
