"""Packing damaged images: an error budget, holes in the keys, and a file that lists them."""

import gzip
import json
import os
from pathlib import Path

import pytest
from folder_images import few
from kernel_images import jpeg, photo
from PIL import Image

from iofast import FastDataset
from iofast.containers.lmdb import LmdbReader
from iofast.errors import DecodeError, ErrorBudgetError, SourceError
from iofast.packing import pack
from iofast.packing.sample import unzipped


class TestBadImages:
    def test_failures_within_the_budget_leave_holes(self, tmp_path: Path) -> None:
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
        with pytest.raises(
            ErrorBudgetError,
            match=r"2 of 9 images failed: expected at most 1, found .* give a larger max_errors=, and the same command",
        ) as caught:
            pack(source, tmp_path / "out.lmdb", max_errors=1)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out.lmdb").exists()
        assert len((tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines()) == 2

    def test_resumed_with_a_larger_budget_or_mended_images(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=150, bad=2)
        with pytest.raises(ErrorBudgetError):
            pack(source, tmp_path / "out.lmdb", max_errors=0)
        Image.new("RGB", (8, 8)).save(source / "000.png")
        report = pack(source, tmp_path / "out.lmdb", max_errors=1)
        assert (report.packed, report.failed) == (151, 1)
        assert len((tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines()) == 1

    def test_truncated_jpegs_are_packed_if_wanted(self, tmp_path: Path) -> None:
        source, whole = few(tmp_path / "images", good=1), jpeg(photo(64, 48))
        (source / "a.jpg").write_bytes(whole[:-300])
        (source / "b.jpg").write_bytes(whole[:-2])
        (source / "c.jpg").write_bytes(whole)
        assert pack(source, tmp_path / "out.lmdb").failed == 2
        assert pack(source, tmp_path / "out.lmdb", truncated="accept", overwrite=True).failed == 0
        with LmdbReader(tmp_path / "out.lmdb") as reader:
            assert reader.manifest.recipe["truncated"] == "accept"
            how = [json.loads(record.fields["json"])["packed"] for record in reader]
        assert how == ["kept", "encoded", "rewritten", "kept"]

    @pytest.mark.parametrize("kind", ["folder", "list"])
    def test_those_of_a_finished_set_are_tried_again(self, tmp_path: Path, kind: str) -> None:
        """By the same command with another target; both sets are one dataset then."""
        root = tmp_path / "images"
        for number in range(12):
            name = root / "cab"[number % 3] / f"{number}.jpg"
            name.parent.mkdir(parents=True, exist_ok=True)
            name.write_bytes(jpeg(photo(40, 30, number))[: -300 if number in (1, 5) else None])
            name.with_suffix(".txt").write_text(str(number))
        source, given = root, {"shuffle": 3, "split": "val=0.3", "fields": "txt"}
        if kind == "list":
            source = root / "list.csv"
            rows = [f"{path.relative_to(root)},{path.parent.name},{path.stem}" for path in root.glob("*/*.jpg")]
            source.write_text("\n".join(["path,label,txt", *rows]))
            given |= {"fields": ()}
        first = pack(source, tmp_path / "first.lmdb", **given)
        assert first.failed == 2
        (root / "a" / "1.jpg").write_bytes(jpeg(photo(40, 30, 1)))
        with pytest.raises(FileNotFoundError, match=r"the list .* does not exist"):
            pack(source, tmp_path / "again.lmdb", only=str(tmp_path / "again.lmdb.errors.jsonl"), **given)
        again = pack(source, tmp_path / "again.lmdb", only=first.errors_file, **given)
        assert (again.images, again.packed, again.classes) == (2, 1, 3)
        assert json.loads((tmp_path / "again.lmdb.errors.jsonl").read_text())["path"] == "b/5.jpg"
        (root / "b" / "5.jpg").write_bytes(jpeg(photo(40, 30, 5)))
        pack(source, tmp_path / "last.lmdb", only=again.errors_file, **given)
        pack(source, tmp_path / "whole.lmdb", **given)
        fields = {"fields": ["label", "txt" if kind == "folder" else "txt.txt"]}
        whole, joined = tmp_path / "whole.lmdb", [tmp_path / f"{name}.lmdb" for name in ("first", "again", "last")]
        for split in ("train", "val"):
            of_whole, of_parts = (sorted(map(str, FastDataset(each, split, **fields))) for each in (whole, joined))
            assert of_whole == of_parts
        (root / "b" / "5.jpg").unlink()
        with pytest.raises(SourceError, match=r"none of the 1 images in the list .* is in"):
            pack(root, tmp_path / "none.lmdb", only=again.errors_file)

    def test_an_old_file_of_errors_goes_when_there_are_none(self, tmp_path: Path) -> None:
        (tmp_path / "out.lmdb.errors.jsonl").write_text("{}\n")
        assert pack(few(tmp_path / "images", good=2), tmp_path / "out.lmdb").errors_file is None
        assert not (tmp_path / "out.lmdb.errors.jsonl").exists()

    def test_no_container_if_all_images_fail(self, tmp_path: Path) -> None:
        source = few(tmp_path / "images", good=0, bad=3)
        with pytest.raises(SourceError, match="no image of 3"):
            pack(source, tmp_path / "out.lmdb", max_errors="100%")
        assert not (tmp_path / "out.lmdb").exists()

    def test_pipes_and_missing_files_are_failed_images(self, tmp_path: Path) -> None:
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
        assert list(report.errors) == ["the image is larger than the limit on pixels"]


class TestGzip:
    """Gzipped images with any number of members."""

    def test_members(self) -> None:
        parts = [b"", b"x" * 511, bytes(range(256)) * 5000, b"", b"end"]
        packed = b"".join(map(gzip.compress, parts))
        assert unzipped(packed) == b"".join(parts)
        assert unzipped(packed + bytes(9)) == b"".join(parts)

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (gzip.compress(bytes(99), mtime=0)[:-1], "truncated"),
            (gzip.compress(b"x", mtime=0)[:8], "truncated"),
            (gzip.compress(b"x" * 99, mtime=0)[:-6] + bytes(6), "damaged"),
            (gzip.compress(b"x" * 99, mtime=0) + b"tail", "damaged"),
            (gzip.compress(bytes(1 << 20), mtime=0), "unpacks to more than 0 MiB"),
        ],
    )
    def test_damage(self, data: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("iofast.packing.sample.MAX_UNZIPPED", 1 << 19)
        with pytest.raises(DecodeError, match=reason):
            unzipped(data)
