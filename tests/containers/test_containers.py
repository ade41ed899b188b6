"""What holds for every container: right data, equal bytes for equal records, and use in other processes."""

import hashlib
import os
import pickle
import random
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from container_sets import SUFFIXES
from hypothesis import given
from hypothesis import strategies as st
from lmdb_containers import Fields, expected, read_all, sample, samples
from loader_sets import photographs
from tar_sets import CLASSES, build, contents

from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast import transforms as T
from iofast.containers.base import Reader
from iofast.containers.indexed_reader import IndexedReader
from iofast.containers.manifest import Description
from iofast.containers.targets import target_of, writer_of
from iofast.containers.writer import Section
from iofast.errors import ContainerError
from iofast.record import ImageInfo

each_suffix = pytest.mark.parametrize("suffix", SUFFIXES)


@pytest.fixture
def reader(each_container: Path) -> Reader:
    return open_reader(each_container)


def test_round_trip(reader: Reader) -> None:
    assert read_all(reader) == expected(samples())  # type: ignore[arg-type]
    located, positions = reader.locate(np.arange(300)), reader.positions(np.arange(300))
    assert (reader.labels(np.arange(300)) == located.label).all()
    for i, (position, _, info, _) in enumerate(samples()):
        row = (positions[i], located.label[i], located.width[i], located.height[i], located.orientation[i])
        assert row == (position, info.label, info.width, info.height, info.orientation)
        assert reader.name(i).endswith(f": {position:08d}")
    assert reader.values(np.arange(299, -1, -1), "jpg") == [fields["jpg"] for _, fields, _, _ in samples()[::-1]]


@pytest.mark.parametrize("field", [None, "jpg", "json"])
def test_columns_have_the_dtypes_of_every_reader(reader: Reader, field: str | None) -> None:
    located = reader.locate(np.array([3, 1, 3]), field)
    for column, dtype in zip(located, ["i8", "i4", "i4", "i4", "u1", "u4", "u8", "u8", "u1", "u4"], strict=True):
        assert column is not None
        assert column.dtype == dtype
    places = reader.places(np.array([3, 1, 3]), field)
    for name in ("indices", "file", "offset", "length", "crc"):
        assert getattr(places, name).tolist() == getattr(located, name).tolist()


def test_manifest(reader: Reader) -> None:
    manifest = reader.manifest
    assert (manifest.count, manifest.fields) == (300, ("cls", "jpg", "json"))
    assert manifest.splits == {"train": ((0, 200),), "val": ((200, 300),)}
    assert (manifest.classes, manifest.recipe, manifest.seed) == (CLASSES.classes, CLASSES.recipe, CLASSES.seed)


def test_fingerprint_is_the_specified_hash(reader: Reader) -> None:
    whole = hashlib.sha256(b"\x08")
    for name in ("cls", "jpg", "json"):
        rows = [(int(record.key), record.fields[name]) for record in expected(samples()) if name in record.fields]
        packed = [struct.pack("<QII", position, len(own), google_crc32c.value(own)) for position, own in rows]
        whole.update(bytes([len(name)]) + name.encode() + hashlib.sha256(b"".join(packed)).digest())
    assert reader.manifest.fingerprint == f"sha256:{whole.hexdigest()}"


@pytest.mark.parametrize("index", [-1, 300, 1 << 40])
def test_an_index_out_of_range_and_a_field_that_is_not_there(reader: Reader, index: int) -> None:
    for read in (lambda: reader.locate(np.array([0, index])), lambda: reader.view(index), lambda: reader.record(index)):
        with pytest.raises(IndexError, match=rf"indices .*{index}.* of 300 records"):
            read()
    with pytest.raises(KeyError, match="no field 'png', only cls, jpg, json"):
        reader.view(0, "png")


field_names = st.sampled_from(["jpg", "png", "webp", "txt", "seg.png", "key", "boxes.json", "a-b", "a_b", "z" * 64])
sizes = [511, 512, 513, 1990, 2010, 2014, 2030, 4079, 4080, 4081, 9000]  # at the borders of blocks and pages
payloads = st.binary(max_size=300) | st.sampled_from(sizes).map(lambda size: b"\1" * size)
steps = st.tuples(st.integers(1, 9), st.dictionaries(field_names, payloads, min_size=1, max_size=5))


@each_suffix
@given(st.lists(steps, max_size=12), st.integers(1, 5))
def test_any_records_come_back(
    suffix: str, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Fields]], records: int
) -> None:
    path = tmp_path_factory.mktemp("any") / f"out{suffix}"
    positions = np.cumsum([step for step, _ in steps]).tolist()
    written = [(at - 1, fields, ImageInfo(), "all") for at, (_, fields) in zip(positions, steps, strict=True)]
    build(path, written, records=records)
    with open_reader(path) as reader:
        assert read_all(reader) == expected(written)  # type: ignore[arg-type]
        assert isinstance(reader, IndexedReader)
        assert not [each for shard in range(len(reader.manifest.shards)) for each in reader.differences(shard)]


# Writers.


ILLEGAL = [
    (5, {"jpg": b"x"}, ImageInfo(), "does not follow 5"),
    (10**8, {"jpg": b"x"}, ImageInfo(), "does not fit a key of 8 digits"),
    (6, {}, ImageInfo(), "has no field"),
    (6, {"JPG": b"x"}, ImageInfo(), "field name 'JPG'"),
    (6, {"__x": b"x"}, ImageInfo(), "field name '__x'"),
    (6, {"jpg": "text"}, ImageInfo(), "found str"),
    (6, {"jpg": b"x"}, ImageInfo(3), "label is 3 but its field cls is None"),
    (6, {"cls": b"4"}, ImageInfo(3), "label is 3 but"),
    (6, {"cls": b"3"}, ImageInfo(), "label is -1 but"),
    (6, {"cls": b"7"}, ImageInfo(7), "record 00000006: it has label 7, but there are 7 classes"),
    (6, {"jpg": b"x"}, ImageInfo(width=1 << 31), "2147483648"),
    (6, {"jpg": b"x"}, ImageInfo(orientation=9), "orientation 9"),
]
ALL = Section(0, "all", 0, 100)


@each_suffix
def test_illegal_records(tmp_path: Path, suffix: str) -> None:
    """Each is refused, and nothing of it is left."""
    with target_of(tmp_path / f"out{suffix}") as target:
        writer = writer_of(target, Description(classes=tuple("abcdefg")))
        with pytest.raises(ContainerError, match="no section was begun"):
            writer.write(5, {"jpg": b"y"}, ImageInfo())
        with pytest.raises(ContainerError, match="split name"):
            writer.begin(Section(0, "a b", 0, 10))
        writer.begin(ALL)
        writer.write(5, {"jpg": b"y"}, ImageInfo())
        for *record, message in ILLEGAL:
            with pytest.raises(ContainerError, match=message):
                writer.write(*record)  # type: ignore[arg-type]
        writer.write(7, {"jpg": b"z"}, ImageInfo())
        writer.finish()
        target.publish(writer.files)
    assert [record.fields for record in open_reader(target.path)] == [{"jpg": b"y"}, {"jpg": b"z"}]


def test_splits_are_contiguous(tmp_path: Path) -> None:
    with open_writer(tmp_path / "x.tar") as writer:
        for split in ("train", "val"):
            writer.write({"txt": "y"}, split)
        with pytest.raises(ContainerError, match="left and may not be entered"):
            writer.write({"txt": "y"}, "train")
        with pytest.raises(ContainerError, match="union"):
            writer.write({"txt": "y"}, "all")


# In use.


def test_reading_in_other_processes(reader: Reader) -> None:
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.manifest == reader.manifest
    assert copy.record(299) == reader.record(299)
    child = os.fork()
    if child == 0:
        os._exit(0 if reader.record(7) == copy.record(7) else 1)
    assert os.waitpid(child, 0)[1] == 0


@each_suffix
def test_replaced_by_another_dataset(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    build(path, [sample(1)])
    pickled = pickle.dumps(open_reader(path))
    for file in tmp_path.iterdir():
        file.unlink()
    build(path, [sample(0)])
    with pytest.raises(ContainerError, match="replaced by another dataset"):
        pickle.loads(pickled).record(0)


@pytest.mark.parametrize("kind", ["jpg", "rgb"])
def test_the_loader_gives_the_same_batches_from_every_container(tmp_path: Path, kind: str) -> None:
    for suffix in SUFFIXES:
        more = {} if suffix == ".lmdb" else {"shard_size": 30_000}
        with open_writer(tmp_path / f"x{suffix}", classes=["a", "b"], **more) as writer:  # type: ignore[arg-type]
            for i, data in enumerate(photographs(40)):
                pixels = {"rgb": random.Random(i).randbytes(3 * 40 * 30), "json": {"width": 40, "height": 30}}
                image = pixels if kind == "rgb" else {"jpg": data}
                writer.write({**image, "cls": i % 2}, split="train" if i < 30 else "val")  # type: ignore[arg-type]
    assert len(contents(tmp_path)) > 10
    names = [*(f"x{suffix}" for suffix in SUFFIXES), "x-train-*.tar", "x-*.tar", "x-*.tfrecord"]
    batches = []
    for path in (tmp_path / name for name in names):
        shards = sorted(path.parent.glob(path.name)) if "x-*" in path.name else path
        split = {"indices": range(30)} if "train" in path.name else {"split": "train"}
        dataset = FastDataset(shards, fields=["image", "label", "index"], **split)  # type: ignore[arg-type]
        options = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2}
        loader = FastLoader(dataset, transform=[T.RandomResizedCrop(32)], **options)  # type: ignore[arg-type]
        batches.append([(b["image"].numpy().tobytes(), b["label"].tolist(), b["index"].tolist()) for b in loader])
    assert all(each == batches[0] for each in batches)
