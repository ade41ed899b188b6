"""A loader with few descriptors, without shared memory, or with a container that changes meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from kernel_images import jpeg, photo
from loader_sets import digest, photographs, workers, write_folder, write_lmdb
from places import ROOT
from tar_sets import foreign

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import ContainerError, DecodeError, SourceError

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


def run(code: str, path: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT + code, str(path)]
    if before:
        return subprocess.run([*before, *command], capture_output=True, text=True, timeout=120)
    return forked.run(command, timeout=120)


def without_shm() -> list[str]:
    """Prefix of a command: mounts /dev/shm read-only in a namespace of its own. Empty if that is not allowed."""
    alone = ["unshare", "--mount", "--map-root-user"]
    mount = "mount -t tmpfs -o ro,size=64k tmpfs /dev/shm"
    if not shutil.which("unshare") or subprocess.run([*alone, "sh", "-c", mount], capture_output=True).returncode:
        return []
    return [*alone, "sh", "-c", f'{mount} && exec "$@"', "sh"]


FEW = """
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
several = [loader(batch_size=100, num_workers=16) for _ in range(3)]
for epoch in range(2):
    for batches in zip(*several):
        assert all(len(images) == 100 for images, _ in batches)
print(sum(len(each) for each in several), len(os.listdir("/proc/self/fd")) < 256)
"""


def test_256_descriptors_and_a_folder_of_500_files(tmp_path: Path) -> None:
    """Sixteen threads in each of three loaders at once, batches of a hundred files."""
    done = run(FEW, write_folder(tmp_path / "folder", TINY * 100))
    assert (done.returncode, done.stdout, done.stderr) == (0, "15 True\n", "")


SHARDS = """
import numpy as np

def doubled(sample, rng):
    return sample | {"label": 2 * sample["label"]}

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    paths = sys.argv[1] + "/{000..299}.tar", sys.argv[2]
    options = dict(transform=[T.RandomResizedCrop(24)], num_workers=8)
    several = [FastLoader(FastDataset(path), 100, True, **options) for path in paths * 4]
    several.append(FastLoader(FastDataset(paths[0], fields=["image", "label"]), 100, True, map_sample=doubled,
                              **options))
    for batches in zip(*several):
        labels = [batch["label"] if isinstance(batch, dict) else batch[1] for batch in batches]
        assert all(len(each) == 100 for each in labels) and (labels[-1] % 2 == 0).all()
    print(sum(len(each) for each in several), len(os.listdir("/proc/self/fd")) < 256)
"""


@pytest.mark.slow
def test_256_descriptors_and_300_shards(tmp_path: Path) -> None:
    """Five loaders of shards and four of a folder at once, a function for one of them, and no shared memory."""
    for number in range(300):
        name = f"{number:05d}"
        foreign(tmp_path / f"{number:03d}.tar", {f"{name}.jpg": TINY[number % 5], f"{name}.cls": b"%d" % number})
    folder = write_folder(tmp_path / "folder", TINY * 60)
    (tmp_path / "script.py").write_text(SCRIPT + SHARDS)  # processes import their function from a file
    command = [*without_shm(), sys.executable, str(tmp_path / "script.py"), str(tmp_path), str(folder)]
    path = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "27 True\n", "")


NONE_LEFT = """
held = []
for batch in loader(batch_size=1, num_workers=1):
    try:
        while len(held) < 4000:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
"""


def test_no_descriptor_left_is_no_fault_of_the_images(tmp_path: Path) -> None:
    """With `replace` all of them would be replaced, and the cause hidden."""
    done = run(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))" + NONE_LEFT,
        write_folder(tmp_path / "folder", TINY * 8),
    )
    assert "SourceError: cannot open " in done.stderr.splitlines()[-1]
    assert "too many open files (this process may have 256: ulimit -n)" in done.stderr.splitlines()[-1]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_lmdb(tmp_path / "own.lmdb", IMAGES)


def in_memory() -> list[str]:
    """What is open and lies in shared memory."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile by a thread
            target = os.readlink(f"/proc/self/fd/{name}")
            if "/dev/shm" in target or "memfd" in target:
                found.append(target)
    return sorted(found)


def mapped() -> set[str]:
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line}


@pytest.mark.parametrize("name", ["set.lmdb", "folder"])
def test_nothing_lies_in_shared_memory(place: Path, name: str) -> None:
    dataset = FastDataset(place / name)
    opened = in_memory()  # by other tests of this process
    before = mapped()  # tqdm's lock is a semaphore of 32 bytes
    for _ in FastLoader(dataset, 4, transform=AUGMENT, num_workers=3):
        assert mapped() <= before
        assert in_memory() == opened


NO_SHM = """
try:
    open("/dev/shm/iofast-test", "w")
except OSError:
    for sys.argv[1] in (sys.argv[1], os.path.dirname(sys.argv[1]) + "/folder"):
        print(sum(len(labels) for _, labels in loader()))
"""


def test_shared_memory_that_cannot_be_used(own: Path) -> None:
    if not (before := without_shm()):
        pytest.skip("this user may not mount anything")
    write_folder(own.with_name("folder"), IMAGES)
    done = run(NO_SHM, own, *before)
    assert (done.returncode, done.stdout, done.stderr) == (0, "40\n40\n", "")


def loader_of(path: Path) -> FastLoader:
    return FastLoader(FastDataset(path), 4, shuffle=True, transform=AUGMENT, num_workers=3)


def deleted(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    """As a second `pack` replaces it."""
    os.replace(write_lmdb(path.with_name("other.lmdb"), IMAGES[:8]), path)


@pytest.mark.parametrize("change", [deleted, replaced])
def test_a_container_whose_name_goes_is_read_to_the_end_and_again(own: Path, change: Callable[[Path], None]) -> None:
    loader = loader_of(own)
    expected = digest(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    begun = [next(batches)]
    change(own)
    assert digest([*begun, *batches]) == expected
    loader.set_epoch(0)
    assert digest(loader) == expected
    if change is deleted:
        with pytest.raises(SourceError, match="does not exist"):
            FastDataset(own)
    else:
        assert len(FastDataset(own)) == 8


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
