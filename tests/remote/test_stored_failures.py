"""Answers that are damaged, and a store that is gone: the right pixels, or one clear error when the patience ends."""

import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from object_store import Bucket, Fault, FaultProxy, Plan, Request
from small_blocks import BLOCK
from test_stored_sets import FORMATS, batches, equal, folder, loader, sets, site
from todays import todays

from iofast import FastDataset, open_reader
from iofast.checking import verify
from iofast.errors import ContainerError, DecodeError, StorageError
from iofast.mirror import cache, stored
from iofast.mirror.stored import StoredObject
from iofast.order import Blocks, Sequential
from iofast.remote.limits import VARIABLE, RequestLimits
from iofast.remote.store import ObjectInfo, Store

__all__ = ["folder", "sets", "site"]

pytestmark = pytest.mark.usefixtures("small_blocks")


def damaging(seed: int, each: int) -> Plan:
    """Each first, second, … answer with bytes that were not sent before has three wrong bits."""
    chance, seen = random.Random(seed), set[tuple[str, str]]()

    def plan(request: Request) -> Fault | None:
        span = request.path, request.headers.get("range", "")
        if request.method != "GET" or span in seen:
            return None
        seen.add(span)
        return Fault(flips=tuple(chance.randrange(1 << 30) for _ in range(3))) if len(seen) % each == 0 else None

    return plan


@pytest.fixture
def damaged(site: str) -> Iterator[FaultProxy]:
    """A proxy before the web server."""
    proxy = FaultProxy(site)
    yield proxy
    proxy.close()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("suffix", todays(FORMATS))
def test_bytes_damaged_on_their_way_do_not_stay_in_the_cache(sets: Path, damaged: FaultProxy, suffix: str) -> None:
    """Of images, fields, manifest, index and pages: they are fetched again when a checksum differs."""
    path, url = sets / f"train{suffix}", f"{damaged.url}/train{suffix}"
    damaged.plan = damaging(0, 1)
    check_fields(url, path)
    with open_reader(url) as reader:
        assert all(reader.record(number).fields["cls"] == b"%d" % (number % 2) for number in (0, 100, 239))
    assert FastDataset(url)[77][0].tobytes() == FastDataset(path)[77][0].tobytes()
    damaged.plan = lambda _: None
    assert equal(batches(loader(url)), batches(loader(path)))
    if suffix != ".lmdb":  # a page that no reader needs may be damaged
        assert verify(url).problems == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("limit", ["200kB", "0"])
def test_bytes_damaged_on_their_way_past_the_cache(
    sets: Path, damaged: FaultProxy, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    suffix = ".lmdb" if limit == "0" else ".tar"
    monkeypatch.setenv(cache.SIZE, limit)
    damaged.plan = damaging(1, 9)  # not each: header and directory of an index are two requests
    check_fields(f"{damaged.url}/train{suffix}", sets / f"train{suffix}")


@pytest.mark.usefixtures("folder")
def test_a_block_that_was_away_is_fetched_again_when_it_comes_damaged(sets: Path, damaged: FaultProxy) -> None:
    """Bytes past the cache were damaged before the cache had their block."""
    path = sets / "train-000000.tar"
    whole = path.read_bytes()
    each = StoredObject(f"{damaged.url}/{path.name}")
    place = stored.Wanted(each, 0, 512)
    for _ in range(2):
        stored.fetch_again([place])  # nothing is here
    assert damaged.count("GET") == 0
    damaged.plan = lambda _: Fault(flips=(64,))
    assert each.read(0, 512) != whole[:512]
    damaged.plan = lambda _: None
    stored.fetch_again([place])
    assert each.read(0, 512) == whole[:512]


def check_fields(url: str, path: Path) -> None:
    fields = ("image", "label", "note.txt")
    for found, wanted in zip(*(loader(each, Blocks(16, 4), fields=fields) for each in (url, path)), strict=True):
        assert torch.equal(found["image"], wanted["image"])
        assert torch.equal(found["label"], wanted["label"])
        assert found["note.txt"] == wanted["note.txt"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("suffix", FORMATS)
def test_damage_that_stays_is_one_clear_error(damaged: FaultProxy, suffix: str) -> None:
    made = loader(f"{damaged.url}/train{suffix}")
    damaged.plan = lambda _: Fault(flips=tuple(range(0, BLOCK, 64)))
    with pytest.raises((DecodeError, ContainerError), match=r"the bytes are damaged|is invalid"):  # image or index
        batches(made)
    shutil.rmtree(os.environ[cache.FOLDER])
    with pytest.raises(ContainerError):
        open_reader(f"{damaged.url}/train{suffix}")


@pytest.mark.usefixtures("folder")
def test_what_the_readahead_waited_for_in_vain_is_not_tried_again(
    sets: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the error would come after twice the patience."""
    look, tries = stored.look, list[str]()

    def failing(urls: Sequence[str]) -> list[ObjectInfo]:
        tries.extend(each for each in urls if "000003" in each)
        if any("000003" in each for each in urls):
            time.sleep(3)
            error = StorageError("no answer in time, for 300 s")
            error.was_patient = True
            raise error
        return look(urls)

    monkeypatch.setattr(stored, "look", failing)
    found = list[torch.Tensor]()
    with pytest.raises(StorageError, match="for 300 s"):
        found.extend(images for images, _ in loader(f"{site}/train.tar", Sequential()))
    wanted = batches(loader(sets / "train.tar", Sequential()))[::2]
    assert 0 < len(found) < len(wanted)
    assert equal(found, wanted[: len(found)])
    assert len(tries) == 1


@pytest.mark.parametrize("name", ["train.tar", "train-{000000..000005}.tar", "train.lmdb"])
def test_opening_waits_once_for_a_store_that_fails(
    damaged: FaultProxy, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not again for other objects: what a store refuses is taken for missing, what it fails to answer is not."""
    monkeypatch.setenv(VARIABLE, "connect=1,read=1,patience=1")
    damaged.plan = lambda _: Fault(status=503)
    with pytest.raises(StorageError, match="503 service unavailable, for 1 s"):
        open_reader(f"{damaged.url}/{name}")
    assert len({each.path for each in damaged.requests}) == 1


def test_a_read_is_cut_off_when_the_patience_ends(bucket: Bucket, proxy: FaultProxy) -> None:
    """One attempt may take longer: obstore repeats its requests."""
    store = Store.of(f"s3://{bucket.name}", RequestLimits(connect=1, read=300, write=1, patience=1))
    store.put_bytes("x", b"data")
    proxy.plan = lambda _: Fault(delay=200)
    with pytest.raises(StorageError, match=r"/x cannot be read: no answer in time, for 1 s$"):
        store.get("x")
