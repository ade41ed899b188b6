"""Images beyond the limits on pixels and on a decoder's memory: refused before memory is taken for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from altered_index import alter
from kernel_images import claims, jpeg, photo, save, with_size
from PIL import Image

from iofast import FastDataset, FastLoader, open_reader, open_writer, pack
from iofast import transforms as T
from iofast.checking import verify
from iofast.errors import DecodeError
from iofast.sheet import contact_sheet

LIMIT, MOST = "the image is larger than the limit on ", "the limit is 268435456)"
FILES = {
    "a.png": (claims(b"\2", side=100_000), f"{LIMIT}pixels (100000x100000 pixels, {MOST}"),
    "b.png": (claims(b"\6"), f"{LIMIT}memory (16000x16000 pixels of RGBA take up to 2304 MB, the limit is 2147 MB)"),
    "c.jpg": (with_size(jpeg(photo(64, 48)), 65_500, 65_500), f"{LIMIT}pixels (65500x65500 pixels, {MOST}"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    for name, (data, _) in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "small.jpg").write_bytes(jpeg(photo(64, 48)))
    (folder / "thin.png").write_bytes(save(Image.new("RGB", (60_000, 1)), "PNG"))
    return folder


def test_a_dataset(folder: Path) -> None:
    dataset = FastDataset(folder)
    for number, (_, reason) in enumerate(FILES.values()):
        with pytest.raises(DecodeError) as caught:
            dataset[number]
        assert str(caught.value).endswith(reason)
    assert [dataset[number][0].size for number in (3, 4)] == [(64, 48), (60_000, 1)]


@pytest.mark.parametrize(
    ("transform", "more"),
    [([], {}), ([T.Resize(256)], {"thin.png": "15360000x256 pixels after resizing"}), ([T.RandomResizedCrop(32)], {})],
)
def test_a_loader(folder: Path, transform: list[T.Transform], more: dict[str, str]) -> None:
    wanted = {name: reason for name, (_, reason) in FILES.items()} | {
        own: f"{LIMIT}pixels ({why}, {MOST}" for own, why in more.items()
    }
    loader = FastLoader(FastDataset(folder), 5, transform=transform, ragged="list", on_error="drop", dtype=torch.uint8)
    list(loader)
    assert {Path(failure.name).name: failure.reason for failure in loader.failures} == wanted


def test_verify_and_view(folder: Path) -> None:
    found = {Path(problem.where).name: problem.reason for problem in verify(folder).problems}
    for name, (_, reason) in FILES.items():
        assert reason in found.pop(name)
    assert not found
    with open_reader(folder) as reader:
        assert contact_sheet(reader, range(5)).width > 5


def test_a_view_of_records_without_an_image(tmp_path: Path) -> None:
    with open_writer(tmp_path / "x.tar") as writer:
        writer.write({"txt": "no image"})
        writer.write({"jpg": jpeg(photo(64, 48))})
    with open_reader(tmp_path / "x.tar") as reader:
        assert contact_sheet(reader, [0, 1]).width > 5


def test_packing_has_the_same_words(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "x.tar", resize=64, mode="long", max_errors=3)
    failed = [json.loads(line) for line in (tmp_path / "x.tar.errors.jsonl").read_text().splitlines()]
    assert {each["path"] for each in failed} == set(FILES)
    for each in failed:
        assert each["reason"].partition(" (")[0] == FILES[each["path"]][1].partition(" (")[0]


def test_an_index_that_says_so(tmp_path: Path) -> None:
    with open_writer(tmp_path / "x.tar") as writer:
        writer.write({"jpg": jpeg(photo(64, 48))})
        writer.write({"rgb": bytes(12), "json": {"width": 2, "height": 2}})
    for row in range(2):
        alter(tmp_path / "x.tar", row, {"width": 65_535, "height": 65_535})
    dataset = FastDataset(tmp_path / "x.tar")
    for number in range(2):
        with pytest.raises(DecodeError, match=r"differs from the index|corrupt"):
            dataset[number]
    with open_reader(tmp_path / "x.tar") as reader:
        assert contact_sheet(reader, [0, 1]).width > 5
    assert {problem.index for problem in verify(tmp_path / "x.tar").problems} == {0, 1}
