"""Packing the records of containers: unusual containers, and containers that change meanwhile."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import mask, picture, records
from packing_runs import sha256
from tar_sets import foreign

from iofast import open_reader, open_writer, pack
from iofast.errors import ContainerError, DecodeError, ErrorBudgetError, OptionError, SourceError, TargetError
from iofast.packing import PackOptions, origin
from iofast.packing import inputs as listing
from iofast.packing.origin import RecordOrigin
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run
from iofast.packing.sample import Image

SMALL: dict[str, Any] = {"resize": 24, "workers": 1}


def folder(root: Path, classes: tuple[str, ...], count: int = 6) -> Path:
    """Pictures of these classes."""
    for number in range(count):
        path = root / classes[number % len(classes)] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number + 7 * len(root.name)))
    return root


def theirs(path: Path, names: list[str]) -> Path:
    """A tar of another program with a picture under each name."""
    return foreign(path, [(f"{name}.jpg", picture(number)) for number, name in enumerate(names)])


def reading(source: Path) -> RecordOrigin:
    """The origin of a worker that packs the container."""
    with open_reader(source) as reader:
        return RecordOrigin([os.fspath(source)], None, {}, listing.state_of(reader, source))


def rows(count: int) -> list[Image]:
    return [Image(place, 0, -1, f"{place:08d}", place=place) for place in range(count)]


class TestWhatItSays:
    @pytest.mark.parametrize("named", [True, False])
    def test_annotations_are_turned_once(self, tmp_path: Path, named: bool) -> None:
        """Packing turns masks always, but boxes only with the option `boxes`. Half a turn keeps the size."""
        root = folder(tmp_path / "images", ("a",), 4)
        for number, turned in enumerate((1, 3, 6, 8)):
            path = root / "a" / f"{number:03d}.jpg"
            path.write_bytes(picture(number, orientation=turned))
            path.with_suffix(".seg.png").write_bytes(mask(number))
            path.with_suffix(".boxes.json").write_text("[[4, 6, 20, 30]]")
        fields = "seg.png,boxes.json"
        pack(root, tmp_path / "direct.lmdb", fields=fields, boxes="boxes.json", **SMALL)
        pack(root, tmp_path / "kept.tar", fields=fields, boxes="boxes.json" if named else None, workers=1)
        pack(tmp_path / "kept.tar", tmp_path / "out.lmdb", fields=fields, boxes="boxes.json", **SMALL)
        assert sha256(tmp_path / "out.lmdb") == sha256(tmp_path / "direct.lmdb")

    def test_labels_that_begin_with_one(self, tmp_path: Path) -> None:
        root = folder(tmp_path / "images", ("a", "b"))
        pack(root, tmp_path / "set.tfrecord", label_base=1, workers=1)
        pack(tmp_path / "set.tfrecord", tmp_path / "out.lmdb", **SMALL)
        pack(root, tmp_path / "direct.lmdb", **SMALL)
        assert sha256(tmp_path / "out.lmdb") == sha256(tmp_path / "direct.lmdb")

    @pytest.mark.parametrize("text", [b"[1, 2]", b"no JSON", b"\xff", b'{"path": "\\ud800"}', b"[" * 100_000])
    def test_json_that_is_no_object_of_ours(self, tmp_path: Path, text: bytes) -> None:
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"jpg": picture(1), "json": text})
        pack(tmp_path / "set.lmdb", tmp_path / "out.lmdb", **SMALL)
        fields = records(tmp_path / "out.lmdb")[0].fields
        assert json.loads(fields["json"])["path"] == "00000000"
        assert fields.get("meta.json") == (None if text.startswith(b"{") else text)

    def test_keys_of_any_kind(self, tmp_path: Path) -> None:
        source = theirs(tmp_path / "their.tar", ["a/b c/x", "a/ü", "a/\udce9", "../up", "a/line\nline"])
        pack(source, tmp_path / "out.tar", split="val=0.4", split_seed=1, **SMALL)
        said = {path_of(record) for record in records(tmp_path / "out.tar")}
        assert said == {"a/b c/x", "a/ü", "a/\\xe9", "../up", "a/line\nline"}

    def test_two_fields_that_become_one(self, tmp_path: Path) -> None:
        members = [("a.jpg", picture(1)), ("a.seg.tif", mask(1)), ("a.seg.png", mask(1)), ("b.jpg", picture(2))]
        source = foreign(tmp_path / "their.tar", members)
        report = pack(source, tmp_path / "out.lmdb", max_errors=1, **SMALL)
        assert dict(report.errors) == {"two fields of the record would be seg.png: choose with fields": 1}
        assert pack(source, tmp_path / "chosen.lmdb", fields="seg.png", **SMALL).packed == 2


class TestWhereItLies:
    def test_shards_of_the_source_are_not_replaced(self, tmp_path: Path) -> None:
        for shard in range(2):
            theirs(tmp_path / f"set-{shard:06d}.tar", ["a", "b"])
        for name in ("set-{000000..000001}.tar", "set-000001.tar"):
            with pytest.raises(OptionError, match=r"set-00000[01]\.tar of the source would be a shard of"):
                pack(tmp_path / name, tmp_path / "set.tar", overwrite=True, **SMALL)
        root = folder(tmp_path / "images", ("a",), 12)
        pack(root, tmp_path / "own.tar", shard_size=4_000, workers=1)
        with pytest.raises(OptionError, match="would be a shard of"):
            pack(tmp_path / "own-000001.tar", tmp_path / "own.tar", overwrite=True, workers=1)
        for name in ("own.tar", "own-*.tar"):
            with pytest.raises(OptionError, match="is, or lies in, the source"):
                pack(tmp_path / name, tmp_path / "own.tar", overwrite=True, workers=1)
        assert len(records(tmp_path / "own.tar")) == 12

    def test_a_pattern_below_a_folder_with_brackets(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place = tmp_path / "[x] {1,2}"
        place.mkdir()
        theirs(place / "their-000.tar", ["a", "b"])
        monkeypatch.chdir(place)
        assert pack("their-*.tar", "out.lmdb", **SMALL).packed == 2

    def test_a_shard_that_is_missing(self, tmp_path: Path) -> None:
        pack(folder(tmp_path / "images", ("a",), 12), tmp_path / "set.tar", shard_size=4_000, workers=1)
        opened = reading(tmp_path / "set.tar")
        opened.begin([])
        with open_reader(tmp_path / "set.tar") as reader:
            gone = int((reader.columns(np.arange(12)).file == 1).sum())
        (tmp_path / "set-000001.tar").unlink()
        opened.begin(rows(12))
        failed = []
        for image in rows(12):
            try:
                assert opened.read(image).data
            except DecodeError as error:
                failed.append(str(error))
        assert len(failed) == gone > 0
        assert all("set-000001.tar" in reason for reason in failed)
        with pytest.raises(ContainerError, match=r"set-000001\.tar cannot be read"):
            pack(tmp_path / "set.tar", tmp_path / "out.lmdb", **SMALL)


class TestWhileItIsRead:
    def test_a_source_written_to_meanwhile_is_noticed_at_the_end(self, tmp_path: Path) -> None:
        source = theirs(tmp_path / "their.tar", [f"{n:02d}" for n in range(8)])

        class Writes(PackProgress):
            def step(self, images: int, size: int, failed: int) -> None:
                os.utime(source, ns=(0, 0))

        with WorkerPool(1) as pool, pytest.raises(SourceError, match=r"their\.tar was changed while it was packed"):
            run(source, tmp_path / "out.lmdb", PackOptions(resize=24), Writes(), pool)
        assert not (tmp_path / "out.lmdb").exists()

    def test_resuming_with_other_names_is_an_error(self, tmp_path: Path) -> None:
        members = [("1.one", picture(1)), ("1.two", picture(2)), ("2.one", b"none"), ("2.two", b"none")]
        source = foreign(tmp_path / "their.tar", members)
        with pytest.raises(ErrorBudgetError):
            pack(source, tmp_path / "out.lmdb", foreign={"names": {"image": "one"}}, max_errors=0, **SMALL)
        with pytest.raises(TargetError, match="the source as it was before it changed"):
            pack(source, tmp_path / "out.lmdb", foreign={"names": {"image": "two"}}, **SMALL)

    def test_images_as_large_as_no_file_may_be(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = reading(theirs(tmp_path / "their.tar", ["a"]))
        monkeypatch.setattr(origin, "MAX_BYTES", 100)
        monkeypatch.setattr(origin, "MOST_AHEAD", 100)
        opened.begin(rows(1))
        with pytest.raises(DecodeError, match="the image is larger than 1 GiB"):
            opened.read(rows(1)[0])

    def test_the_reason_names_the_container_even_if_the_record_has_no_name(self, tmp_path: Path) -> None:
        source = theirs(tmp_path / "their.tar", ["a"])
        opened = reading(source)
        assert opened.where(rows(1)[0]) == f"{source}"
        opened.begin([])
        assert opened.where(rows(1)[0]) == f"{source}: a"

        def damaged(_: int) -> str:
            raise ContainerError("the index is damaged")

        opened._reader.name = damaged
        assert opened.where(rows(1)[0]) == f"{source}"


def path_of(record: Any) -> str:
    return str(json.loads(record.fields["json"])["path"])
