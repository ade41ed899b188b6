"""`iofast stage` and `iofast cache`: filling, listing, checking and emptying the cache of stored objects."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from loader_sets import photographs
from small_blocks import BLOCK
from web_server import counts, web_server

from iofast import open_reader, open_writer
from iofast.mirror import cache

pytest.importorskip("obstore", reason="needs iofast[remote]")

pytestmark = pytest.mark.usefixtures("small_blocks", "folder")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    for suffix in (".tar", ".lmdb"):
        with open_writer(folder / f"set{suffix}", shard_size=None if suffix == ".lmdb" else 5 * BLOCK) as writer:
            for number, data in enumerate(photographs(120)):
                writer.write({"jpg": data, "cls": number % 2}, "train" if number < 90 else "val")
    with web_server(folder) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "objects"))
    return tmp_path / "objects"


def sent(site: str) -> int:
    return counts(site)["bytes"]


@pytest.mark.parametrize("suffix", [".tar", ".lmdb"])
def test_a_staged_set_is_read_without_the_store(site: str, suffix: str, iofast: CommandLine) -> None:
    url = f"{site}/set{suffix}"
    assert f"{url}: 120 records in the cache, " in iofast("stage", url).out
    before = sent(site)
    with open_reader(url) as reader:
        assert len(list(reader)) == 120
    assert sent(site) == before
    assert iofast("stage", url, "--json").facts["staged"] == [{"url": url, "records": 120, "fetched": 0}]


def test_only_a_split(site: str, iofast: CommandLine) -> None:
    assert iofast("stage", f"{site}/set.tar", "--split", "val", "--quiet")[:2] == (0, "")
    before = sent(site)
    with open_reader(f"{site}/set.tar") as reader:
        reader.record(100)
        assert sent(site) == before
        reader.record(3)
        assert sent(site) > before
    iofast("stage", f"{site}/set.tar", "--split", "none").fails(2, "none")


def test_a_cache_without_room(site: str, monkeypatch: pytest.MonkeyPatch, iofast: CommandLine) -> None:
    """Not even for what is brought at once, or so that the end displaces the beginning."""
    monkeypatch.setattr("iofast.staging._RECORDS", 20)
    for limit in ("70kB", "250kB"):
        monkeypatch.setenv(cache.SIZE, limit)
        words = f"has no room: it may take {limit[:-2]},000 bytes", "IOFAST_CACHE_SIZE sets how much it may take"
        iofast("stage", f"{site}/set.tar").fails(2, *words)


def test_a_path_is_not_staged(tmp_path: Path, iofast: CommandLine) -> None:
    iofast("stage", tmp_path / "a.lmdb").fails(2, "is no URL: only what is in an object store is staged")


def test_listing_and_clearing(site: str, folder: Path, iofast: CommandLine) -> None:
    assert iofast("cache", "ls").out == "0 objects, 0 B\n"
    for name in ("set.tar", "set.lmdb"):
        iofast("stage", f"{site}/{name}", "--quiet")
    listed = iofast("cache", "ls").out
    assert f"{site}/set.lmdb" in listed
    assert f"{site}/set-train-000000.tar" in listed
    (row,) = iofast("cache", "ls", f"{site}/set.lmdb", "--json").facts["objects"]
    assert row["url"] == f"{site}/set.lmdb"
    assert 0.9 * row["size"] < row["here"] <= row["size"]
    assert "removed" in iofast("cache", "clear", f"{site}/set.").out
    listed = iofast("cache", "ls").out
    assert "set.lmdb" not in listed
    assert "set-train-000000.tar" in listed
    assert iofast("cache", "clear", "--quiet").status == 0
    assert list(folder.glob("*.copy")) == []


def test_damage_in_the_cache_is_found_and_fetched_again(site: str, folder: Path, iofast: CommandLine) -> None:
    iofast("stage", f"{site}/set.lmdb", "--quiet")
    assert iofast("cache", "verify").out.count("0 damaged blocks dropped") == 1
    (path,) = folder.glob("*.copy")
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"damage", 2 * BLOCK + 100)
    status, found, _ = iofast("cache", "verify")
    assert (status, "1 damaged block dropped" in found) == (1, True)
    assert iofast("cache", "verify").status == 0
    assert "65.5 kB fetched" in iofast("stage", f"{site}/set.lmdb").out
