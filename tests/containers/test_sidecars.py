"""Sidecars: their content matches the bytes of the shards."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path

import pytest
from kernel_images import jpeg, photo

from iofast import open_reader, open_writer, pack
from iofast.cli import main
from iofast.containers import sidecars
from iofast.containers.sidecars import NAMES, write
from iofast.errors import OptionError, TargetError, UnfinishedError

COUNT = 40


def build(path: Path, *, splits: tuple[str, ...] = (), count: int = COUNT, overwrite: bool = False) -> list[Path]:
    """A set of several shards; its shards."""
    with open_writer(path, shard_size=40_000, overwrite=overwrite) as writer:
        for number in range(count):
            split = splits[number * len(splits) // count] if splits else None
            fields = {"jpg": jpeg(photo(60, 50, number), "RGB"), "cls": number % 3}
            writer.write(fields | ({"txt": ""} if number % 4 == 0 else {}), split)
    assert writer.manifest is not None
    assert len(writer.manifest.shards) > 2
    return [path.parent / shard.name for shard in writer.manifest.shards]


def photos(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(jpeg(photo(60, 50, number), "RGB"))
    return folder


def test_dali_tar_as_the_archive_says(tmp_path: Path) -> None:
    shards = build(tmp_path / "train.tar")
    made = write(tmp_path / "train.tar", ["dali"])
    assert made == [shard.with_suffix(".idx") for shard in shards]
    for shard, index in zip(shards, made, strict=True):
        samples: dict[str, list[str]] = {}
        with tarfile.open(shard) as archive:
            for member in archive:
                key, _, field = member.name.partition(".")
                samples.setdefault(key, []).append(f"{field} {member.offset_data} {member.size} {member.name}")
        lines = [f"v1.2 {len(samples)}", *(" ".join(parts) for parts in samples.values())]
        assert index.read_text() == "\n".join(lines) + "\n"
        assert index.stat().st_mode & 0o777 == shard.stat().st_mode & 0o777


def test_dali_tfrecord_as_the_framing_says(tmp_path: Path) -> None:
    shards = build(tmp_path / "x.tfrecord", splits=("train", "val"))
    made = write(tmp_path / "x.tfrecord", ["dali"])
    assert made == [shard.with_suffix(".idx") for shard in shards]
    for shard, index in zip(shards, made, strict=True):
        data, at, lines = shard.read_bytes(), 0, []
        while at < len(data):
            size = struct.unpack_from("<Q", data, at)[0] + 16
            lines.append(f"{at} {size}\n")
            at += size
        assert index.read_text() == "".join(lines)


def test_wids_and_timm(tmp_path: Path) -> None:
    shards = build(tmp_path / "a.tar", splits=("train", "val"))
    made = write(tmp_path / "a.tar", ["wids", "timm", "wids"])
    assert [file.name for file in made] == ["a-train.shardindex.json", "a-val.shardindex.json", "_info.json"]
    index = json.loads(made[0].read_text())
    assert (index["__kind__"], index["wids_version"], index["name"]) == ("wids-shard-index-v1", 1, "a-train")
    listed = [shard for name in made[:2] for shard in json.loads(name.read_text())["shardlist"]]
    assert [shard["url"] for shard in listed] == [shard.name for shard in shards]
    assert [shard["filesize"] for shard in listed] == [shard.stat().st_size for shard in shards]
    assert sum(shard["nsamples"] for shard in listed) == COUNT
    splits = json.loads(made[2].read_text())["splits"]
    assert list(splits) == ["train", "val"]
    train = splits["train"]
    assert (train["name"], train["num_samples"], sum(train["shard_lengths"])) == ("train", COUNT // 2, COUNT // 2)
    assert train["filenames"] == [name.name for name in shards if "train" in name.name]


def test_one_info_file_for_all_sets_of_a_folder(tmp_path: Path) -> None:
    for name in ("train", "val"):
        build(tmp_path / f"{name}.tar")
        write(tmp_path / f"{name}.tar", ["timm"])
    info = tmp_path / "_info.json"
    assert list(json.loads(info.read_text())["splits"]) == ["train", "val"]
    before = info.read_bytes()
    write(tmp_path / "train.tar", ["timm"])
    assert info.read_bytes() == before
    build(tmp_path / "x.tar", splits=("val", "test"))
    with pytest.raises(TargetError, match=r"has a split 'val' of other shards: \['val-000000\.tar'\]"):
        write(tmp_path / "x.tar", ["timm"])
    info.write_text('{"classes": 3}')
    with pytest.raises(TargetError, match="exists and is not as timm describes splits"):
        write(tmp_path / "train.tar", ["timm"])


def test_overwriting_a_set_removes_what_spoke_of_it(tmp_path: Path) -> None:
    build(tmp_path / "a.tar")
    build(tmp_path / "b.tar")
    write(tmp_path / "a.tar", ["dali", "wids"])
    write(tmp_path / "b.tar", ["dali", "wids"])
    before = {file.name for file in tmp_path.iterdir() if file.suffix in (".idx", ".json")}
    build(tmp_path / "a.tar", overwrite=True)
    after = {file.name for file in tmp_path.iterdir() if file.suffix in (".idx", ".json")}
    assert before - after == {name for name in before if name.startswith("a")}
    build(tmp_path / "c.tar")
    write(tmp_path / "b.tar", ["timm"])
    write(tmp_path / "c.tar", ["timm"])
    build(tmp_path / "b.tar", overwrite=True)
    assert (tmp_path / "_info.json").exists()  # it describes c too


@pytest.mark.parametrize(
    ("name", "kinds", "killed"),
    [("a.tar", NAMES, False), ("a.tar", NAMES, True), ("a.tar", ("wids",), False), ("a.tfrecord", ("dali",), True)],
)
def test_adding_to_a_set_makes_those_that_it_had_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kinds: tuple[str, ...], killed: bool
) -> None:
    images, path = photos(tmp_path / "images", 20), tmp_path / "sets" / name
    path.parent.mkdir()
    pack(images, path, shard_size=20_000)
    write(path, kinds)
    build(path.with_name("other.tar"))  # without sidecars, before and after
    before = {file.name for file in path.parent.iterdir()}
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(sidecars, "_store", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                pack(images, path, append=True, shard_size=20_000)
    pack(images, path, append=True, shard_size=20_000)
    found = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    for file in write(path, kinds):
        assert file.read_bytes() == found.pop(file.name)
    left = [file for file in found if file.endswith((".idx", ".shardindex.json", "_info.json"))]
    assert left == []
    assert len(found) > len(before) - len(kinds)


@pytest.mark.parametrize(("name", "kinds"), [("a.tar", "dali,wids,timm"), ("a.tfrecord", ["dali"])])
def test_they_are_a_part_of_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kinds: str | list[str]
) -> None:
    """After a kill during their making, the same command makes them, and packs nothing again."""
    photos(tmp_path / "images", 3)
    path = tmp_path / name
    with monkeypatch.context() as patch:
        patch.setattr(sidecars, "_store", _interrupt)
        with pytest.raises(KeyboardInterrupt, match="the same command goes on"):
            pack(tmp_path / "images", path, sidecars=kinds, workers=1)
    with pytest.raises(UnfinishedError):
        open_reader(path)
    report = pack(tmp_path / "images", path, sidecars=kinds, workers=1)
    assert (report.packed, report.resumed) == (3, 3)
    found = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    made = write(path, kinds.split(",") if isinstance(kinds, str) else kinds)
    assert all(file.read_bytes() == found.pop(file.name) for file in made)
    assert not [file for file in found if file.endswith((".idx", ".json", ".tmp"))]
    assert not path.with_name(f"{name}.partial").exists()


def test_set_is_whole_without_one_that_cannot_be_made(tmp_path: Path) -> None:
    photos(tmp_path / "images", 1)
    (tmp_path / "_info.json").write_text("[]")
    with pytest.raises(TargetError, match=r"a\.tar is whole, but not its sidecars: .*_info\.json exists[^;]*$"):
        pack(tmp_path / "images", tmp_path / "a.tar", sidecars="dali,timm", workers=1)
    with open_reader(tmp_path / "a.tar") as reader:
        assert len(reader) == 1
    assert (tmp_path / "a-000000.idx").exists()
    assert not (tmp_path / "a.tar.partial").exists()
    with pytest.raises(OptionError, match="there is no sidecar 'dally'"):
        pack(tmp_path / "images", tmp_path / "b.tar", sidecars="dally", workers=1)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_sidecar_that_cannot_be_made_again(tmp_path: Path) -> None:
    """timm's file already has a split of this name, of another set: it stays as it is, and the set is complete."""
    images = tmp_path / "images"
    for split in ("train", "val"):
        photos(images / split, 1)
        if split == "train":
            pack(images, tmp_path / "a.tar")
            write(tmp_path / "a.tar", ["timm"])
    info = tmp_path / "_info.json"
    splits = json.loads(info.read_text())["splits"]
    splits["val"] = splits["train"] | {"name": "val", "filenames": ["b-val-000000.tar"]}
    info.write_text(json.dumps({"splits": splits}))
    with pytest.warns(RuntimeWarning, match="its sidecar timm is out of date: .*a split 'val' of other shards"):
        pack(images, tmp_path / "a.tar", append=True)
    assert json.loads(info.read_text()) == {"splits": splits}
    with open_reader(tmp_path / "a.tar") as reader:
        assert reader.manifest.splits == {"train": ((0, 1), (1, 2)), "val": ((2, 3),)}


def test_what_has_no_sidecars(tmp_path: Path) -> None:
    build(tmp_path / "x.tfrecord")
    for path, names, message in (
        ("x.tfrecord", ["wids"], "sidecar wids is for tar shards, and this set is .tfrecord"),
        ("x.tar", ["energy"], "there is no sidecar 'energy', only dali, wids, timm"),
        ("x.lmdb", ["dali"], r"sidecars are for tar and TFRecord shards, not for \.lmdb"),
        ("y.tar", list(NAMES), "y.tar is no set of shards that iofast wrote"),
    ):
        with pytest.raises(OptionError, match=message):
            write(tmp_path / path, names)
    assert not list(tmp_path.glob("*.idx"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "a.tar")
    assert main(["sidecars", str(tmp_path / "a.tar"), "--for", "dali,wids", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files[-1] == str(tmp_path / "a.shardindex.json")
    assert main(["sidecars", str(tmp_path / "a.tar"), "--for", "timm"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / '_info.json'}\n"
    assert main(["sidecars", str(tmp_path / "none.tar"), "--for", "timm"]) == 2
