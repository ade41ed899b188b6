"""MosaicML's MDS and FFCV's beton: records, conversion, damage."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import picture
from foreign_sets import write_beton, write_mds
from hypothesis import given, settings
from hypothesis import strategies as st

from iofast.checking import verify
from iofast.copying import convert
from iofast.errors import ContainerError, IofastError, SourceError, UnfinishedError
from iofast.foreign import unpacked
from iofast.opening import open_reader

COLUMNS = {"x": "jpeg", "y": "int", "caption": "str", "meta": "json", "raw": "bytes", "score": "float32", "who": "pkl"}


def sample(number: int) -> dict[str, Any]:
    return {
        "x": picture(number, orientation=6 if number == 2 else 1),
        "y": number % 3 if number != 4 else -1,
        "caption": f"größe {number}",
        "meta": {"n": number},
        "raw": bytes([number, 0, 255]),
        "score": number / 4,
        "who": b"cos\nsystem\n(S'false'\ntR.",
    }


SAMPLES = [sample(number) for number in range(10)]


def fields(number: int, *, score: bool = True) -> dict[str, bytes]:
    own = SAMPLES[number]
    found = {
        "jpg": own["x"],
        "caption.txt": own["caption"].encode(),
        "meta.json": json.dumps(own["meta"]).encode(),
        "raw.bin": own["raw"],
    }
    found |= {"score.json": json.dumps(own["score"]).encode()} if score else {}
    return found | ({"cls": b"%d" % own["y"]} if own["y"] >= 0 else {})


class TestMds:
    def test_samples(self, tmp_path: Path) -> None:
        with open_reader(write_mds(tmp_path / "mds", COLUMNS, SAMPLES)) as reader:
            assert [dict(record.fields) for record in reader] == [fields(number) for number in range(10)]
            assert reader.manifest.fields == ("caption.txt", "cls", "jpg", "meta.json", "raw.bin", "score.json")
            assert reader.left_out == ("column 'who' (pkl) is left out: pickled data, which is never loaded",)  # type: ignore[attr-defined]
            located = reader.locate(np.arange(10))
            assert located.label.tolist() == [own["y"] for own in SAMPLES]
            assert [located.width[2], located.height[2], located.orientation[2]] == [40, 48, 6]
            copy = pickle.loads(pickle.dumps(reader))
            assert copy.values(np.array([3, 1]), "score.json") == [b"0.75", b"0.25"]
            assert bytes(copy.view(3)) == SAMPLES[3]["x"]
            with pytest.raises(KeyError, match="lies in no file"):
                reader.locate(np.arange(2), "score.json")
            with pytest.raises(KeyError):
                reader.view(4, "cls")

    def test_splits(self, tmp_path: Path) -> None:
        write_mds(tmp_path / "mds" / "val", COLUMNS, SAMPLES[7:])
        write_mds(tmp_path / "mds" / "train", COLUMNS, SAMPLES[:7])
        convert(tmp_path / "mds", tmp_path / "out.lmdb")
        with open_reader(tmp_path / "out.lmdb") as reader:
            assert reader.manifest.splits == {"train": ((0, 7),), "val": ((7, 10),)}
            assert [dict(record.fields) for record in reader] == [fields(number) for number in range(10)]

    @pytest.mark.parametrize(
        ("compression", "pack"),
        [("gz", gzip.compress), ("bz2:9", bz2.compress), ("zstd", None), ("br", bytes), ("gz", bytes)],
    )
    def test_compressed(self, tmp_path: Path, compression: str, pack: Any) -> None:
        if compression == "zstd":
            module = pytest.importorskip("zstandard")
            pack = module.ZstdCompressor().compress
        folder = write_mds(tmp_path / "mds", COLUMNS, SAMPLES, compression=compression, pack=pack)
        if pack is bytes:
            with pytest.raises(ContainerError, match=r"shard\.00000\.mds\.(br|gz)"):
                open_reader(folder)
            return
        convert(folder, tmp_path / "out.tar")
        with open_reader(tmp_path / "out.tar") as reader:
            assert [dict(record.fields) for record in reader] == [fields(number) for number in range(10)]
        assert verify(folder).images == 10

    def test_bomb(self, tmp_path: Path) -> None:
        """A shard that unpacks to more than the size in its index is an error before it fills the memory."""
        folder = write_mds(tmp_path / "mds", COLUMNS, SAMPLES, compression="gz", pack=gzip.compress)
        (folder / "shard.00000.mds.gz").write_bytes(gzip.compress(bytes(1 << 26)))
        with pytest.raises(ContainerError, match="unpacks to more bytes"):
            open_reader(folder)

    def test_zstd_without_its_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> None:
            raise ImportError(name)

        monkeypatch.setattr(unpacked, "import_module", missing)
        folder = write_mds(tmp_path / "mds", COLUMNS, SAMPLES, compression="zstd")
        with pytest.raises(ContainerError, match=r"pip install 'iofast\[zstd\]'"):
            open_reader(folder)

    @pytest.mark.parametrize("name", ["../x.mds", "/etc/passwd", "a/../../x", "", "a\0b", 7])
    def test_shard_outside(self, tmp_path: Path, name: object) -> None:
        folder = write_mds(tmp_path / "mds", COLUMNS, SAMPLES)
        index = json.loads((folder / "index.json").read_text())
        index["shards"][1]["raw_data"]["basename"] = name
        (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(ContainerError, match="out of its folder"):
            open_reader(folder)

    def test_shard_missing(self, tmp_path: Path) -> None:
        folder = write_mds(tmp_path / "mds", COLUMNS, SAMPLES)
        (folder / "shard.00001.mds").unlink()
        with pytest.raises(SourceError, match=r"shard\.00001\.mds does not exist"):
            open_reader(folder)

    def test_image_in_a_column_of_bytes(self, tmp_path: Path) -> None:
        samples = [{"img": picture(number, "png"), "target": number} for number in range(3)]
        with open_reader(write_mds(tmp_path / "mds", {"img": "bytes", "target": "uint8"}, samples)) as reader:
            assert [dict(record.fields) for record in reader] == [
                {"png": own["img"], "cls": b"%d" % own["target"]} for own in samples
            ]

    def test_folder_of_images_stays_one(self, tmp_path: Path) -> None:
        (tmp_path / "cat").mkdir()
        (tmp_path / "cat" / "1.jpg").write_bytes(picture(1))
        (tmp_path / "index.json").write_text('{"labels": []}')
        with open_reader(tmp_path) as reader:
            assert len(reader) == 1


FIELDS = {"image": "rgb", "label": "int", "meta": "json", "raw": "bytes", "score": "float"}


def beton_sample(number: int) -> dict[str, Any]:
    own = SAMPLES[number]
    image = (40, 48, own["x"]) if number == 2 else (48, 40, own["x"])
    return {"image": image, "label": own["y"], "meta": own["meta"], "raw": own["raw"], "score": own["score"]}


BETON = [beton_sample(number) for number in range(10)]


class TestBeton:
    @pytest.mark.parametrize(
        "order", [list(FIELDS), list(reversed(FIELDS)), ["raw", "label", "image", "score", "meta"]]
    )
    def test_samples(self, tmp_path: Path, order: list[str]) -> None:
        path = write_beton(tmp_path / "x.beton", {name: FIELDS[name] for name in order}, BETON)
        expected = [{k: v for k, v in fields(number).items() if k != "caption.txt"} for number in range(10)]
        with open_reader(path) as reader:
            assert [dict(record.fields) for record in reader] == expected
            assert reader.locate(np.arange(10)).label.tolist() == [own["label"] for own in BETON]
        convert(path, tmp_path / "out.lmdb")
        with open_reader(tmp_path / "out.lmdb") as reader:
            assert [dict(record.fields) for record in reader] == expected
        assert verify(tmp_path / "out.lmdb").whole

    @pytest.mark.parametrize("order", [["raw", "image"], ["image", "raw"]])
    def test_empty_value_beside_an_image(self, tmp_path: Path, order: list[str]) -> None:
        """It is allocated nothing at the image's own place, by the same sample or by the one before it."""
        samples = [{**own, "raw": b""} for own in BETON]
        with open_reader(write_beton(tmp_path / "x.beton", {name: FIELDS[name] for name in order}, samples)) as reader:
            assert [dict(record.fields) for record in reader] == [{"jpg": own["x"], "raw.bin": b""} for own in SAMPLES]

    def test_raw_mode(self, tmp_path: Path) -> None:
        with pytest.raises(ContainerError, match=r"10 of 10 images .* write_mode='jpg'"):
            open_reader(write_beton(tmp_path / "x.beton", FIELDS, BETON, mode=1))

    def test_arrays_are_left_out(self, tmp_path: Path) -> None:
        samples = [{**own, "vector": bytes(16)} for own in BETON]
        with open_reader(write_beton(tmp_path / "x.beton", {**FIELDS, "vector": "ndarray"}, samples)) as reader:
            assert "'vector' is left out" in reader.left_out[0]  # type: ignore[attr-defined]
            assert len(reader.record(9).fields) == 5

    def test_type_of_ones_own(self, tmp_path: Path) -> None:
        samples = [{**own, "mine": bytes(16)} for own in BETON]
        with pytest.raises(ContainerError, match="field 'mine' is of type 255"):
            open_reader(write_beton(tmp_path / "x.beton", {**FIELDS, "mine": "custom"}, samples))

    def test_never_finished_and_other_versions(self, tmp_path: Path) -> None:
        with pytest.raises(UnfinishedError, match="never finished"):
            open_reader(write_beton(tmp_path / "x.beton", FIELDS, BETON, finished=False))
        with pytest.raises(ContainerError, match="version 1"):
            open_reader(write_beton(tmp_path / "x.beton", FIELDS, BETON, version=1))
        for data, message in (
            (b"\2\0", "has 2 bytes, fewer than the header"),
            (struct.pack("<HHIQQ", 2, 0, 64, 1, 99), "0 fields and 1 samples are impossible"),
            (struct.pack("<HHIQQ", 2, 1, 64, 1, 99), "ends within the descriptions of its 1 fields"),
        ):
            (tmp_path / "x.beton").write_bytes(data)
            with pytest.raises(ContainerError, match=message):
                open_reader(tmp_path / "x.beton")


def whatever(path: Path) -> None:
    """Open and read all of it: an error of ours, or bytes that lie within the files."""
    sizes = []
    with contextlib.suppress(IofastError), open_reader(path) as reader:
        for index in range(len(reader)):
            sizes += [len(payload) for payload in reader.record(index).fields.values()]
    files = [path] if path.is_file() else list(path.iterdir())
    assert max(sizes, default=0) <= sum(each.stat().st_size for each in files)


DAMAGE = st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8), st.booleans())


def damaged(data: bytes, place: int, change: bytes, cut: bool) -> bytes:
    at = place % len(data)
    return data[:at] if cut else data[:at] + change + data[at + len(change) :]


@settings(max_examples=150)
@given(DAMAGE)
def test_damaged_beton(damage: tuple[int, bytes, bool]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_beton(Path(folder) / "x.beton", FIELDS, BETON, page=64)
        path.write_bytes(damaged(path.read_bytes(), *damage))
        whatever(path)


@settings(max_examples=150)
@given(st.sampled_from(["shard.00001.mds", "index.json"]), DAMAGE)
def test_damaged_mds(name: str, damage: tuple[int, bytes, bool]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_mds(Path(folder) / "mds", COLUMNS, SAMPLES)
        (path / name).write_bytes(damaged((path / name).read_bytes(), *damage))
        whatever(path)
