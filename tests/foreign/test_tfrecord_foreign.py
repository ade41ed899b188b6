"""TFRecords of other programs: usual and unusual names, records without images, damage, and files that change."""

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import picture
from tfrecord_messages import Features, write

from iofast import FastDataset, open_reader
from iofast.containers.columns import ABSENT
from iofast.containers.shards import expand
from iofast.errors import ContainerError, OptionError, SourceError
from iofast.foreign.options import ForeignOptions
from iofast.foreign.reader import ForeignReader
from iofast.foreign.tfrecord import TfrecordFiles


def image(number: int, kind: str = "jpeg") -> bytes:
    return picture(number, kind, (9, 8 + number % 5))


def foreign(path: Path | Sequence[Path], options: ForeignOptions | None = None) -> ForeignReader:
    paths = expand(str(path)) if isinstance(path, Path) else [str(each) for each in path]
    return ForeignReader(paths[0], TfrecordFiles(paths, options or ForeignOptions()))


def imagenet(number: int) -> Features:
    """As the ImageNet converters write it."""
    return {
        "image/encoded": image(number),
        "image/format": b"JPEG",
        "image/class/label": number % 3 + 1,
        "image/class/text": (b"tench", b"goldfish", b"shark")[number % 3],
        "image/filename": b"n%08d.JPEG" % number,
        "image/object/bbox/xmin": [0.25, 0.5],
        "image/height": 8,
    }


def test_imagenet_shards(tmp_path: Path) -> None:
    for shard in range(3):
        write(tmp_path / f"train-{shard:05d}-of-00003", [imagenet(shard * 4 + i) for i in range(4)])
    with foreign(tmp_path / "train-*-of-*", ForeignOptions(label_base=1)) as reader:
        assert reader.manifest.fields == ("cls", "jpg", "json")
        assert reader.manifest.classes == ("tench", "goldfish", "shark")
        assert len(reader) == 12
        located = reader.locate(np.arange(12)[::-1])
        assert located.label.tolist() == [i % 3 for i in range(12)][::-1]
        assert located.height.tolist() == [8 + i % 5 for i in range(12)][::-1]
        with reader.payloads(located, 0, 12) as places:
            read = [os.pread(fd, n, at) for fd, at, n in zip(*map(np.ndarray.tolist, places[:3]), strict=True)]
        assert read == [image(i) for i in range(12)][::-1] == reader.values(np.arange(12)[::-1])
        record = reader.record(5)
        assert record.key == "00000005"
        assert record.fields == {"cls": b"2", "jpg": image(5), "json": b'{"path":"n00000005.JPEG"}'}
        assert reader.name(5) == f"{tmp_path}/train-00001-of-00003: record 1"


@pytest.mark.parametrize(
    ("features", "label", "fields"),
    [
        ({"image": image(1, "png"), "label": 4, "file_name": b"a/b.png"}, 4, {"png", "cls", "json"}),
        ({"jpg": image(1), "cls": b"7", "__key__": b"0001"}, 7, {"jpg", "cls", "json"}),
        ({"webp": image(1, "webp"), "label": [1, 2]}, -1, {"webp"}),
        ({"image_raw": b"no image at all", "label": -1}, -1, {"jpg"}),
        ({"image/encoded": b"", "image": image(2), "label": 0.5}, -1, {"jpg"}),
        ({"image": [1, 2, 3], "label": 2}, 2, {"cls"}),  # pixels as numbers are no encoded image
    ],
)
def test_names_in_use(tmp_path: Path, features: Features, label: int, fields: set[str]) -> None:
    with foreign(write(tmp_path / "a", [features])) as reader:
        assert set(reader.record(0).fields) == fields
        assert reader.columns(np.arange(1)).label.tolist() == [label]


@pytest.mark.parametrize(
    "case",
    [
        ([{"label": b"dog"}, {"label": b"cat"}, {"label": b""}], {}, [1, 0, -1], ("cat", "dog"), None),
        ([{"label": b"2.0"}, {"label": b"10.0"}], {}, [2, 10], None, None),
        ([{"label": 1, "class_name": b"a"}, {"label": 2, "class_name": b"b"}], {}, [1, 2], None, None),  # 0 has no name
        ([{"image/class/text": b"dog"}, {"image/class/text": "größe".encode()}], {}, [0, 1], ("dog", "größe"), None),
        ([{"species": b"dog"}, {"species": b"cat"}], {"label": "species"}, [1, 0], ("cat", "dog"), None),
        ([{"label": 1}, {"label": b"cat"}], {}, [1, -1], None, "labels that are text, in records beside others"),
        ([{"label_id": 1}], {}, [-1], None, "no labels: 'label_id' may be labels, and --names label=FEATURE takes one"),
    ],
)
def test_text_labels_become_classes(
    tmp_path: Path, case: tuple[list[Features], dict[str, str], list[int], tuple[str, ...] | None, str | None]
) -> None:
    records, names, labels, classes, warning = case
    half = len(records) // 2
    write(tmp_path / "a.tfrecord", [{"image": image(0)} | record for record in records[:half]])
    write(tmp_path / "b.tfrecord", [{"image": image(0)} | record for record in records[half:]])
    with foreign([tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"], ForeignOptions(names)) as reader:
        assert reader.labels(np.arange(len(records))).tolist() == labels
        assert reader.manifest.classes == classes
        assert any(line.startswith(warning) for line in list(reader.left_out)) if warning else not list(reader.left_out)


def test_mapped_names(tmp_path: Path) -> None:
    records: list[Features] = [{"foto": image(i), "art": i, "wo": b"%d" % i} for i in range(3)]
    records[1]["maske"] = b"mask"
    options = ForeignOptions({"image": "foto", "label": "art", "path": "wo", "seg.png": "maske"})
    path, names = write(tmp_path / "b.tfrecord", records[1:]), {"image": "foto", "label": "art"}
    dataset = FastDataset(path, fields=("label",), foreign=ForeignOptions(names, label_base=1))
    assert [sample["label"] for sample in dataset] == [0, 1]
    with foreign(write(tmp_path / "a", records), options) as reader:
        assert reader.left_out == ()
        assert reader.manifest.fields == ("cls", "jpg", "json", "seg.png")
        assert reader.values(np.arange(3), "seg.png") == [None, b"mask", None]
        assert reader.locate(np.arange(3), "seg.png").file.tolist() == [ABSENT, 0, ABSENT]
        assert [bytes(reader.view(i, "cls")) for i in range(3)] == [b"0", b"1", b"2"]
        assert json.loads(bytes(reader.view(2, "json"))) == {"path": "2"}
        with pytest.raises(KeyError, match=r"has no field 'seg\.png'"):
            reader.view(0, "seg.png")
        with pytest.raises(KeyError, match="lies in no file"):
            reader.locate(np.arange(3), "json")
        with pytest.raises(KeyError, match="no field 'nothing'"):
            reader.values(np.arange(3), "nothing")
        with pytest.raises(IndexError, match="indices 0 to 3 of 3"):
            reader.locate(np.arange(4))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"image": "photo"}, r"no record has bytes in 'photo' \(names: image=photo\); they have art, foto, wo"),
        ({"image": "art"}, "no record has bytes in 'art'"),
        ({"image": "foto", "label": "art2"}, "no record has a label in 'art2'"),
        ({"image": "foto", "path": "where"}, "no record has text in 'where'"),
        ({"image": "foto", "txt": "none"}, r"no record has bytes in 'none' \(names: txt=none\)"),
        ({"image": "foto", "lable": "art"}, "no record has bytes in 'art'"),
    ],
)
def test_names_that_no_record_knows(tmp_path: Path, names: dict[str, str], reason: str) -> None:
    write(tmp_path / "a.tfrecord", [{"foto": image(i), "art": i, "wo": b"%d" % i} for i in range(3)])
    for _ in range(2):  # indexed now, and from the cache
        with pytest.raises(OptionError, match=reason):
            open_reader(tmp_path / "a.tfrecord", {"names": names})


def test_features_that_no_field_takes_are_named(tmp_path: Path) -> None:
    records: list[Features] = [{"image/encoded": image(i), "image/height": 3, "box": i, "mask": b"x"} for i in range(3)]
    write(tmp_path / "a.tfrecord", records)
    for _ in range(2):
        with open_reader(tmp_path / "a.tfrecord") as reader:
            (said,) = list(reader.left_out)
            assert "box, mask (--names FIELD=FEATURE" in said
    with open_reader(tmp_path / "a.tfrecord", {"names": {"seg.png": "mask"}}) as reader:
        assert "no field takes: box (" in reader.left_out[0]
    with open_reader(tmp_path / "a.tfrecord", {"names": {"image": "mask", "label": "image/encoded"}}) as reader:
        assert "no field takes: box (" in reader.left_out[0]
        assert reader.left_out[1] == "no record has a class number or text in 'image/encoded': none has a label"
    with open_reader(tmp_path / "a.tfrecord", {"names": {"image": "mask"}}) as reader:
        assert "no field takes: box, image/encoded (" in reader.left_out[0]


def test_records_without_images(tmp_path: Path) -> None:
    write(tmp_path / "a", [{"image": image(0), "label": 1}, {"label": 0}, {"x": 1}, {}])
    write(tmp_path / "empty", [])
    with foreign([tmp_path / "empty", tmp_path / "a"]) as reader:
        assert reader.locate(np.arange(4)).file.tolist() == [1, ABSENT, ABSENT, ABSENT]
        assert reader.values(np.arange(4)) == [image(0), None, None, None]
        assert [set(record.fields) for record in reader] == [{"jpg", "cls"}, {"cls"}, set(), set()]
        assert reader.name(0) == f"{tmp_path}/a: record 0"
    with foreign(write(tmp_path / "b", [{"label": 0}])) as reader:
        assert reader.columns(np.arange(1)).file.tolist() == [ABSENT]
        with pytest.raises(KeyError, match="no image field, only cls"):
            reader.locate(np.arange(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": {"jpg": "x"}}, "expected image, label, path or a further field, found 'jpg'"),
        ({"names": {"UPPER": "x"}}, "names: field name 'UPPER'"),
        ({"names": ["image"]}, "names must be a mapping"),
        ({"names": {"image": ""}}, "names must be a mapping"),
        ({"label_base": 2}, "label_base must be 0 or 1"),
        ({"name": {}}, "foreign must be ForeignOptions, or a mapping"),
    ],
)
def test_impossible_names(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ForeignOptions.of(options)


# Damage.


def test_invalid_files(tmp_path: Path) -> None:
    plain = write(tmp_path / "a", [imagenet(0)])
    (tmp_path / "b.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "c").write_bytes(b"something else entirely")
    write(tmp_path / "d", [imagenet(0), b"\xff\xff\xff"])
    write(tmp_path / "e", [imagenet(0), {"label": -7}])
    (tmp_path / "f").write_bytes(plain.read_bytes()[:50])
    end = plain.stat().st_size
    for name, message in (
        ("b.gz", "compressed as a whole with GZIP"),
        ("c", "damaged at offset 0"),
        ("d", f"record 1 at offset {end} is no tf.train.Example that can be read: the number at 0"),
        ("e", f"record 1 at offset {end} .* its label label is -7, expected 0"),
        ("f", "ends within the record at offset 0"),
        ("none*", "no file matches"),
    ):
        with pytest.raises((ContainerError, SourceError), match=message):
            foreign(tmp_path / name)


def test_one_damaged_record_fails_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [imagenet(i) for i in range(4)])
    whole = path.read_bytes()
    at = whole.index(image(2)) + 30
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with foreign(path) as reader:
        failed: dict[int, Any] = {}
        assert reader.values(np.arange(4), failed=failed) == [image(0), image(1), None, image(3)]
        assert f"{path}: record 2: image at offset" in str(failed[2])
        assert "CRC32C differs" in str(failed[2])


def test_opened_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", [imagenet(0)])
    write(tmp_path / "b.tfrecords", [imagenet(1)])
    assert len(open_reader(tmp_path / "a.tfrecord")) == 1
    assert len(open_reader(tmp_path / "b.tfrecords")) == 1
    assert len(open_reader(tmp_path / "*.tfrecord*")) == 2
    assert len(open_reader(str(tmp_path) + "/{a.tfrecord,b.tfrecords}")) == 2
    for name in ("train-00000-of-00002", "mnist-train.tfrecord-00000-of-00001"):
        assert open_reader(write(tmp_path / name, [imagenet(2)])).name(0) == f"{tmp_path / name}: record 0"
    assert len(FastDataset([tmp_path / "a.tfrecord", tmp_path / "b.tfrecords"])) == 2
