"""`iofast split` and `merge`: the records of each split, classes united by name, nothing else changed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from container_sets import CLASSES, COUNT, SUFFIXES, build, picture, records

from iofast.checking import verify
from iofast.cli import main
from iofast.copying import Division, merge, split
from iofast.copying.combine import divide
from iofast.errors import ContainerError, IofastError, OptionError
from iofast.opening import open_reader
from iofast.record_writer import open_writer


def paths(container: Path) -> dict[str, list[str]]:
    """The original paths in each split, in order."""
    with open_reader(container) as reader:
        said = [json.loads(record.fields["json"])["path"] for record in reader]
        return {name: [said[i] for a, b in own for i in range(a, b)] for name, own in reader.manifest.splits.items()}


def labelled(path: Path, classes: list[str] | None, labels: list[int | None], splits: list[str] | None = None) -> Path:
    with open_writer(path, classes=classes) as writer:
        for number, label in enumerate(labels):
            fields = {"txt": f"{path.stem} {number}"} | ({} if label is None else {"cls": label})
            writer.write(fields, split=None if splits is None else splits[number])
    return path


class TestSplit:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_share(self, tmp_path: Path, suffix: str) -> None:
        source = build(tmp_path / f"set{suffix}", splits=False)
        split(source, tmp_path / "out.lmdb", Division({"val": 0.25, "test": 0.125}))
        before, after = paths(source)["all"], paths(tmp_path / "out.lmdb")
        assert {name: len(own) for name, own in after.items()} == {"train": 15, "val": 6, "test": 3}
        assert list(after) == ["train", "val", "test"]
        assert sorted(path for own in after.values() for path in own) == sorted(before)
        assert all(own == sorted(own, key=before.index) for own in after.values())  # the order stays inside a split
        assert after["val"] != before[:6]
        content = {record.fields["json"]: record.fields for record in records(source)}
        assert all(content[record.fields["json"]] == record.fields for record in records(tmp_path / "out.lmdb"))
        assert [record.key for record in records(tmp_path / "out.lmdb")] == [f"{n:08d}" for n in range(COUNT)]
        assert verify(tmp_path / "out.lmdb").whole

    def test_seed(self, tmp_path: Path) -> None:
        source = build(tmp_path / "set.lmdb", splits=False)
        found = []
        for number, seed in enumerate((0, 0, 1)):
            split(source, tmp_path / f"{number}.tar", Division({"val": 0.5}, seed=seed))
            found.append(paths(tmp_path / f"{number}.tar")["val"])
        assert found[0] == found[1] != found[2]

    def test_every_class_alike(self, tmp_path: Path) -> None:
        source = labelled(tmp_path / "set.lmdb", ["a", "b"], [0] * 90 + [1] * 10)
        with open_reader(source) as reader:
            for seed in range(5):
                chosen = divide(reader, Division({"val": 0.2}, seed=seed, stratify=True))
                labels = reader.columns(chosen["val"]).label.tolist()
                assert Counter(labels) == {0: 18, 1: 2}

    def test_a_share_is_drawn_evenly(self, tmp_path: Path) -> None:
        """400 draws of a tenth: chi-square of the counts within 4.5 deviations."""
        with open_reader(labelled(tmp_path / "set.lmdb", None, [None] * 100)) as reader:
            counts = np.zeros(100)
            for seed in range(400):
                counts[divide(reader, Division({"val": 0.1}, seed=seed))["val"]] += 1
        statistic = ((counts - 40) ** 2 / (40 * 0.9)).sum()
        assert abs(statistic - 99) / np.sqrt(2 * 99) < 4.5

    def test_listed_records(self, tmp_path: Path) -> None:
        source = build(tmp_path / "set.lmdb", splits=False)
        (tmp_path / "list.txt").write_text("7\n9\n")
        parts = ["--split", "val=3-5,20", "--split", f"dev=@{tmp_path / 'list.txt'}"]
        assert main(["split", str(source), str(tmp_path / "out.lmdb"), *parts, "--quiet"]) == 0
        before, after = paths(source)["all"], paths(tmp_path / "out.lmdb")
        assert after["val"] == [before[i] for i in (3, 4, 5, 20)]
        assert after["dev"] == [before[i] for i in (7, 9)]
        assert len(after["train"]) == COUNT - 6

    def test_splits_that_are_there(self, tmp_path: Path) -> None:
        source = build(tmp_path / "set.lmdb")
        with pytest.raises(OptionError, match=r"splits already \(train, val\)"):
            split(source, tmp_path / "out.lmdb", Division({"dev": 0.5}))
        split(source, tmp_path / "out.lmdb", Division({"dev": 0.5}, of="train"))
        before, after = paths(source), paths(tmp_path / "out.lmdb")
        assert after["val"] == before["val"]
        assert sorted(after["dev"] + after["train"]) == sorted(before["train"])

    @pytest.mark.parametrize(
        ("parts", "words"),
        [
            ({"val": 1.5}, "shares"),
            ({"val": 0.6, "test": 0.6}, "shares"),
            ({"all": 0.1}, "'all' cannot be"),
            ({"train": 0.1}, "'train' cannot be"),
            ({"a b": 0.1}, "split name"),
            ({"val": [COUNT]}, "not found"),
            ({"val": [1, 1]}, "twice"),
            ({"val": [1], "test": [1]}, "1 was not found"),
            ({}, "how to divide"),
        ],
    )
    def test_parts_that_cannot_be(self, tmp_path: Path, parts: dict[str, float], words: str) -> None:
        with pytest.raises(IofastError, match=words):
            split(build(tmp_path / "set.lmdb", splits=False), tmp_path / "out.lmdb", Division(parts))
        assert not (tmp_path / "out.lmdb").exists()

    @pytest.mark.parametrize(
        "part", ["val", "val=", "=0.1", "val=0.x", "val=1-", "val=a", "val=0-99999999999", "val=@nowhere", "val=@"]
    )
    def test_words_that_are_no_part(self, tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["split", "a.lmdb", "b.lmdb", "--split", part]) == 2
        assert capsys.readouterr().err.count("\n") == 1


class TestMerge:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_same_classes(self, tmp_path: Path, suffix: str) -> None:
        a, b = build(tmp_path / "a.lmdb"), build(tmp_path / f"b{suffix}", 20)
        result = merge([a, b], tmp_path / "out.tar")
        one, other, both = paths(a), paths(b), paths(tmp_path / "out.tar")
        assert both == {name: one[name] + other[name] for name in ("train", "val")}
        assert result.warnings == ()
        assert verify(tmp_path / "out.tar").whole
        with open_reader(tmp_path / "out.tar") as reader:
            assert reader.manifest.classes == CLASSES
            assert dict(reader.manifest.recipe) == {"resize": 48}

    def test_classes_are_united_by_name(self, tmp_path: Path) -> None:
        a = labelled(tmp_path / "a.lmdb", ["cat", "dog"], [0, 1, None])
        b = labelled(tmp_path / "b.tar", ["ant", "dog", "cat"], [0, 1, 2])
        result = merge([a, b], tmp_path / "out.lmdb")
        with open_reader(tmp_path / "out.lmdb") as reader:
            assert reader.manifest.classes == ("cat", "dog", "ant")
            assert reader.manifest.class_order == "file"
            assert reader.locate(np.arange(6), "txt").label.tolist() == [0, 1, -1, 2, 1, 0]
            assert reader.values(np.arange(6), "cls") == [b"0", b"1", None, b"2", b"1", b"0"]
        assert "ant 0 -> 2, cat 2 -> 0" in result.warnings[0]

    def test_each_a_split(self, tmp_path: Path) -> None:
        a, b = labelled(tmp_path / "a.lmdb", None, [None] * 2), labelled(tmp_path / "b.lmdb", None, [None] * 3)
        assert main(["merge", str(a), str(b), str(tmp_path / "out.lmdb"), "--as", "val,train", "--json"]) == 0
        with open_reader(tmp_path / "out.lmdb") as reader:
            assert reader.manifest.splits == {"train": ((0, 3),), "val": ((3, 5),)}

    def test_to_a_folder(self, tmp_path: Path) -> None:
        for name, number in (("a", 1), ("b", 2)):
            with open_writer(tmp_path / f"{name}.lmdb", classes=[name]) as writer:
                writer.write({"jpg": picture(number), "cls": 0, "json": {"path": f"{name}/x.jpg"}})
        merge([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "out")
        assert (tmp_path / "out/b/x.jpg").read_bytes() == picture(2)

    @pytest.mark.parametrize(
        ("one", "other", "words"),
        [
            ((["cat"], [0]), (None, [0]), "without class names"),
            ((["cat"], [0]), (["Cat"], [0]), "the same, or two"),
            ((["green_lizard"], [0]), (["green lizard"], [0]), "the same, or two"),
        ],
    )
    def test_classes_that_clash(self, tmp_path: Path, one: tuple, other: tuple, words: str) -> None:  # type: ignore[type-arg]
        sources = [labelled(tmp_path / "a.lmdb", *one), labelled(tmp_path / "b.lmdb", *other)]
        with pytest.raises(OptionError, match=words):
            merge(sources, tmp_path / "out.lmdb")
        assert not (tmp_path / "out.lmdb").exists()

    def test_splits_that_clash(self, tmp_path: Path) -> None:
        a = labelled(tmp_path / "a.lmdb", None, [None] * 2, ["train", "val"])
        b = labelled(tmp_path / "b.lmdb", None, [None])
        with pytest.raises(OptionError, match=r"has splits and .* has none"):
            merge([a, b], tmp_path / "out.lmdb")
        with pytest.raises(OptionError, match="has splits already"):
            merge([a, b], tmp_path / "out.lmdb", names=["x", "y"])

    def test_recipes_that_differ_are_both_kept(self, tmp_path: Path) -> None:
        for name, recipe in (("a", {"resize": 1}), ("b", {"resize": 2})):
            with open_writer(tmp_path / f"{name}.lmdb", recipe=recipe) as writer:
                writer.write({"txt": "x"})
        merge([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "out.tfrecord")
        with open_reader(tmp_path / "out.tfrecord") as reader:
            assert dict(reader.manifest.recipe) == {"merged": [{"resize": 1}, {"resize": 2}]}

    def test_one_source_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="two sources"):
            merge([build(tmp_path / "a.lmdb")], tmp_path / "out.lmdb")

    def test_damage_ends_it(self, tmp_path: Path) -> None:
        a, b = build(tmp_path / "a.lmdb"), build(tmp_path / "b.tar")
        with open_reader(b) as reader:
            place = int(reader.locate(np.array([0])).offset[0])
        shard = sorted(tmp_path.glob("b-train-*.tar"))[0]
        data = bytearray(shard.read_bytes())
        data[place + 50] ^= 255
        shard.write_bytes(data)
        with pytest.raises(ContainerError, match="CRC32C differs"):
            merge([a, b], tmp_path / "out.lmdb")
        assert not (tmp_path / "out.lmdb.partial").exists()
