"""Packing images of which some are damaged: a budget of errors, holes in the keys, a file that lists them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from folder_images import few
from PIL import Image

from iofast.containers.lmdb import LmdbReader
from iofast.errors import ErrorBudgetError, SourceError
from iofast.packing import pack


class TestBadImages:
    def test_fewer_than_allowed_leave_holes(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=7, bad=2)
        report = pack(source, tmp_path / "out.lmdb", max_errors=2)
        assert (report.packed, report.failed, report.status) == (7, 2, 3)
        assert sum(report.errors.values()) == 2
        with LmdbReader(tmp_path / "out.lmdb") as reader:
            assert [record.key for record in reader] == [f"{i:08d}" for i in range(2, 9)]
        lines = [json.loads(line) for line in (tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines()]
        assert [(line["key"], line["path"]) for line in lines] == [("00000000", "000.png"), ("00000001", "001.png")]
        assert all(line["reason"] for line in lines)

    def test_more_than_allowed_stop_the_run(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=7, bad=2)
        with pytest.raises(ErrorBudgetError, match="max_errors 1 allows 1") as caught:
            pack(source, tmp_path / "out.lmdb", max_errors=1)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out.lmdb").exists()
        assert len((tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines()) == 2

    def test_a_larger_budget_or_mended_images_go_on_from_there(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=150, bad=2)
        with pytest.raises(ErrorBudgetError):
            pack(source, tmp_path / "out.lmdb", max_errors=0)
        Image.new("RGB", (8, 8)).save(source / "000.png")
        report = pack(source, tmp_path / "out.lmdb", max_errors=1)
        assert (report.packed, report.failed) == (151, 1)
        assert len((tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines()) == 1

    def test_an_old_file_of_errors_goes_when_there_are_none(self, tmp_path: Path) -> None:
        (tmp_path / "out.lmdb.errors.jsonl").write_text("{}\n")
        assert pack(few(tmp_path / "images", good=2), tmp_path / "out.lmdb").errors_file is None
        assert not (tmp_path / "out.lmdb.errors.jsonl").exists()

    def test_if_all_fail_there_is_no_container(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=0, bad=3)
        with pytest.raises(SourceError, match="not one of 3"):
            pack(source, tmp_path / "out.lmdb", max_errors="100%")
        assert not (tmp_path / "out.lmdb").exists()

    def test_what_is_no_file_fails_and_holds_nobody_up(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=3)
        os.mkfifo(source / "pipe.jpg")
        (source / "empty.jpg").touch()
        (source / "gone.jpg").symlink_to(tmp_path / "nowhere")
        report = pack(source, tmp_path / "out.lmdb", max_errors=3)
        reasons = {}
        for line in (tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines():
            reasons[json.loads(line)["path"]] = json.loads(line)["reason"]
        assert report.packed == 3
        assert reasons == {
            "empty.jpg": "the file is empty",
            "gone.jpg": "the file cannot be read (no such file or directory)",
            "pipe.jpg": "not a regular file",
        }

    def test_an_image_above_the_limit_fails(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=3)
        Image.new("RGB", (100, 100)).save(source / "large.png")
        report = pack(source, tmp_path / "out.lmdb", max_errors=1, max_pixels=9999, format="jpeg")
        assert list(report.errors) == ["the image is larger than the limit on pixels or bytes"]
