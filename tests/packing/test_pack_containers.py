"""Packing into every container: equal records, equal bytes for any number of workers, resumed after a kill."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import in_shards, records
from packing_runs import digests, interrupt
from PIL import Image
from todays import todays

from iofast import open_reader, pack
from iofast.errors import ErrorBudgetError, TargetError
from iofast.option import parse_size

NAMES = ("out.lmdb", "out.tar", "out.tfrecord")
SHARD = 60_000


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """130 pictures in two classes and two splits."""
    root = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    for number in range(130):
        split = "val" if number % 5 == 4 else "train"
        path = root / split / f"c{number % 2}" / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True, parents=True)
        pixels = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((80, 60)).save(path, quality=90)
    return root


FORMATS: list[dict[str, Any]] = [
    {"resize": 32, "format": "jpeg"},
    {"format": "keep"},
    {"resize": 32, "format": "rgb"},
    {"resize": 32, "format": "rgb", "shuffle": 3},
    {"resize": 32, "format": "png"},
]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        (FORMATS[0], (1, 2)),
        (FORMATS[1], (1, 2)),
        *(pytest.param(options, (1, 2, 3, 8), marks=pytest.mark.slow) for options in FORMATS),
    ],
)
def test_the_number_of_workers_is_in_no_byte(
    images: Path, tmp_path: Path, options: dict[str, Any], counts: Sequence[int]
) -> None:
    """All containers also have the same records and the same fingerprint."""
    found = []
    for name in NAMES:
        packed = {}
        for workers in counts:
            target = tmp_path / str(workers) / name
            target.parent.mkdir(exist_ok=True)
            pack(images, target, workers=workers, **in_shards(target, SHARD), **options)
            packed[workers] = digests(target.parent)
        assert len({json.dumps(each) for each in packed.values()}) == 1
        found.append([(record.key, dict(record.fields)) for record in records(target)])
        with open_reader(target) as reader:
            assert reader.manifest.splits == {"train": ((0, 104),), "val": ((104, 130),)}
            found[-1].append((reader.manifest.fingerprint, {}))
    assert found[0] == found[1] == found[2]


def test_names_of_shards(images: Path, tmp_path: Path) -> None:
    report = pack(images, tmp_path / "out.tar", resize=32, shard_size=SHARD)
    names = sorted(os.listdir(tmp_path))
    assert "out-train-000000.tar" in names
    assert "out-val-000000.tar" in names
    assert report.bytes_out == sum((tmp_path / name).stat().st_size for name in names)
    with open_reader(tmp_path / "out.tar") as reader:
        train, val = ([shard for shard in reader.manifest.shards if split in shard.name] for split in ("train", "val"))
    assert {shard.count for shard in train[:-1]} == {train[0].count}, "all but the last of a split have as many records"
    assert all(shard.size == pytest.approx(SHARD, rel=0.25) for shard in train[:-1])
    assert len(train) > 1
    assert val[0].count <= train[0].count
    with pytest.raises(TargetError, match="exists already"):
        pack(images, tmp_path / "out.tar", resize=32, shard_size=SHARD)
    pack(images, tmp_path / "out.tar", resize=32, overwrite=True)
    names = ["out-train-000000.tar", "out-val-000000.tar", "out.tar.index", "out.tar.manifest"]
    assert sorted(os.listdir(tmp_path)) == names


def test_a_split_that_is_part_of_the_name(images: Path, tmp_path: Path) -> None:
    """`train.tar` has train-000000.tar, whether there are other splits or not."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "train").symlink_to(images / "train")
    for source, val in ((tmp_path / "alone", []), (images, ["birds-train-val-000000.tar", "train-val-000000.tar"])):
        for name in ("train.tar", "birds-train.tar"):
            pack(source, tmp_path / name, resize=32, overwrite=True)
            with open_reader(tmp_path / name) as reader:
                assert "train" in reader.manifest.splits
                assert len(list(reader)) == len(reader)
        shards = sorted(path.name for path in tmp_path.glob("*.tar"))
        assert shards == sorted(["birds-train-000000.tar", "train-000000.tar", *val])


def test_shards_of_a_number_of_records(images: Path, tmp_path: Path) -> None:
    """A failed image leaves a hole in its shard and does not change any other shard."""
    pack(images, tmp_path / "a.tar", resize=32, shard_records=30)
    with open_reader(tmp_path / "a.tar") as reader:
        assert [shard.count for shard in reader.manifest.shards] == [30, 30, 30, 14, 26]
    broken = sorted((images / "train").rglob("*.jpg"))[40]
    whole = broken.read_bytes()
    try:
        broken.write_bytes(b"nothing")
        pack(images, tmp_path / "b.tar", resize=32, shard_records=30, max_errors=1)
    finally:
        broken.write_bytes(whole)
    shards = [sorted(tmp_path.glob(f"{name}-*.tar")) for name in "ab"]
    same = [one.read_bytes() == other.read_bytes() for one, other in zip(*shards, strict=True)]
    assert same == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("1GB", 10**9), ("1GiB", 1 << 30), ("1.5k", 1500), (7, 7), ("12", 12), ("2 tib", 2 << 40)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size(text) == size


def resumable(name: str, **options: Any) -> dict[str, Any]:
    """Shards may end within a chunk, which has two images."""
    return {"resize": 32, **({} if name.endswith("lmdb") else {"shard_records": 7}), **options}


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The files of undisturbed runs."""
    folder = tmp_path_factory.mktemp("whole")
    for name in NAMES:
        (folder / name).mkdir()
        pack(images, folder / name / name, **resumable(name))
    return {name: digests(folder / name) for name in NAMES}


@pytest.mark.parametrize("name", todays(NAMES))
class TestContainerResume:
    def test_an_interrupted_run_goes_on(self, images: Path, whole: dict[str, Any], tmp_path: Path, name: str) -> None:
        for at in (30, 9, 15):  # the first one is in the second shard
            interrupt(images, tmp_path / name, at, **resumable(name))
        report = pack(images, tmp_path / name, **resumable(name))
        assert report.resumed > 20
        assert (report.packed, report.failed) == (130, 0)
        assert digests(tmp_path) == whole[name]
        assert not (tmp_path / f"{name}.partial").exists()

    def test_failures_of_finished_sections_count(self, images: Path, tmp_path: Path, name: str) -> None:
        """They are not tried again, and are those of the run that goes on."""
        source = tmp_path / "images"
        source.mkdir()
        for path in images.glob("train/c0/*.jpg"):
            (source / path.name).write_bytes(path.read_bytes())
        bad = sorted(source.iterdir())[3]
        good = bad.read_bytes()
        bad.write_bytes(b"bad")
        options = resumable(name)
        interrupt(source, tmp_path / name, 30, max_errors=1, **options)
        bad.write_bytes(good)
        with pytest.raises(ErrorBudgetError, match="1 of 52 images failed"):
            pack(source, tmp_path / name, max_errors=0, **options)
        report = pack(source, tmp_path / name, max_errors=1, **options)
        assert (report.failed, report.packed) == (1, 51)
        assert len((tmp_path / f"{name}.errors.jsonl").read_text().splitlines()) == 1
