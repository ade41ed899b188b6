"""What the commands say where they used to be silent: names, labels, boxes, options and suffixes that do not fit."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import tfrecord_messages
from foreign_lmdbs import picture, write
from PIL import Image
from tar_sets import foreign

from iofast import FastDataset, open_reader, pack
from iofast.cli import main
from iofast.containers.identity import left_out
from iofast.errors import OptionError, TargetError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def images(folder: Path, count: int = 3, kind: str = "jpeg") -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = np.full((20 + number, 30, 3), 7 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.{'jpg' if kind == 'jpeg' else kind}", kind)
    return folder


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"image": "photo"}, r"no record has a member 'photo' \(names: image=photo\); they have cat, jpg, json"),
        ({"label": "dog"}, "no record has a label in 'dog'"),
        ({"seg.png": "mask.png"}, "no record has a member 'mask.png'"),
        ({"lable": "dog"}, "no record has a member 'dog'"),
    ],
)
def test_names_that_no_tar_has(tmp_path: Path, names: dict[str, str], reason: str) -> None:
    path = foreign(tmp_path / "x.tar", {"a.jpg": picture(1), "a.cat": b"3", "a.json": b'{"kind": "x"}'})
    for _ in range(2):  # indexed now, and from the cache
        with pytest.raises(OptionError, match=reason):
            open_reader(path, {"names": names})


def test_a_label_that_says_none_is_told_and_no_error(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", {"a.jpg": picture(1), "a.cat": b"-1", "a.json": b'{"kind": "x"}'})
    for label in ("cat", "json/kind"):
        with open_reader(path, {"names": {"label": label}}) as reader:
            assert left_out(reader) == [f"no record has a class number in {label!r}: none has a label"]


def test_what_names_replace_is_counted_apart(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", {"a.jpg": picture(1), "a.big.jpg": picture(2), "a.cls": b"3", "a.x y": b""})
    with open_reader(path, {"names": {"image": "big.jpg", "label": "cls"}}) as reader:
        assert left_out(reader) == [
            "members whose names make no key and field: 1 left out",
            "members that names replace by others: 1 left out",
        ]


def test_lists_of_labels_that_lack_images_or_have_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.lmdb", {b"%d" % number: picture(number) for number in range(5)})
    (tmp_path / "list.txt").write_text("0 1\n1 0\n7 1\n8 1\n9 0\n")
    wanted = [
        "images without a line in the list of labels: 3 of 5",
        "lines in the list of labels without an image: 3",
    ]
    for _ in range(2):
        with open_reader(path, {"labels": str(tmp_path / "list.txt")}) as reader:
            assert left_out(reader) == wanted
    assert main(["info", str(path), "--labels", str(tmp_path / "list.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == wanted
    assert main(["pack", str(path), str(tmp_path / "out.tar"), "--labels", str(tmp_path / "list.txt")]) == 0
    assert f"warning: {wanted[0]}" in capsys.readouterr().err


def test_labels_that_count_from_one(tmp_path: Path) -> None:
    records = [{"image/encoded": picture(number), "image/class/label": number + 1} for number in range(3)]
    tfrecord_messages.write(tmp_path / "theirs.tfrecord", records)
    plain, based = tmp_path / "plain.lmdb", tmp_path / "based.lmdb"
    assert main(["pack", str(tmp_path / "theirs.tfrecord"), str(plain), "--quiet"]) == 0
    assert FastDataset(plain).targets == [1, 2, 3]
    assert main(["pack", str(tmp_path / "theirs.tfrecord"), str(based), "--labels-from", "1", "--quiet"]) == 0
    assert FastDataset(based).targets == [0, 1, 2]
    target = tmp_path / "again.tfrecord"
    arguments = ["pack", str(tmp_path / "theirs.tfrecord"), str(target), "--labels-from", "1", "--label-base", "1"]
    assert main([*arguments, "--quiet"]) == 0
    assert FastDataset(target).targets == [0, 1, 2]  # counted from 1 in the file, and in ours it says so


def test_labels_from_where_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tfrecord_messages.write(tmp_path / "x.tfrecord", [{"image/encoded": picture(1)}])
    foreign(tmp_path / "x.tar", {"a.jpg": picture(1)})
    write(tmp_path / "x.lmdb", {b"a": picture(1)})
    for name in ("x.tfrecord", "x.tar", "x.lmdb"):
        assert main(["pack", str(tmp_path / name), str(tmp_path / "out.lmdb"), "--labels-from", "1"]) != 0
        assert f"{name}: no record has a label, so none counts from 1 (labels-from)" in capsys.readouterr().err
    foreign(tmp_path / "json.tar", {"a.jpg": picture(1), "a.json": b'{"label": 3}'})
    with open_reader(tmp_path / "json.tar", {"label_base": 1}) as reader:
        assert reader.columns(np.arange(1)).label.tolist() == [2]


@pytest.mark.parametrize(
    ("box", "box_format"), [([20, 5, 8, 10], "xyxy"), ([3, 15, 8, 2], "xyxy"), ([3, 5, -1, 4], "xywh")]
)
def test_boxes_that_end_before_they_begin(tmp_path: Path, box: list[int], box_format: str) -> None:
    source = images(tmp_path / "set", 1)
    (source / "0.json").write_text(json.dumps({"objects": [{"bbox": box}]}))
    told = {"fields": "json=boxes.json", "boxes": "boxes.json", "max_errors": "100%"}
    (source / "1.jpg").write_bytes((source / "0.jpg").read_bytes())
    (source / "1.json").write_text("[[1, 1, 4, 4]]")
    report = pack(source, tmp_path / "out.lmdb", box_format=box_format, **told)  # type: ignore[arg-type]
    assert report.failed == 1
    assert "ends before it begins" in (tmp_path / "out.lmdb.errors.jsonl").read_text()
    if box_format == "xyxy":
        assert "is it xywh" in (tmp_path / "out.lmdb.errors.jsonl").read_text()
        report = pack(source, tmp_path / "again.lmdb", box_format="xywh", **told)  # type: ignore[arg-type]
        assert report.failed == 0


def test_a_source_that_has_changed_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = images(tmp_path / "set", 30), tmp_path / "out.lmdb"
    monkeypatch.setattr("iofast.packing.build.Builder.finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(source, target, workers=1)
    monkeypatch.undo()
    (source / "0.jpg").rename(source / "x.jpg")
    with pytest.raises(TargetError, match="the source as it was before it changed"):
        pack(source, target, workers=1)
    (source / "y.jpg").write_bytes((source / "1.jpg").read_bytes())
    with pytest.raises(TargetError, match="a run with 30 images, not 31"):
        pack(source, target, workers=1)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_suffix_that_was_mistyped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(images(tmp_path / "set"), tmp_path / "a.lmdb")
    for wrong, right in ((".lmbd", ".lmdb"), (".tfrecrods", ".tfrecords"), (".tarr", ".tar")):
        assert main(["convert", str(tmp_path / "a.lmdb"), str(tmp_path / f"b{wrong}")]) == 2
        assert f"did you mean {tmp_path}/b{right}?" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "a.lmdb"), f"{tmp_path}/b.lmbd/"]) == 0
    assert main(["convert", str(tmp_path / "a.lmdb"), str(tmp_path / "images.v2")]) == 0
    assert (tmp_path / "images.v2").is_dir()
    for folder in ("set.star", "images.train", "photos.art", "img.target", "my.data", "imgs.table"):
        assert main(["convert", str(tmp_path / "a.lmdb"), str(tmp_path / folder), "--quiet"]) == 0


def test_a_pattern_that_the_shell_has_expanded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = [str(foreign(tmp_path / f"{number}.tar", {f"{number}.jpg": picture(number)})) for number in range(4)]
    for arguments in (["pack", *shards, str(tmp_path / "out.lmdb")], ["info", *shards[:2]], ["info", *shards]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "goes into quotes" in capsys.readouterr().err
    for arguments in (["info", "a", "b"], ["info", "a", "--nothing"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "goes into quotes" not in capsys.readouterr().err


def test_what_no_container_stores_loses_nothing(tmp_path: Path) -> None:
    source = images(tmp_path / "set", kind="tiff")
    pack(source, tmp_path / "out.lmdb")
    with open_reader(tmp_path / "out.lmdb") as reader:
        for number in range(3):
            found = np.asarray(Image.open(io.BytesIO(reader.record(number).fields["png"])))
            assert np.array_equal(found, np.asarray(Image.open(source / f"{number}.tiff")))
