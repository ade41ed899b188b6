"""Splits by seeded shares depend only on each image's path, the seed and the shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from iofast import open_reader, pack
from iofast.errors import SourceError
from iofast.packing.splits import divide, parse_shares, written
from iofast.source import Listing
from iofast.source.arrays import Strings
from iofast.source.listing import Watched


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
