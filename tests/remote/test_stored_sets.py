"""Training from an object store: the same batches as from disk, whatever the cache holds and whatever fails."""

import os
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loader_sets import eventually, photographs
from object_store import REFUSED, Bucket, FaultProxy
from small_blocks import BLOCK
from todays import todays
from torch.utils.data import DataLoader
from web_server import counts, make_certificate, web_server

import iofast.transforms as T
from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast.checking import verify
from iofast.errors import ContainerError, ObjectConflictError, SourceError, StateError, StorageError
from iofast.mirror import cache
from iofast.opening import open_shards
from iofast.order import Blocks, Sequential, Shuffled
from iofast.remote.connection import _connect as cache_of_connections

COUNT = 240
FORMATS = (".tar", ".tfrecord", ".lmdb")

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images in each format, some megabytes each, in shards of some blocks."""
    folder = tmp_path_factory.mktemp("sets")
    images = photographs(COUNT)
    for suffix in FORMATS:
        size = None if suffix == ".lmdb" else 5 * BLOCK
        with open_writer(folder / f"train{suffix}", classes=("a", "b"), shard_size=size) as writer:
            for number, data in enumerate(images):
                padding = {"note.txt": "x" * (number * 37 % 9000)}
                writer.write({"jpg": data, "cls": number % 2, **padding})
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def site(sets: Path) -> Iterator[str]:
    with web_server(sets) as url:
        yield url


def loader(path: str | Path, order: Any = None, **options: Any) -> FastLoader:
    dataset = FastDataset(path, fields=options.pop("fields", None), split=None)
    transform = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
    options = {"batch_size": 16, "num_workers": 2, "seed": 3, **options}
    return FastLoader(dataset, transform=transform, order=order or Shuffled(), **options)


def batches(made: FastLoader, epochs: int = 1) -> list[torch.Tensor]:
    return [tensor for _ in range(epochs) for batch in made for tensor in batch]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


ORDERS = [Shuffled(), Blocks(16, 4), Sequential()]
CACHES = [(limit, order) for order in ORDERS for limit in ("1GB", "200kB", "0")]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("cache_and_order", [*todays(CACHES[:5]), *todays(CACHES[5:])], ids=str)
@pytest.mark.parametrize("suffix", FORMATS)
def test_batches_are_those_of_the_local_set(
    sets: Path, site: str, monkeypatch: pytest.MonkeyPatch, suffix: str, cache_and_order: tuple[str, Any]
) -> None:
    """With a cache that is cold, then warm; with one that is too small; and with none."""
    limit, order = cache_and_order
    monkeypatch.setenv(cache.SIZE, limit)
    local = batches(loader(sets / f"train{suffix}", order), 2)
    assert equal(batches(loader(f"{site}/train{suffix}", order), 2), local)
    if limit == "1GB":
        before = counts(site)["bytes"]
        assert equal(batches(loader(f"{site}/train{suffix}", order), 2), local)
        assert counts(site)["bytes"] == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("suffix", FORMATS)
def test_records_keys_and_values(sets: Path, site: str, suffix: str) -> None:
    with open_reader(sets / f"train{suffix}") as local, open_reader(f"{site}/train{suffix}") as stored:
        assert [(each.key, each.fields) for each in stored] == [(each.key, each.fields) for each in local]
        assert stored.manifest == local.manifest
        assert stored.name(3).startswith(f"{site}/train")
        again = pickle.loads(pickle.dumps(stored))
        assert bytes(again.view(7)) == bytes(local.view(7))
        again.close()
    assert verify(f"{site}/train{suffix}").problems == []


@pytest.mark.usefixtures("folder")
def test_several_sets_are_joined(sets: Path, site: str, caplog: pytest.LogCaptureFixture) -> None:
    names = ["train.tar", "train.lmdb"]
    local = FastDataset([sets / name for name in names])
    for paths in ([f"{site}/{name}" for name in names], [sets / names[0], f"{site}/{names[1]}"]):
        made = FastLoader(FastDataset(paths), batch_size=32, num_workers=2, transform=[T.CenterCrop(20)])
        assert equal(batches(made), batches(FastLoader(local, batch_size=32, transform=[T.CenterCrop(20)])))
    assert "reading ahead ended" not in caplog.text


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("suffix", [".tar", ".tfrecord"])
def test_shards_of_another_program(sets: Path, site: str, tmp_path: Path, suffix: str) -> None:
    """Without a manifest beside them: read once, then by their index."""
    shards = sorted(sets.glob(f"train-*{suffix}"))
    for number, shard in enumerate(shards[:3]):
        shutil.copy(shard, sets / f"other-{number:04d}{suffix}")
    pattern = f"other-{{0000..0002}}{suffix}"
    local = batches(loader(sets / pattern))
    assert equal(batches(loader(f"{site}/{pattern}")), local)
    before = counts(site)
    assert equal(batches(loader(f"{site}/{pattern}")), local)
    assert counts(site)["bytes"] == before["bytes"]
    assert len(open_reader(f"{site}/other-0001{suffix}")) == len(open_reader(sets / f"other-0001{suffix}"))
    ours = [f"{site}/{shard.name}" for shard in shards]
    assert open_shards(ours, "ours").container == suffix[1:]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl, which makes the certificate")
@pytest.mark.usefixtures("folder")
def test_shards_of_another_program_by_https(
    sets: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(next(sets.glob("train-*2.tar")), tmp_path / "foreign-0000.tar")
    local = batches(loader(tmp_path / "foreign-0000.tar"))
    trusted, server = make_certificate(tmp_path_factory.mktemp("certificates"))
    with web_server(tmp_path, certificate=server) as url:
        with pytest.raises(StorageError, match=r"manifest cannot be read: the server's certificate is not trusted$"):
            open_reader(f"{url}/foreign-0000.tar")
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        cache_of_connections.cache_clear()
        assert equal(batches(loader(f"{url}/foreign-0000.tar")), local)


@pytest.mark.usefixtures("folder")
def test_a_readahead_that_has_ended_needs_no_block(site: str) -> None:
    """Its epoch still runs; a plan that outlived the thread would keep its blocks from eviction."""
    made = loader(f"{site}/train.tar")
    batches(made)
    running = iter(made)
    next(running)
    assert eventually(lambda: not cache.current()._needs)
    assert len(list(running)) == COUNT // 16 - 1


@pytest.mark.usefixtures("folder")
class TestTraffic:
    @pytest.fixture
    def size(self, sets: Path) -> int:
        return sum(path.stat().st_size for path in sets.glob("train*.tar*"))

    @pytest.mark.parametrize("order", todays(ORDERS), ids=lambda each: type(each).__name__)
    def test_the_first_epoch_reads_hardly_more_than_the_set(self, size: int, site: str, order: Any) -> None:
        before = counts(site)["bytes"]
        batches(loader(f"{site}/train.tar", order))
        first_batch = 16 * max(map(len, photographs(COUNT)))
        assert size * 0.9 <= counts(site)["bytes"] - before <= size + 2 * first_batch

    def test_a_consumer_that_is_slower_than_the_store_reads_nothing_twice(
        self, size: int, site: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first records of a window come into view alone, far ahead: they are not read apart from their blocks."""
        monkeypatch.setattr("iofast.prefetch.stored_readahead.BUDGET", 4 * BLOCK)
        before = counts(site)["bytes"]
        for _ in loader(f"{site}/train.tar", Blocks(32, 2), batch_size=8):
            time.sleep(0.02)
        assert counts(site)["bytes"] - before <= size + 8 * max(map(len, photographs(COUNT)))

    def test_ranks_of_a_machine_fetch_each_byte_once(
        self, size: int, site: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        before = counts(site)["bytes"]
        ranks = [loader(f"{site}/train.tar", Sequential(), rank=rank, world_size=2) for rank in range(2)]
        for _ in zip(*ranks, strict=True):
            pass
        assert counts(site)["bytes"] - before <= size

    def test_a_cache_of_half_the_set_saves_half_of_each_epoch(
        self, size: int, site: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The usual rule, the oldest first, would save nothing: what is read next has always just gone."""
        monkeypatch.setenv(cache.SIZE, str(size // 2))
        monkeypatch.setattr(cache, "_AT_A_TIME", 1)
        made = loader(f"{site}/train.tar", Sequential())
        batches(made)
        before = counts(site)["bytes"]
        batches(made, 2)
        assert counts(site)["bytes"] - before <= 2 * 0.65 * size


class TestFaults:
    @pytest.fixture
    def url(self, sets: Path, bucket: Bucket, proxy: FaultProxy, folder: Path) -> str:
        for path in sets.glob("train*.tar*"):
            bucket.put(f"k/{path.name}", path.read_bytes())
        return f"s3://{bucket.name}/k/train.tar"

    @pytest.mark.parametrize("on_error", todays(["raise", "replace", "drop"]))
    def test_storage_that_fails_is_no_bad_sample(self, url: str, proxy: FaultProxy, on_error: str) -> None:
        made = loader(url, on_error=on_error)
        proxy.plan = lambda request: REFUSED if "000003" in request.path else None
        with pytest.raises(StorageError, match=r"train-000003\.tar cannot be read: 403 forbidden"):
            batches(made)
        assert made.stats.errors == 0

    def test_a_swapped_shard_is_one_clear_error_and_a_damaged_one_is_found(
        self, sets: Path, url: str, bucket: Bucket
    ) -> None:
        next(iter(loader(url)))
        data = bytearray((sets / "train-000003.tar").read_bytes())
        data[2000] ^= 4
        bucket.put("k/train-000003.tar", bytes(data))
        assert [each.path for each in verify(url).problems]
        for path in sets.glob("train-*.tar"):
            bucket.put(f"k/{path.name}", bytes(data))
        shutil.rmtree(os.environ[cache.FOLDER])
        with pytest.raises((ObjectConflictError, ContainerError), match=r"has changed|replaced by another"):
            batches(loader(url, on_error="replace"))

    def test_a_missing_shard(self, url: str, bucket: Bucket) -> None:
        made = loader(url, on_error="replace")
        bucket.request("DELETE", "k/train-000002.tar")
        with pytest.raises(FileNotFoundError, match=r"train-000002\.tar does not exist"):
            batches(made)


@pytest.mark.usefixtures("folder")
def test_workers_by_fork_get_a_clear_error(site: str) -> None:
    made = DataLoader(FastDataset(f"{site}/train.lmdb"), 40, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(StateError, match="start processes with the method spawn or forkserver"):
        list(made)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none.tar", "neither this object nor .*none.tar.manifest exists"),
        ("none.lmdb", "none.lmdb does not exist"),
        ("train.zip", "is no container: expected the name of a set"),
        ("", "is no container: expected the name of a set"),
    ],
)
def test_what_cannot_be_opened(site: str, name: str, text: str) -> None:
    with pytest.raises((SourceError, FileNotFoundError), match=text):
        open_reader(f"{site}/{name}")
