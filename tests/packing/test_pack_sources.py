"""Several sources packed as one, and splits by seeded shares."""

from pathlib import Path

import numpy as np
import pytest
from container_sets import picture, records
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from iofast import FastDataset, open_reader, open_writer, pack
from iofast.cli import main
from iofast.errors import OptionError, SourceError
from iofast.packing.splits import divide, parse_shares, written
from iofast.source.arrays import Strings
from iofast.source.listing import Listing, Watched


def made(path: Path, classes: list[str] | None, *, split: str = "all", count: int = 4) -> Path:
    with open_writer(path, classes=classes, split=split) as writer:
        for number in range(count):
            writer.write({"jpg": picture(number), "cls": number % 2})
    return path


@pytest.mark.filterwarnings("ignore:classes of")
def test_records_of_the_first_then_of_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [made(tmp_path / "a.lmdb", ["cat", "dog"]), made(tmp_path / "b.tar", ["ant", "cat"])]
    (tmp_path / "c" / "ant").mkdir(parents=True)
    (tmp_path / "c" / "ant" / "x.jpg").write_bytes(picture(9))
    target = tmp_path / "both.lmdb"
    assert main(["pack", *map(str, sources), str(tmp_path / "c"), str(target), "--quiet", "--workers", "1"]) == 0
    report = pack([*sources, tmp_path / "c"], tmp_path / "again.tar", workers=2)
    assert f"classes of {sources[1]} have new numbers: ant 0 -> 2, cat 1 -> 0" in report.warnings
    assert (report.packed, report.source) == (9, ", ".join(map(str, [*sources, tmp_path / "c"])))
    assert "ant 0 -> 2" in capsys.readouterr().err
    for path in (target, tmp_path / "again.tar"):
        dataset = FastDataset(path)
        assert (dataset.classes, dataset.targets) == (["cat", "dog", "ant"], [0, 1, 0, 1, 2, 0, 2, 0, 2])
        found = records(path)
        assert [each.fields["jpg"] for each in found] == [picture(n) for n in (0, 1, 2, 3, 0, 1, 2, 3, 9)]
        assert b'"path":"ant/x.jpg"' in found[-1].fields["json"]
        assert [each.fields["cls"] for each in found] == [b"%d" % label for label in dataset.targets]


def test_splits_and_shares(tmp_path: Path) -> None:
    train = [made(tmp_path / f"t{n}.lmdb", ["cat", "dog"], split="train") for n in range(2)]
    val = made(tmp_path / "v.lmdb", ["cat", "dog"], split="val", count=3)
    pack([val, *train], tmp_path / "all.lmdb", workers=1)
    with open_reader(tmp_path / "all.lmdb") as reader:
        assert reader.manifest.splits == {"train": ((0, 8),), "val": ((8, 11),)}
    plain = [made(tmp_path / f"p{n}.lmdb", ["cat", "dog"]) for n in range(2)]
    assert set(pack(plain, tmp_path / "divided.lmdb", split="val=0.5", workers=1).splits) == {"train", "val"}
    with pytest.raises(OptionError, match="the first has no splits, the second the splits train"):
        pack([plain[0], train[0]], tmp_path / "x.lmdb", workers=1)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (None, r"b\.lmdb has labels without class names"),
        (["Cat", "dog"], "class 'Cat' of .* and 'cat' of .*: the same, or"),
        (["cat", "cafe\u0301"], r"class 'cafe\\u0301' of .* and 'caf\\xe9' of .*: the same, or"),
    ],
)
def test_classes_that_cannot_be_united(tmp_path: Path, classes: list[str] | None, words: str) -> None:
    sources = [made(tmp_path / "a.lmdb", ["cat", "dog", "caf\xe9"]), made(tmp_path / "b.lmdb", classes)]
    with pytest.raises(OptionError, match=words):
        pack(sources, tmp_path / "out.lmdb", workers=1)


def test_what_is_no_list_of_sources(tmp_path: Path) -> None:
    source = made(tmp_path / "a.lmdb", None)
    with pytest.raises(OptionError, match="found an empty list"):
        pack([], tmp_path / "out.lmdb", workers=1)
    with pytest.raises(SourceError, match="the source is empty"):
        pack([source, ""], tmp_path / "out.lmdb", workers=1)
    with pytest.raises(OptionError, match=r"b\.lmdb is, or lies in, the source"):
        pack([source, made(tmp_path / "b.lmdb", None)], tmp_path / "b.lmdb", workers=1, overwrite=True)


def listing(paths: list[str]) -> Listing:
    return Listing(
        root=Path("/nowhere"),
        kind="flat",
        classes=None,
        splits=(("all", 0, len(paths)),),
        paths=Strings.gather(path.encode() for path in paths),
        listed_labels=np.arange(len(paths), dtype=np.int32),
        watched=Watched(Strings.gather([]), np.zeros(0, np.int64)),
    )


def members(source: Listing) -> dict[bytes, str]:
    return {source.path(i): name for name, start, stop in source.splits for i in range(start, stop)}


@given(st.permutations([f"c{i % 7}/{i}.jpg" for i in range(200)]), st.integers(0, 100), st.integers(0, 200))
def test_the_split_of_an_image_does_not_depend_on_other_images(paths: list[str], seed: int, cut: int) -> None:
    shares = parse_shares("val=0.3,test=0.2")
    whole, part = (
        members(divide(listing(sorted(paths)), shares, seed)),
        members(divide(listing(paths[:cut]), shares, seed)),
    )
    assert all(whole[path] == split for path, split in part.items())


def test_shares_are_about_right_and_seeds_differ() -> None:
    source = listing([f"{i}.jpg" for i in range(20_000)])
    found = {seed: divide(source, parse_shares("val=0.1,test=0.05"), seed) for seed in (0, 1)}
    for each in found.values():
        assert [name for name, _, _ in each.splits] == ["train", "val", "test"]
        counts = {name: stop - start for name, start, stop in each.splits}
        assert abs(counts["val"] - 2000) < 200
        assert abs(counts["test"] - 1000) < 150
        rows = [each.row(i) for i in range(counts["train"])]
        assert rows == sorted(rows)  # inside a split the source's order
    assert members(found[0]) != members(found[1])


def test_a_split_without_images_is_left_out_with_a_warning() -> None:
    source = divide(listing(["a", "b"]), parse_shares({"val": 1e-9}), 0)
    assert source.splits == (("train", 0, 2),)
    assert source.warnings == ("splits without an image: val",)


def test_packed(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / "images" / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "images" / f"c{i % 2}" / f"{i}.png")
    report = pack(tmp_path / "images", tmp_path / "out.tar", split={"val": 0.25}, split_seed=3)
    assert set(report.splits) == {"train", "val"}
    assert sum(report.splits.values()) == 60
    with open_reader(tmp_path / "out.tar") as reader:
        assert reader.manifest.recipe["split"] == written({"val": 0.25}) == "val=0.25"
        assert reader.manifest.recipe["split_seed"] == 3
        assert {name: own[0][1] - own[0][0] for name, own in reader.manifest.splits.items()} == dict(report.splits)
    (tmp_path / "nested").mkdir()
    (tmp_path / "images").rename(tmp_path / "nested" / "train")
    with pytest.raises(SourceError, match="has splits already"):
        pack(tmp_path / "nested", tmp_path / "x.tar", split="val=0.1")
