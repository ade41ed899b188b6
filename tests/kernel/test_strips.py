"""Strips from the writer to the loader: the index has the right checksums, and they are of use."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_images import photo
from lmdb_containers import compact, put_another
from raw_images import strip_of_bytes, strips_of

from iofast import FastDataset, FastLoader, open_reader
from iofast import transforms as T
from iofast.containers.base import Description
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.lmdb_writer import index_key
from iofast.errors import ContainerError, DecodeError
from iofast.kernel import raw
from iofast.kernel.contract import Kind
from iofast.record import ImageInfo

Sample = tuple[dict[str, bytes], ImageInfo]
CROP = [T.RandomResizedCrop(24, scale=(0.1, 0.3)), T.RandomHorizontalFlip()]


def pixels(field: str, width: int, height: int, seed: int = 0) -> bytes:
    image = photo(width, height, seed)
    return raw.pack_rgb(image) if field == "rgb" else raw.pack_yuv(image)


def write(path: Path, samples: list[Sample]) -> Path:
    writer = LmdbWriter(path)
    for position, (fields, info) in enumerate(samples):
        writer.write(position, fields, info, "all")
    writer.finish(Description())
    return path


@st.composite
def records(draw: st.DrawFn) -> Sample:
    """Any mixture of fields, whose raw ones have the size that the index says, or another."""
    width, height, orientation = draw(st.integers(1, 20)), draw(st.integers(1, 90)), draw(st.integers(1, 8))
    upright = (height, width) if orientation >= 5 else (width, height)
    fields = {"txt": b"any"}
    for field in draw(st.sets(st.sampled_from(("rgb", "yuv")))):
        fields[field] = pixels(field, width, height) + draw(st.sampled_from((b"", b"", b"x")))
    return fields, ImageInfo(-1, *upright, orientation)


def expected(field: str, sample: Sample) -> list[int]:
    fields, info = sample
    width, height = (info.height, info.width) if info.orientation >= 5 else (info.width, info.height)
    kind = Kind.RGB if field == "rgb" else Kind.YUV420
    if field not in fields or len(fields[field]) != raw.length(kind, width, height):
        return [0] * 16
    return [int(strip) for strip in strips_of(kind, fields[field], width, height)]


@settings(max_examples=40, deadline=None)
@given(samples=st.lists(records(), min_size=1, max_size=8))
def test_the_index_has_the_checksum_of_every_strip(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]
) -> None:
    path = write(tmp_path_factory.mktemp("strips") / "out.lmdb", samples)
    data = path.read_bytes()
    place = Tree(data, read_meta(data, "here"), "here").find(index_key(0))
    assert place is not None
    with open_reader(path) as reader:
        fields = reader.manifest.fields
        raws = [field for field in fields if field in ("rgb", "yuv")]
        size = 22 + 20 * len(fields) + 64 * len(raws)
        for i, sample in enumerate(samples):  # as docs/format.md tells an outsider to find them
            at = place[0] + 64 + 4 + i * size + 22 + 20 * len(fields)
            for number, field in enumerate(raws):
                assert list(struct.unpack_from("<16I", data, at + 64 * number)) == expected(field, sample)
        everything = np.arange(len(samples))
        for field in raws:
            located = reader.locate(everything, field)
            assert located.strips is not None
            assert located.strips.tolist() == [expected(field, sample) for sample in samples]
            assert located.strips.dtype == np.uint32
        assert reader.locate(everything, "txt").strips is None
        if raws:
            image = reader.locate(everything).strips
            assert image is not None
            first = [next((field for field in raws if field in sample[0]), raws[0]) for sample in samples]
            assert image.tolist() == [expected(field, own) for field, own in zip(first, samples, strict=True)]


@pytest.fixture(params=["rgb", "yuv"])
def container(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    field = str(request.param)
    samples = [({field: pixels(field, 80, 64 + i, i)}, ImageInfo(-1, 80, 64 + i)) for i in range(8)]
    return field, write(tmp_path / "out.lmdb", samples)


def epoch(path: Path, transform: list[T.Transform] = CROP) -> torch.Tensor:
    loader = FastLoader(FastDataset(path), 8, seed=5, transform=transform, num_workers=1)
    return next(iter(loader))[0]


def damage(path: Path, field: str, index: int, strip: int) -> None:
    """Change a byte in one strip of one image."""
    with LmdbReader(path) as reader:
        offset = int(reader.locate(np.array([index])).offset[0])
    strips = strip_of_bytes(Kind.RGB if field == "rgb" else Kind.YUV420, 80, 64 + index)
    with path.open("r+b") as file:
        file.seek(offset + int(np.flatnonzero(strips == strip)[-1]))
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 8]))


def test_damage_is_found_by_who_uses_it(container: tuple[str, Path]) -> None:
    """By crops of the damaged strip; by `view` and `record` always; and by nobody who crops elsewhere."""
    field, path = container
    middle: list[T.Transform] = [T.CenterCrop(20)]
    good = FastDataset(path)[3][0]
    damage(path, field, 3, 15)
    with open_reader(path) as reader:
        for use in (reader.view, reader.record):
            with pytest.raises(ContainerError, match=r"00000003: .* is damaged: its CRC32C differs"):
                use(3)
        reader.record(4)
    with pytest.raises(DecodeError, match=r"out.lmdb: 00000003: the payload's CRC32C differs"):
        _ = FastDataset(path)[3]
    with pytest.raises(DecodeError, match=r"out.lmdb: 00000003: the payload's CRC32C differs"):
        epoch(path, [T.Resize(40), T.CenterCrop(20)])
    wanted = np.asarray(good.crop((30, 24, 50, 44)))
    np.testing.assert_array_equal(epoch(path, middle)[3].permute(1, 2, 0).numpy(), wanted)
    damage(path, field, 3, 7)
    with pytest.raises(DecodeError, match=r"out.lmdb: 00000003: the payload's CRC32C differs"):
        epoch(path, middle)


@pytest.mark.parametrize("change", [compact, put_another])
def test_a_file_that_was_changed_since(
    container: tuple[str, Path], change: Callable[[Path, lmdb.Environment], None]
) -> None:
    """Payloads are elsewhere, their strips' checksums are as good as before."""
    field, path = container
    wanted = epoch(path)
    with lmdb.open(str(path), subdir=False, map_size=1 << 26, lock=False) as environment:
        change(path, environment)
    np.testing.assert_array_equal(epoch(path), wanted)
    key = b"00000002." + field.encode()
    with (
        lmdb.open(str(path), subdir=False, map_size=1 << 26, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(key, bytes(len(transaction.get(key))))
    with pytest.raises(DecodeError, match=r"00000002: the payload's CRC32C differs"):
        epoch(path)


def test_strips_do_not_make_a_file_depend_on_the_run(container: tuple[str, Path], tmp_path: Path) -> None:
    field, path = container
    samples = [({field: pixels(field, 80, 64 + i, i)}, ImageInfo(-1, 80, 64 + i)) for i in range(8)]
    assert write(tmp_path / "again.lmdb", samples).read_bytes() == path.read_bytes()
