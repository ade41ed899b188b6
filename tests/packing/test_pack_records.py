"""Packing the records of containers equals packing the same files from a folder."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import SUFFIXES, build, in_shards, mask, picture, records
from foreign_lmdbs import settle
from foreign_lmdbs import write as write_lmdb
from packing_runs import interrupt, pack_with, sha256
from tar_sets import foreign
from tfrecord_messages import write as write_tfrecord

from iofast import open_reader, pack
from iofast.cli import main
from iofast.errors import ContainerError, OptionError, SourceError, TargetError
from iofast.record import Record

pytestmark = pytest.mark.filterwarnings("ignore:images without a file")  # not all have a mask and a caption

COUNT = 23
FIELDS = "seg.png,txt"
SMALL: dict[str, Any] = {"resize": 24, "workers": 1}


def file_of(number: int) -> tuple[str, bytes]:
    """A path, and the file there: JPEGs, some turned, PNGs and WebPs of two classes."""
    kind = ("jpg", "jpg", "png", "webp")[number % 4]
    turned = 6 if number % 8 == 1 else 1
    data = picture(number, "jpeg" if kind == "jpg" else kind, orientation=turned)
    return f"{('train', 'val')[number % 5 == 4]}/{('cat', 'dog')[number % 2]}/{number:03d}.{kind}", data


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with splits, classes, masks and captions."""
    root = tmp_path_factory.mktemp("images")
    for number in range(COUNT):
        path, data = file_of(number)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        if number % 3 == 0:
            (root / path).with_suffix(".seg.png").write_bytes(mask(number))
        if number % 4 == 0:
            (root / path).with_suffix(".txt").write_text(f"number {number}")
    return root


@pytest.fixture(scope="module")
def direct(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The results of packing the folder, by name of the options."""
    root = tmp_path_factory.mktemp("direct")
    pack(images, root / "small.lmdb", fields=FIELDS, **SMALL)
    pack(images, root / "kept.lmdb", fields=FIELDS, workers=1)
    pack(images, root / "mixed.lmdb", fields=FIELDS, shuffle=3, format="webp", **SMALL)
    return {path.stem: path for path in root.glob("*.lmdb")}


def path_of(record: Record) -> str:
    return str(json.loads(record.fields["json"])["path"])


class TestOurs:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_equal_to_packing_the_folder(
        self, images: Path, direct: dict[str, Path], tmp_path: Path, suffix: str
    ) -> None:
        source = tmp_path / f"set{suffix}"
        pack(images, source, fields=FIELDS, **in_shards(source, 20_000), workers=1)
        made = pack(source, tmp_path / "small.lmdb", fields=FIELDS, **SMALL)
        assert (made.images, made.packed, made.failed, made.classes) == (COUNT, COUNT, 0, 2)
        assert made.splits == {"train": 19, "val": 4}
        assert sha256(tmp_path / "small.lmdb") == sha256(direct["small"])
        pack(source, tmp_path / "kept.lmdb", fields=FIELDS, workers=2)
        assert sha256(tmp_path / "kept.lmdb") == sha256(direct["kept"])
        pack(source, tmp_path / "mixed.lmdb", fields=FIELDS, shuffle=3, format="webp", **SMALL)
        assert sha256(tmp_path / "mixed.lmdb") == sha256(direct["mixed"])

    def test_all_fields_come_along_or_those_that_are_named(self, direct: dict[str, Path], tmp_path: Path) -> None:
        pack(direct["kept"], tmp_path / "all.lmdb", **SMALL)
        wanted = [dict(record.fields) for record in records(direct["small"])]
        assert [dict(record.fields) for record in records(tmp_path / "all.lmdb")] == wanted
        pack(direct["kept"], tmp_path / "some.lmdb", fields="txt=caption.txt", **SMALL)
        with open_reader(tmp_path / "some.lmdb") as reader:
            assert reader.manifest.fields == ("caption.txt", "cls", "jpg", "json")
        with pytest.raises(OptionError, match=r"fields: 'depth\.png' is not a field of the records, which have cls, j"):
            pack(direct["kept"], tmp_path / "none.lmdb", fields="depth.png", **SMALL)

    def test_json_with_further_members_is_kept_as_a_field(self, tmp_path: Path) -> None:
        """`container_sets` writes boxes into `json`: they come along, and can follow the image."""
        source = build(tmp_path / "set.lmdb", 6, splits=False)
        pack(source, tmp_path / "out.lmdb", resize=20, boxes="meta.json", workers=1)
        first = records(tmp_path / "out.lmdb")[0]
        assert json.loads(first.fields["json"])["path"] == "cat/000.jpg"
        assert json.loads(first.fields["meta.json"]) == {"path": "cat/000.jpg", "boxes": [[2, 3, 10, 15]]}
        pack(tmp_path / "out.lmdb", tmp_path / "again.lmdb", resize=20, boxes="meta.json", workers=1)
        assert records(tmp_path / "again.lmdb")[0].fields["meta.json"] == first.fields["meta.json"]

    def test_raw_pixels(self, images: Path, direct: dict[str, Path], tmp_path: Path) -> None:
        pack(images, tmp_path / "raw.lmdb", format="rgb", fields=FIELDS, workers=1)
        with pytest.raises(OptionError, match="contains raw pixels"):
            pack(tmp_path / "raw.lmdb", tmp_path / "out.lmdb", workers=1)
        pack(tmp_path / "raw.lmdb", tmp_path / "out.lmdb", format="png", resize=24, workers=1)
        made = records(tmp_path / "out.lmdb")
        assert [path_of(record) for record in made] == [path_of(record) for record in records(direct["small"])]
        assert json.loads(made[0].fields["json"])["original_width"] == 48
        pack(tmp_path / "raw.lmdb", tmp_path / "back.lmdb", format="rgb", fields=FIELDS, workers=1)
        assert [each.fields["rgb"] for each in records(tmp_path / "back.lmdb")] == [
            each.fields["rgb"] for each in records(tmp_path / "raw.lmdb")
        ]


NUMBERS = range(12)
PICTURES = [picture(number) for number in NUMBERS]


def tar(folder: Path) -> str:
    for shard in range(3):
        members = [(f"{n:03d}.jpg", PICTURES[n]) for n in range(4 * shard, 4 * shard + 4)]
        foreign(folder / f"their-{shard:06d}.tar", members)
    return os.fspath(folder / "their-{000000..000002}.tar")


def tfrecord(folder: Path) -> str:
    for shard in range(2):
        numbers = range(6 * shard, 6 * shard + 6)
        write_tfrecord(folder / f"x-{shard:05d}-of-00002", [{"image/encoded": PICTURES[n]} for n in numbers])
    return os.fspath(folder / "x-*-of-*")


def lmdb_file(folder: Path) -> str:
    return os.fspath(write_lmdb(folder / "their", {b"%03d.jpg" % n: PICTURES[n] for n in NUMBERS}, folder=True))


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A folder of the pictures, and their packed JPEGs."""
    root = tmp_path_factory.mktemp("twelve")
    for number in NUMBERS:
        (root / f"{number:03d}.jpg").write_bytes(PICTURES[number])
    target = tmp_path_factory.mktemp("out") / "out.lmdb"
    pack(root, target, **SMALL)
    return root, [record.fields["jpg"] for record in records(target)]


@pytest.mark.parametrize("make", [tar, tfrecord, lmdb_file])
class TestPackForeign:
    def test_payloads_are_those_of_a_folder(
        self, twelve: tuple[Path, list[bytes]], tmp_path: Path, make: Callable[[Path], str]
    ) -> None:
        source = make(tmp_path)
        for workers in (1, 2):
            report = pack(source, tmp_path / f"{workers}.lmdb", resize=24, workers=workers)
            assert (report.images, report.packed, report.bytes_in) == (12, 12, sum(map(len, PICTURES)))
        assert [record.fields["jpg"] for record in records(tmp_path / "1.lmdb")] == twelve[1]
        assert sha256(tmp_path / "1.lmdb") == sha256(tmp_path / "2.lmdb")
        pack(source, tmp_path / "kept.lmdb", workers=1)
        assert [record.fields["jpg"] for record in records(tmp_path / "kept.lmdb")] == PICTURES
        dry = pack(source, tmp_path / "dry.lmdb", dry_run=True, **SMALL)
        assert dry.estimate is not None
        assert dry.estimate.sample == 12
        assert not (tmp_path / "dry.lmdb").exists()


class TestPackFields:
    def test_sidecars_labels_and_keys(self, tmp_path: Path) -> None:
        members = [
            ("a/x.jpg", picture(1)),
            ("a/x.cls", b"2"),
            ("a/x.json", b'{"url": "there", "boxes": [[4, 6, 20, 30]]}'),
            ("a/x.png", mask(1)),
            ("a/x.extra.pyd", b"(cos\nsystem\n"),
            ("a/y.png", picture(2, "png")),
            ("a/y.cls", b"tabby"),
            ("a/y.meta.json", b"{}"),
            ("a/z.bmp", picture(3, "bmp")),
        ]
        source = foreign(tmp_path / "their.tar", members)
        with pytest.warns(UserWarning, match="field 'extra.pyd' of 1 records is pickled data"):
            pack(source, tmp_path / "out.lmdb", resize=20, boxes="meta2.json", workers=1)
        x, y, z = records(tmp_path / "out.lmdb")
        assert sorted(x.fields) == ["cls", "jpg", "json", "mask.png", "meta2.json"]
        assert json.loads(x.fields["json"])["path"] == "a/x"
        assert json.loads(x.fields["meta2.json"]) == {"url": "there", "boxes": [[2, 3, 10, 15]]}
        assert (y.fields["cls.txt"], y.fields["meta.json"]) == (b"tabby", b"{}")
        assert sorted(z.fields) == ["jpg", "json"]

    def test_options_for_foreign_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        members = [(f"{n}.{kind}", data) for n in range(3) for kind, data in (("foto", picture(n)), ("k", b"%d" % n))]
        source = os.fspath(foreign(tmp_path / "their.tar", members))
        names = "image = foto, label=k"
        assert main(["pack", source, str(tmp_path / "a.lmdb"), "--resize", "24", "--names", names, "--quiet"]) == 0
        pack(source, tmp_path / "b.lmdb", foreign={"names": {"image": "foto", "label": "k"}}, **SMALL)
        assert sha256(tmp_path / "a.lmdb") == sha256(tmp_path / "b.lmdb")
        assert [record.fields["cls"] for record in records(tmp_path / "a.lmdb")] == [b"0", b"1", b"2"]
        assert main(["pack", source, str(tmp_path / "c.lmdb"), "--names", "image"]) == 2
        assert "names must be pairs with commas" in capsys.readouterr().err


class TestRecordFailures:
    def test_a_damaged_payload_is_a_failed_image(self, tmp_path: Path) -> None:
        source = build(tmp_path / "set.lmdb")
        with open_reader(source) as reader:
            located = reader.locate(np.arange(24))
        data = bytearray(source.read_bytes())
        data[int(located.offset[9]) + 20] ^= 1
        source.write_bytes(data)
        report = pack(source, tmp_path / "out.lmdb", max_errors=1, **SMALL)
        assert (report.packed, report.failed, dict(report.errors)) == (23, 1, {"the record is damaged": 1})
        line = json.loads((tmp_path / "out.lmdb.errors.jsonl").read_text())
        assert (line["key"], line["path"]) == ("00000009", "00000009")
        assert f"{source}: 00000009" in line["reason"]

    def test_the_reason_names_the_shard_of_a_failed_image(self, tmp_path: Path) -> None:
        source = tar(tmp_path)
        foreign(tmp_path / "their-000001.tar", [("a.jpg", b"no image"), ("b.txt", b"none"), ("c.jpg", PICTURES[5])])
        report = pack(source, tmp_path / "out.lmdb", max_errors=2, **SMALL)
        assert (report.packed, report.failed) == (9, 2)
        lines = [json.loads(line) for line in (tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines()]
        assert [line["path"] for line in lines] == ["a", "b"]
        assert all(f"{tmp_path}/their-000001.tar: " in line["reason"] for line in lines)
        assert lines[1]["reason"].startswith("the record has no image (its fields: txt)")

    def test_a_source_that_a_worker_finds_replaced_ends_the_run(self, tmp_path: Path) -> None:
        program = (
            "import sys; from iofast.containers import targets; from iofast.packing import worker\n"
            "targets.state_of = lambda *_: 'another'\nsys.exit(worker.main())"
        )
        with pytest.raises(SourceError, match="was changed while it was packed"):
            pack_with(build(tmp_path / "set.lmdb"), tmp_path / "out.lmdb", program, resize=24)

    def test_invalid_sources_and_options(self, images: Path, tmp_path: Path) -> None:
        source = build(tmp_path / "set.lmdb")
        impossible: list[tuple[Any, str, dict[str, Any], str]] = [
            (source, "out.lmdb", {"path_column": "x"}, "columns are a manifest's, found the container"),
            (source, "out.lmdb", {"mask_column": "x"}, "columns are a manifest's"),
            (source, "out.lmdb", {"class_order": "natural"}, "class_order natural is for folders and manifests"),
            (source, "set.lmdb", {"overwrite": True}, "is, or lies in, the source"),
            (source, "set.lmdb", {"overwrite": True, "format": "keep", "check": "end"}, "is, or lies in, the source"),
            (source, "out.lmdb", {"foreign": {"label_base": 1}}, "is for other programs' tar"),
            (images, "out.lmdb", {"foreign": {"label_base": 1}}, "is for other programs' tar"),
            (images, "out.lmdb", {"foreign": {"nothing": 1}}, "foreign must be ForeignOptions"),
        ]
        for place, name, options, words in impossible:
            with pytest.raises(OptionError, match=words):
                pack(place, tmp_path / name, workers=1, **options)
        with pytest.raises(SourceError, match="contains no record"):
            pack(build(tmp_path / "empty.lmdb", 0), tmp_path / "out.lmdb", workers=1)
        with pytest.raises(SourceError, match="has splits already"):
            pack(source, tmp_path / "out.lmdb", workers=1, split="val=0.5")
        for name, kind in (("gone.tar", SourceError), ("gone-*.tar", SourceError), ("x.lmdb", ContainerError)):
            (tmp_path / "x.lmdb").write_bytes(b"no LMDB")
            with pytest.raises(kind):
                pack(tmp_path / name, tmp_path / "out.lmdb", workers=1)


def test_an_interrupted_run_goes_on_if_the_source_is_the_same(tmp_path: Path) -> None:
    members = {f"{number:03d}.jpg": PICTURES[number] for number in NUMBERS}
    source, target = foreign(tmp_path / "their.tar", members), tmp_path / "out.tar"
    settle(source)
    interrupt(source, target, 3, resize=24, shard_records=2)
    before = source.stat().st_mtime_ns
    for time, held in ((before + 10**9, False), (before, True)):
        os.utime(source, ns=(0, time))
        with contextlib.nullcontext() if held else pytest.raises(TargetError, match="the source as it was before it"):
            report = pack(source, target, shard_records=2, **SMALL)
    assert 0 < report.resumed < 12
    assert report.bytes_in == sum(map(len, PICTURES))
    assert [record.fields["jpg"] for record in records(target)]
