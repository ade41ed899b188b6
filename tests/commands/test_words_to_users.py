"""Messages about names, labels, boxes, sources and suffixes that do not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
import tfrecord_messages
from command_line import CommandLine
from foreign_lmdbs import picture
from PIL import Image
from tar_sets import foreign

from iofast import FastDataset, open_reader, pack


@pytest.mark.parametrize(
    ("target", "options", "labels"),
    [
        ("plain.lmdb", (), [1, 2, 3]),
        ("based.lmdb", ("--labels-from", 1), [0, 1, 2]),
        ("again.tfrecord", ("--labels-from", 1, "--label-base", 1), [0, 1, 2]),  # the file counts from 1 again
    ],
)
def test_labels_that_count_from_one(
    tmp_path: Path, iofast: CommandLine, target: str, options: tuple[object, ...], labels: list[int]
) -> None:
    records = [{"image/encoded": picture(number), "image/class/label": number + 1} for number in range(3)]
    tfrecord_messages.write(tmp_path / "theirs.tfrecord", records)
    line = ("pack", tmp_path / "theirs.tfrecord", tmp_path / target, *options, "--quiet", "--workers", 1)
    assert iofast(*line).status == 0
    assert FastDataset(tmp_path / target).targets == labels


def test_labels_from_without_labels(tmp_path: Path, iofast: CommandLine) -> None:
    tfrecord_messages.write(tmp_path / "x.tfrecord", [{"image/encoded": picture(1)}])
    foreign(tmp_path / "x.tar", {"a.jpg": picture(1)})
    for name in ("x.tfrecord", "x.tar"):
        result = iofast("info", tmp_path / name, "--labels-from", "1")
        result.fails(2, f"{name}: no record has a label, so none counts from 1 (labels-from)")
    foreign(tmp_path / "json.tar", {"a.jpg": picture(1), "a.json": b'{"label": 3}'})
    with open_reader(tmp_path / "json.tar", {"label_base": 1}) as reader:
        assert reader.columns(np.arange(1)).label.tolist() == [2]


@pytest.mark.parametrize(
    ("box", "box_format"), [([20, 5, 8, 10], "xyxy"), ([3, 15, 8, 2], "xyxy"), ([3, 5, -1, 4], "xywh")]
)
def test_boxes_that_end_before_they_begin(tmp_path: Path, box: list[int], box_format: str) -> None:
    source = tmp_path / "set"
    source.mkdir()
    for number, boxes in enumerate(({"objects": [{"bbox": box}]}, [[1, 1, 4, 4]])):
        Image.new("RGB", (30, 20)).save(source / f"{number}.jpg")
        (source / f"{number}.json").write_text(json.dumps(boxes))
    options = {"fields": "json=boxes.json", "boxes": "boxes.json", "max_errors": "100%", "workers": 1}
    report = pack(source, tmp_path / "out.lmdb", box_format=box_format, **options)  # type: ignore[arg-type]
    assert report.failed == 1
    assert "ends before it begins" in (tmp_path / "out.lmdb.errors.jsonl").read_text()
    if box_format == "xyxy":
        assert "is it xywh" in (tmp_path / "out.lmdb.errors.jsonl").read_text()
        report = pack(source, tmp_path / "again.lmdb", box_format="xywh", **options)  # type: ignore[arg-type]
        assert report.failed == 0


def test_a_pattern_that_the_shell_has_expanded(tmp_path: Path, iofast: CommandLine) -> None:
    shards = [foreign(tmp_path / f"{number}.tar", {f"{number}.jpg": picture(number)}) for number in range(2)]
    iofast("info", *shards).fails(2, "put a pattern of shards into quotes")
    assert "into quotes" not in iofast("info", "a", "b").err
