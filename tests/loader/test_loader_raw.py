"""Raw pixels: each image is compared with its checksum once, then only the rows of crops are read."""

from __future__ import annotations

from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch
from kernel_images import photo
from lmdb_containers import build

from iofast import FastDataset, FastLoader, open_reader
from iofast import transforms as T
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError, DecodeError
from iofast.record import ImageInfo

DAMAGED = r"out.lmdb: 00000003: the payload's CRC32C differs"


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """Eight images of 80 x 64 and more pixels."""
    images = [(i, {"rgb": photo(80, 64 + i, i).tobytes()}, ImageInfo(-1, 80, 64 + i), "all") for i in range(8)]
    build(tmp_path / "out.lmdb", images)
    return tmp_path / "out.lmdb"


def loader_of(path: Path, **options: object) -> FastLoader:
    transform = options.pop("transform", [T.CenterCrop(20)])
    return FastLoader(FastDataset(path), 4, seed=5, transform=transform, num_workers=1, **options)  # type: ignore[arg-type]


def epoch(loader: FastLoader) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def damage(path: Path, index: int, row: int) -> None:
    """Change a byte in the middle of one row of one image."""
    with LmdbReader(path) as reader:
        place = int(reader.locate(np.array([index])).offset[0]) + 240 * row + 120
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([data[place] ^ 8]))


def test_damage_anywhere_in_an_image_is_found_when_it_is_first_read(container: Path) -> None:
    """Also outside of the crop, and in every epoch where the image is replaced."""
    damage(container, 3, 2)
    with open_reader(container) as reader:
        for use in (reader.view, reader.record):
            with pytest.raises(ContainerError, match=r"00000003: .* is damaged: its CRC32C differs"):
                use(3)
        reader.record(4)
    for _ in range(2):
        with pytest.raises(DecodeError, match=DAMAGED):
            _ = FastDataset(container)[3]
        with pytest.raises(DecodeError, match=DAMAGED):
            epoch(loader_of(container))
    loader = loader_of(container, on_error="replace")
    for number in range(3):
        epoch(loader)
        assert [failure.epoch for failure in loader.failures] == list(range(number + 1))


@pytest.mark.parametrize("transform", [[T.CenterCrop(20)], [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]])
def test_later_epochs_give_the_pixels_of_the_first(container: Path, transform: list[T.Transform]) -> None:
    """With everything compared, with nothing compared, and with some images of each batch."""
    loader = loader_of(container, transform=transform, shuffle=True)
    compared = loader._resources.compared
    assert compared is not None
    expected = [epoch(loader_of(container, transform=transform, shuffle=True, check=None))]
    loader.set_epoch(0)
    assert torch.equal(epoch(loader), expected[0])
    assert compared.all()
    for some in (slice(0, 0), slice(1, 8, 3)):
        compared[:] = False
        compared[some] = True
        loader.set_epoch(0)
        assert torch.equal(epoch(loader), expected[0])
        assert compared.all()


def test_an_image_is_compared_once(container: Path) -> None:
    """The rows of the crop are read again in each epoch, the others are not."""
    loader = loader_of(container)
    first = epoch(loader)
    damage(container, 3, 2)
    assert torch.equal(epoch(loader), first)
    damage(container, 3, 33)
    assert not torch.equal(epoch(loader), first)
    with pytest.raises(DecodeError, match=DAMAGED):
        epoch(loader_of(container))
    assert len(epoch(loader_of(container, check=None))) == 8


def change_value(path: Path, value: bytes | None = None) -> bytes:
    """Give record 3 another value of the same length, zeros by default, and return the one before."""
    with (
        lmdb.open(str(path), subdir=False, map_size=1 << 26, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        key = next(key for key, _ in transaction.cursor() if key.startswith(b"00000003."))
        before: bytes = transaction.get(key)
        transaction.put(key, bytes(len(before)) if value is None else value)
        return before


def test_what_another_program_writes_into_a_container_is_compared_every_time(container: Path) -> None:
    """After an epoch in which everything was compared."""
    loader = loader_of(container)
    first = epoch(loader)
    compared = loader._resources.compared
    assert compared is not None
    assert compared.all()
    before = change_value(container)
    for _ in range(2):
        with pytest.raises(DecodeError, match=DAMAGED):
            epoch(loader)
    change_value(container, before)
    assert torch.equal(epoch(loader), first)
