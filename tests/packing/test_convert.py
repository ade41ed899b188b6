"""Copies of containers: equal records between all formats, legal fields, and no incomplete target."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from container_sets import (
    CLASSES,
    COUNT,
    SUFFIXES,
    build,
    convert,
    fields_of,
    in_shards,
    picture,
    records,
    split_of,
)
from packing_runs import interrupt
from tar_sets import foreign

from iofast.checking import verify
from iofast.cli import main
from iofast.errors import ContainerError, OptionError, SourceError, TargetError
from iofast.opening import open_reader
from iofast.record_writer import open_writer


def small(target: Path) -> dict[str, int]:
    return in_shards(target, 20_000)


def tree_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their relative paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=SUFFIXES)
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return build(tmp_path / "source" / f"set{request.param}")


class TestContainers:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_same_records(self, container: Path, suffix: str, tmp_path: Path) -> None:
        target = tmp_path / f"out{suffix}"
        result = convert(container, target, **small(target))
        with open_reader(container) as before, open_reader(target) as after:
            assert result.packed == COUNT
            names = ("fields", "splits", "classes", "class_order", "recipe", "seed", "key_width", "count")
            for name in ("fingerprint", *names):
                assert getattr(before.manifest, name) == getattr(after.manifest, name), name
        assert records(target) == records(container)
        assert verify(target).whole
        assert not (tmp_path / f"out{suffix}.partial").exists()

    def test_there_and_back_gives_equal_files(self, container: Path, tmp_path: Path) -> None:
        other = tmp_path / ("other.lmdb" if container.suffix != ".lmdb" else "other.tar")
        same = {"shard_records": 5} if container.suffix != ".lmdb" else {}
        for folder in ("there", "back"):
            (tmp_path / folder).mkdir()
        convert(container, tmp_path / "there" / container.name, **same)
        convert(tmp_path / "there" / container.name, other)
        convert(other, tmp_path / "back" / container.name, **same)
        assert tree_of(tmp_path / "back") == tree_of(tmp_path / "there")

    def test_holes_and_wide_keys_stay(self, tmp_path: Path) -> None:
        members = {f"{number:012d}.txt": b"%d" % number for number in (3, 7, 900)}
        path = foreign(tmp_path / "their.tar", members)
        convert(path, tmp_path / "out.tfrecord")
        assert [record.key for record in records(tmp_path / "out.tfrecord")] == [
            "000000000003",
            "000000000007",
            "000000000900",
        ]
        convert(tmp_path / "out.tfrecord", tmp_path / "out.lmdb")
        assert records(tmp_path / "out.lmdb") == records(tmp_path / "out.tfrecord")

    def test_without_records(self, tmp_path: Path) -> None:
        convert(build(tmp_path / "empty.lmdb", 0), tmp_path / "empty.tar")
        assert records(tmp_path / "empty.tar") == []

    def test_damaged_payload_ends_it(self, tmp_path: Path) -> None:
        path = build(tmp_path / "set.lmdb")
        with open_reader(path) as reader:
            located = reader.locate(np.arange(COUNT))
        data = bytearray(path.read_bytes())
        data[int(located.offset[9]) + 20] ^= 1
        path.write_bytes(data)
        with pytest.raises(ContainerError, match=r"00000009: .* CRC32C differs"):
            convert(path, tmp_path / "out.tar")
        assert [each.name for each in tmp_path.iterdir()] == ["set.lmdb"]


class TestForeign:
    def test_keys_labels_and_formats(self, tmp_path: Path) -> None:
        members = [
            ("a/x.jpg", picture(1)),
            ("a/x.cls", b"2\n"),
            ("a/x.json", b' {"w": 1.50, "label": 2}'),
            ("a/y.jpg", picture(2, "png")),  # a PNG in the field jpg
            ("a/y.cls", b"tabby"),
            ("a/z.jpg", picture(3)),
            ("a/z.json", b"[1, 2]"),
            ("a/z.extra.pyd", b"(cos\nsystem\n"),
        ]
        convert_to = tmp_path / "out.lmdb"
        result = convert(foreign(tmp_path / "their.tar", members), convert_to)
        x, y, z = records(convert_to)
        assert x.fields == {"cls": b"2", "jpg": picture(1), "json": b'{"key":"a/x","w": 1.50, "label": 2}'}
        assert y.fields == {"cls.txt": b"tabby", "png": picture(2, "png"), "json": b'{"key":"a/y"}'}
        assert z.fields == {"jpg": picture(3), "json": b"[1, 2]", "key.txt": b"a/z"}
        assert any("pickled" in warning for warning in result.warnings)
        with open_reader(convert_to) as reader:
            located = reader.locate(np.arange(3))
            assert located.label.tolist() == [2, -1, -1]
            assert located.width.tolist() == [48, 48, 48]
        assert verify(convert_to).whole

    def test_no_folder_of_its_own_is_read_twice(self, tmp_path: Path) -> None:
        path = build(tmp_path / "set.tar")
        with pytest.raises(OptionError, match="source"):
            convert(path, path, overwrite=True)


class TestFolders:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_round_trip(self, tmp_path: Path, suffix: str) -> None:
        """A tree of files into a container and out again: the same tree, byte by byte."""
        tree = {}
        for number in range(COUNT):
            kind = "png" if number % 5 == 4 else "jpg"
            name = f"{split_of(number)}/{CLASSES[number % 3]}/sub/{number:03d}.{kind}"
            tree[name] = fields_of(number)[kind]
            (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "images" / name).write_bytes(tree[name])
        convert(tmp_path / "images", tmp_path / f"set{suffix}")
        convert(tmp_path / f"set{suffix}", f"{tmp_path}/again/")
        found = tree_of(tmp_path / "again")
        assert found == tree
        with open_reader(tmp_path / f"set{suffix}") as reader:
            assert reader.manifest.classes == CLASSES
            assert list(reader.manifest.splits) == ["train", "val"]

    def test_fields_beside_the_image(self, tmp_path: Path) -> None:
        convert(build(tmp_path / "set.lmdb"), f"{tmp_path}/out/")
        assert (tmp_path / "out/train/cat/000.seg.png").read_bytes() == fields_of(0)["seg.png"]
        assert (tmp_path / "out/train/cat/000.txt").read_bytes() == b"number 0"
        assert (tmp_path / "out/train/cat/000.json").read_bytes() == fields_of(0)["json"]
        assert not (tmp_path / "out/train/cat/000.cls").exists()

    @pytest.mark.parametrize(
        "path",
        ["/etc/passwd", "../x.jpg", "a/../../x.jpg", "a\0.jpg", "a//b.jpg", "./x.jpg", "x\ud800.jpg", "a" * 300, 7, ""],
    )
    def test_unsafe_paths_are_not_taken(self, tmp_path: Path, path: object) -> None:
        with open_writer(tmp_path / "set.lmdb", classes=["c"]) as writer:
            writer.write({"jpg": picture(1), "cls": 0, "json": json.dumps({"path": path})})
        convert(tmp_path / "set.lmdb", f"{tmp_path}/deep/../out/")
        assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.jpg")] == ["out/c/00000000.jpg"]

    def test_names_that_are_taken_get_the_key(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "set.lmdb") as writer:
            for number, path in enumerate(("x.jpg", "x.jpg", "x.jpg/y.jpg", "x.png")):
                writer.write({"jpg": picture(number), "txt": f"{number}", "json": {"path": path}})
        convert(tmp_path / "set.lmdb", f"{tmp_path}/out/")
        names = tree_of(tmp_path / "out")
        images = {"x.jpg": 0, "00000001.jpg": 1, "00000002.jpg": 2, "00000003.png": 3}
        texts = {"x.txt": b"0", "00000001.txt": b"1", "00000002.txt": b"2", "00000003.txt": b"3"}
        assert names == {name: picture(number) for name, number in images.items()} | texts

    def test_suffix_of_what_was_encoded_anew(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"jpg": picture(1), "json": {"path": "a.png", "packed": "resized"}})
            writer.write({"jpg": picture(2), "json": {"path": "b.png", "packed": "kept"}})
        convert(tmp_path / "set.lmdb", f"{tmp_path}/out/")
        assert sorted(os.listdir(tmp_path / "out")) == ["a.png.jpg", "b.png"]

    def test_empty_classes_and_their_order_stay(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "set.lmdb", classes=["z", "a", "empty"]) as writer:
            writer.write({"jpg": picture(1), "cls": 1})
        convert(tmp_path / "set.lmdb", f"{tmp_path}/out/")
        assert (tmp_path / "out" / "classes.txt").read_text() == "z\na\nempty\n"
        assert (tmp_path / "out" / "empty").is_dir()

    @pytest.mark.parametrize("name", ["a/b", "..", "", "x\0"])
    def test_class_that_is_no_folder_name(self, tmp_path: Path, name: str) -> None:
        with open_writer(tmp_path / "set.lmdb", classes=[name]) as writer:
            writer.write({"jpg": picture(1), "cls": 0})
        with pytest.raises(ContainerError, match="cannot be the name of a folder"):
            convert(tmp_path / "set.lmdb", f"{tmp_path}/out/")
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.partial").exists()

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        path = build(tmp_path / "set.lmdb")
        (tmp_path / "out").mkdir()
        convert(path, f"{tmp_path}/out/")  # an empty folder may stand there
        with pytest.raises(TargetError, match="exists already"):
            convert(path, f"{tmp_path}/out/")
        with pytest.raises(OptionError, match="never overwritten"):
            convert(path, f"{tmp_path}/out/", overwrite=True)
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(TargetError, match="exists already"):
            convert(path, f"{tmp_path}/link/")

    def test_records_without_images(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "set.lmdb", classes=["c"]) as writer:
            writer.write({"cls": 0})
            writer.write({"txt": "a", "json": {"path": "x/y.txt"}})
        convert(tmp_path / "set.lmdb", f"{tmp_path}/out/")
        found = tree_of(tmp_path / "out")
        assert found == {"c/00000000.cls": b"0", "x/y.txt": b"a"}
        with pytest.raises(SourceError, match="contains no record"):
            convert(build(tmp_path / "empty.lmdb", 0), f"{tmp_path}/none/")

    def test_raw_pixels_have_no_file_format(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "raw.lmdb") as writer:
            writer.write({"rgb": bytes(12), "json": {"width": 2, "height": 2}})
        with pytest.raises(ContainerError, match="raw pixels"):
            convert(tmp_path / "raw.lmdb", f"{tmp_path}/out/")


class TestTargets:
    def test_overwrite(self, tmp_path: Path) -> None:
        for suffix in SUFFIXES:
            target = tmp_path / f"out{suffix}"
            convert(build(tmp_path / f"a{suffix}", 5), target)
            other = build(tmp_path / f"b{suffix}", 9)
            with pytest.raises(TargetError, match="exists already"):
                convert(other, target)
            assert len(records(target)) == 5
            convert(other, target, overwrite=True)
            assert len(records(target)) == 9

    def test_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is left, and a set that was to be replaced is still there."""
        path, target = build(tmp_path / "set.lmdb"), build(tmp_path / "out.tar", 3)
        before = sorted(tmp_path.iterdir())

        def full(*_: object) -> None:
            raise TargetError("too little disk space")

        monkeypatch.setattr(sys.modules["iofast.packing.copying"], "require_free", full)
        with pytest.raises(TargetError, match="too little"):
            convert(path, target, overwrite=True)
        assert sorted(tmp_path.iterdir()) == before
        assert len(records(target)) == 3

    def test_work_of_a_pack_is_not_thrown_away(self, tmp_path: Path) -> None:
        path = build(tmp_path / "set.lmdb")
        interrupt(path, tmp_path / "out.lmdb", 5, resize=16)
        with pytest.raises(TargetError, match="holds the work of a run with"):
            convert(path, tmp_path / "out.lmdb")
        assert (tmp_path / "out.lmdb.partial" / "plan.json").exists()


class TestConvertCommand:
    def test_summary_and_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = build(tmp_path / "set.lmdb")
        assert main(["convert", str(path), str(tmp_path / "out.tar"), "--shard-size", "20KiB"]) == 0
        assert f"packed {COUNT} images into {tmp_path / 'out.tar'}" in capsys.readouterr().out
        assert len(list(tmp_path.glob("out-*.tar"))) > 2
        assert main(["convert", str(path), str(tmp_path / "out.tfrecord"), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["packed"], facts["warnings"]) == (COUNT, [])
