"""A loader with few descriptors, without shared memory, or with a container that changes meanwhile; raw pixels."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import forked
import lmdb
import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from lmdb_containers import build
from loader_sets import digest, photographs, workers, write_folder, write_lmdb

from iofast import FastDataset, FastLoader, open_reader
from iofast import transforms as T
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError, DecodeError
from iofast.record import ImageInfo

IMAGES = photographs(40)
AUGMENT = [T.RandomResizedCrop(24)]
TINY = [jpeg(photo(32, 32, number)) for number in range(5)]

SCRIPT = """
import os, resource, sys
from iofast import FastDataset, FastLoader, transforms as T

def loader(batch_size=4, num_workers=3):
    return FastLoader(FastDataset(sys.argv[1]), batch_size, True, transform=[T.RandomResizedCrop(24)],
                      num_workers=num_workers)
"""


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-c", SCRIPT + code, str(path)], timeout=120)


def test_256_descriptors_and_a_folder_of_500_files(tmp_path: Path) -> None:
    """Sixteen threads in each of three loaders at once, batches of a hundred files."""
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
several = [loader(batch_size=100, num_workers=16) for _ in range(3)]
for epoch in range(2):
    for batches in zip(*several):
        assert all(len(images) == 100 for images, _ in batches)
print(sum(len(each) for each in several), len(os.listdir("/proc/self/fd")) < 256)
"""
    done = run(code, write_folder(tmp_path / "folder", TINY * 100))
    assert (done.returncode, done.stdout, done.stderr) == (0, "15 True\n", "")


def test_no_descriptor_left_is_no_fault_of_the_images(tmp_path: Path) -> None:
    """With `replace` all of them would be replaced, and the cause hidden."""
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
held = []
for batch in loader(batch_size=1, num_workers=1):
    try:
        while len(held) < 4000:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
"""
    words = run(code, write_folder(tmp_path / "folder", TINY * 8)).stderr.splitlines()[-1]
    assert "SourceError: cannot open " in words
    assert "too many open files (this process may have 256: ulimit -n)" in words


@pytest.mark.parametrize("name", ["set.lmdb", "folder"])
def test_nothing_lies_in_shared_memory(place: Path, name: str) -> None:
    def shared() -> set[str]:
        found = {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line}
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile by a thread
                target = os.readlink(f"/proc/self/fd/{number}")
                found |= {target} if "/dev/shm" in target or "memfd" in target else set()
        return found

    dataset = FastDataset(place / name)
    before = shared()  # by other tests of this process
    for _ in FastLoader(dataset, 4, transform=AUGMENT, num_workers=3):
        assert shared() <= before


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_lmdb(tmp_path / "own.lmdb", IMAGES)


def loader_of(path: Path) -> FastLoader:
    return FastLoader(FastDataset(path), 4, shuffle=True, transform=AUGMENT, num_workers=3)


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_a_container_whose_name_goes_is_read_to_the_end_and_again(own: Path, change: str) -> None:
    loader = loader_of(own)
    expected = digest(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    begun = [next(batches)]
    if change == "deleted":
        own.unlink()
    else:  # as a second `pack` replaces it
        os.replace(write_lmdb(own.with_name("other.lmdb"), IMAGES[:8]), own)
    assert digest([*begun, *batches]) == expected
    loader.set_epoch(0)
    assert digest(loader) == expected


CHANGED = """
import random, shutil
from iofast.errors import IofastError

def truncate(path, chance):
    os.truncate(path, int(os.path.getsize(path) * chance.choice([0, 0.3, 0.7, 0.99])))

def overwrite(path, chance):
    with open(path, "r+b") as file:
        file.write(chance.randbytes(os.path.getsize(path)))

for change in (truncate, overwrite):
    for seed in range(6):
        path, chance = f"{sys.argv[1]}-{seed}.lmdb", random.Random(seed)
        shutil.copy(sys.argv[1], path)
        made = FastLoader(FastDataset(path), 4, True, transform=[T.RandomResizedCrop(24)], num_workers=2)
        batches = iter(made)
        for _ in range(chance.randrange(5)):
            next(batches)
        change(path, chance)
        try:
            for _ in range(3):
                for _ in batches:
                    pass
                batches = iter(made)
            print("nothing noticed")
        except (IofastError, OSError) as error:
            print(change.__name__, type(error).__name__, error)
        os.unlink(path)
"""


def test_a_container_that_loses_its_bytes_is_an_error_and_no_crash(own: Path) -> None:
    done = run(CHANGED, own)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    for number, line in enumerate(lines):
        assert line.startswith("truncate" if number < 6 else "overwrite")
        assert line.split()[1] in ("ContainerError", "DecodeError")
        assert f"own.lmdb-{number % 6}.lmdb" in line


def test_a_file_of_a_folder_that_goes_is_named(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "folder", IMAGES)
    loader = loader_of(root)
    batches = iter(loader)
    next(batches)
    for path in root.rglob("*.jpg"):
        path.unlink()
    with pytest.raises((DecodeError, ContainerError, OSError), match=r"\.jpg"):
        list(batches)
    assert workers() == 0
    write_folder(root, IMAGES)
    assert len(list(loader)) == 10  # the next epoch reads files that came back


# --- raw pixels: each image is compared with its checksum once, then only the rows of crops are read

DAMAGED = r"out.lmdb: 00000003: the payload's CRC32C differs"


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """Eight images of 80 x 64 and more pixels."""
    images = [(i, {"rgb": photo(80, 64 + i, i).tobytes()}, ImageInfo(-1, 80, 64 + i), "all") for i in range(8)]
    build(tmp_path / "out.lmdb", images)
    return tmp_path / "out.lmdb"


def raw_loader(path: Path, **options: object) -> FastLoader:
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
            epoch(raw_loader(container))
    loader = raw_loader(container, on_error="replace")
    for number in range(3):
        epoch(loader)
        assert [failure.epoch for failure in loader.failures] == list(range(number + 1))


@pytest.mark.parametrize("transform", [[T.CenterCrop(20)], [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]])
def test_later_epochs_give_the_pixels_of_the_first(container: Path, transform: list[T.Transform]) -> None:
    """With everything compared, with nothing compared, and with some images of each batch."""
    loader = raw_loader(container, transform=transform, shuffle=True)
    compared = loader._resources.compared
    assert compared is not None
    expected = [epoch(raw_loader(container, transform=transform, shuffle=True, check=None))]
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
    loader = raw_loader(container)
    first = epoch(loader)
    damage(container, 3, 2)
    assert torch.equal(epoch(loader), first)
    damage(container, 3, 33)
    assert not torch.equal(epoch(loader), first)
    with pytest.raises(DecodeError, match=DAMAGED):
        epoch(raw_loader(container))
    assert len(epoch(raw_loader(container, check=None))) == 8


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
    loader = raw_loader(container)
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
