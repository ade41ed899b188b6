"""Copies of containers: equal records between all formats, legal fields, no incomplete target, resumed after a kill."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from container_sets import (
    CLASSES,
    COUNT,
    SUFFIXES,
    Quiet,
    build,
    convert,
    fields_of,
    files,
    in_shards,
    picture,
    records,
    split_of,
)
from packing_runs import interrupt as interrupt_pack
from tar_sets import foreign
from todays import todays

from iofast import pack
from iofast.checking import verify
from iofast.cli import main
from iofast.errors import ContainerError, OptionError, SourceError, TargetError
from iofast.opening import open_reader
from iofast.record_writer import open_writer


def tree_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their relative paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_same_records(source: str, suffix: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    container, target = build(tmp_path / "source" / f"set{source}"), tmp_path / f"out{suffix}"
    result = convert(container, target, **in_shards(target, 20_000))
    with open_reader(container) as before, open_reader(target) as after:
        assert result.packed == COUNT
        names = ("fields", "splits", "classes", "class_order", "recipe", "seed", "key_width", "count")
        for name in ("fingerprint", *names):
            assert getattr(before.manifest, name) == getattr(after.manifest, name), name
    assert records(target) == records(container)
    assert verify(target).whole
    assert not (tmp_path / f"out{suffix}.partial").exists()


def test_holes_and_wide_keys_stay(tmp_path: Path) -> None:
    keys = [f"{number:012d}" for number in (3, 7, 900)]
    path = foreign(tmp_path / "their.tar", {f"{key}.txt": key.encode() for key in keys})
    convert(path, tmp_path / "out.tfrecord")
    assert [record.key for record in records(tmp_path / "out.tfrecord")] == keys
    convert(tmp_path / "out.tfrecord", tmp_path / "out.lmdb")
    assert records(tmp_path / "out.lmdb") == records(tmp_path / "out.tfrecord")


def test_without_records(tmp_path: Path) -> None:
    convert(build(tmp_path / "empty.lmdb", 0), tmp_path / "empty.tar")
    assert records(tmp_path / "empty.tar") == []


def test_damaged_payload_ends_it(tmp_path: Path) -> None:
    path = build(tmp_path / "set.lmdb")
    with open_reader(path) as reader:
        located = reader.locate(np.arange(COUNT))
    data = bytearray(path.read_bytes())
    data[int(located.offset[9]) + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ContainerError, match=r"00000009: .* CRC32C differs"):
        convert(path, tmp_path / "out.tar")
    assert [each.name for each in tmp_path.iterdir()] == ["set.lmdb"]


def test_keys_labels_and_formats_of_others(tmp_path: Path) -> None:
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
    result = convert(foreign(tmp_path / "their.tar", members), tmp_path / "out.lmdb")
    x, y, z = records(tmp_path / "out.lmdb")
    assert x.fields == {"cls": b"2", "jpg": picture(1), "json": b'{"key":"a/x","w": 1.50, "label": 2}'}
    assert y.fields == {"cls.txt": b"tabby", "png": picture(2, "png"), "json": b'{"key":"a/y"}'}
    assert z.fields == {"jpg": picture(3), "json": b"[1, 2]", "key.txt": b"a/z"}
    assert any("pickled" in warning for warning in result.warnings)
    with open_reader(tmp_path / "out.lmdb") as reader:
        located = reader.locate(np.arange(3))
        assert located.label.tolist() == [2, -1, -1]
        assert located.width.tolist() == [48, 48, 48]
    assert verify(tmp_path / "out.lmdb").whole


def test_summary_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build(tmp_path / "set.lmdb")
    assert main(["convert", str(path), str(tmp_path / "out.tar"), "--shard-size", "20KiB"]) == 0
    assert f"packed {COUNT} images into {tmp_path / 'out.tar'}" in capsys.readouterr().out
    assert len(list(tmp_path.glob("out-*.tar"))) > 2
    assert main(["convert", str(path), str(tmp_path / "out.tfrecord"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["packed"], facts["warnings"]) == (COUNT, [])


class TestFolders:
    def test_round_trip(self, tmp_path: Path) -> None:
        """A tree of files into a container and out again: the same tree, byte by byte."""
        tree = {}
        for number in range(COUNT):
            kind = "png" if number % 5 == 4 else "jpg"
            name = f"{split_of(number)}/{CLASSES[number % 3]}/sub/{number:03d}.{kind}"
            tree[name] = fields_of(number)[kind]
            (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "images" / name).write_bytes(tree[name])
        convert(tmp_path / "images", tmp_path / "set.tar")
        convert(tmp_path / "set.tar", f"{tmp_path}/again/")
        assert tree_of(tmp_path / "again") == tree
        with open_reader(tmp_path / "set.tar") as reader:
            assert reader.manifest.classes == CLASSES
            assert list(reader.manifest.splits) == ["train", "val"]

    def test_fields_beside_the_image(self, tmp_path: Path) -> None:
        convert(build(tmp_path / "set.lmdb"), f"{tmp_path}/out/")
        found = tree_of(tmp_path / "out" / "train" / "cat")
        for suffix in ("seg.png", "txt", "json"):
            assert found[f"000.{suffix}"] == fields_of(0)[suffix]
        assert "000.cls" not in found

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
        images = {"x.jpg": 0, "00000001.jpg": 1, "00000002.jpg": 2, "00000003.png": 3}
        texts = {"x.txt": b"0", "00000001.txt": b"1", "00000002.txt": b"2", "00000003.txt": b"3"}
        assert tree_of(tmp_path / "out") == {name: picture(number) for name, number in images.items()} | texts

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
        assert os.listdir(tmp_path) == ["set.lmdb"]

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        path = build(tmp_path / "set.lmdb")
        (tmp_path / "out").mkdir()
        convert(path, f"{tmp_path}/out/")  # an empty folder may stand there
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        for name in ("out", "link"):
            with pytest.raises(TargetError, match="exists already"):
                convert(path, f"{tmp_path}/{name}/")
        with pytest.raises(OptionError, match="never overwritten"):
            convert(path, f"{tmp_path}/out/", overwrite=True)

    def test_records_without_images(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "set.lmdb", classes=["c"]) as writer:
            writer.write({"cls": 0})
            writer.write({"txt": "a", "json": {"path": "x/y.txt"}})
        convert(tmp_path / "set.lmdb", f"{tmp_path}/out/")
        assert tree_of(tmp_path / "out") == {"c/00000000.cls": b"0", "x/y.txt": b"a"}
        with pytest.raises(SourceError, match="contains no record"):
            convert(build(tmp_path / "empty.lmdb", 0), f"{tmp_path}/none/")

    def test_raw_pixels_have_no_file_format(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "raw.lmdb") as writer:
            writer.write({"rgb": bytes(12), "json": {"width": 2, "height": 2}})
        with pytest.raises(ContainerError, match="raw pixels"):
            convert(tmp_path / "raw.lmdb", f"{tmp_path}/out/")


# Interrupted and killed.

MANY, STOP = 60, 37


def interrupt(source: Path, target: Path | str, number: int = STOP, **options: object) -> None:
    with pytest.raises(KeyboardInterrupt, match="goes on from there"):
        convert(source, target, Quiet(number, KeyboardInterrupt()), **options)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container whose copies have several sections, also as LMDB."""
    monkeypatch.setattr("iofast.containers.targets.TRANSACTION_BYTES", 20_000)
    (tmp_path / "source").mkdir()
    return build(tmp_path / "source" / "set.lmdb", MANY)


@pytest.mark.parametrize("what", [KeyboardInterrupt(), TargetError("the disk is full")])
@pytest.mark.parametrize("suffix", todays(SUFFIXES))
def test_an_interrupted_copy_goes_on(source: Path, tmp_path: Path, suffix: str, what: BaseException) -> None:
    target, options = tmp_path / f"out{suffix}", in_shards(f"out{suffix}", 20_000)
    for number in (1, STOP, 9):
        with pytest.raises(type(what), match=r"the same command goes on from there; delete .*partial to start"):
            convert(source, target, Quiet(number, what), **options)
        assert not files(target.with_name(f"out{suffix}.manifest"))
    assert STOP // 2 < convert(source, target, **options).resumed < MANY
    assert verify(target).whole
    assert records(target) == records(source)


def test_a_set_that_is_to_be_replaced_can_still_be_read(source: Path, tmp_path: Path) -> None:
    target = build(tmp_path / "out.tar", 5)
    interrupt(source, target, overwrite=True)
    assert len(records(target)) == 5


def test_other_work_is_refused_and_damaged_work_begun_anew(source: Path, tmp_path: Path) -> None:
    target, (images, mine) = tmp_path / "out.tar", (tmp_path / "images", tmp_path / "mine.lmdb")
    images.mkdir()
    (images / "a.jpg").write_bytes(picture(1))
    interrupt(build(tmp_path / "source" / "other.lmdb", MANY - 1), target, shard_size=20_000)
    with pytest.raises(TargetError, match=r"a run with copy of .*other.lmdb, not .*set.lmdb: give"):
        convert(source, target, shard_size=20_000)
    with pytest.raises(TargetError, match="holds the work of a"):
        pack(images, target, workers=1)
    (tmp_path / "out.tar.partial" / "plan.json").write_text("{")
    assert convert(source, target, shard_size=20_000).resumed == 0
    interrupt_pack(source, mine, 5, resize=16)
    with pytest.raises(TargetError, match=r"the work of a run with .*: give that command [\w ,]+ to start anew$"):
        convert(source, mine)


def test_warnings_speak_of_all_records(tmp_path: Path) -> None:
    members = {f"{n}.{kind}": picture(n) if kind == "jpg" else b"x" for n in (3, 5, 7) for kind in ("jpg", "a.pyd")}
    path = foreign(tmp_path / "their.tar", members)
    interrupt(path, tmp_path / "out.tar", 3, shard_records=1)
    result = convert(path, tmp_path / "out.tar", shard_records=1)
    assert result.resumed == 2
    assert result.warnings == convert(path, tmp_path / "whole.tar").warnings
    assert "field 'a.pyd' of 3 records" in result.warnings[0]


def test_file_that_changed_in_its_place(tmp_path: Path) -> None:
    """The same places and lengths, another content: only the modification time differs."""
    path = foreign(tmp_path / "their.tar", {f"{n}.txt": b"old" for n in range(9)})
    interrupt(path, tmp_path / "out.tar", 5, shard_records=1)
    path.write_bytes(path.read_bytes().replace(b"old", b"new"))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    with pytest.raises(TargetError, match="a run with the source as it was before it changed"):
        convert(path, tmp_path / "out.tar", shard_records=1)
