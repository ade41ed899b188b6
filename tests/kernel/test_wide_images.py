"""Images wider than 65,535 pixels, as PNG, TIFF, BMP and PPM permit, are packed, copied and loaded like others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import claims
from PIL import Image

from iofast import FastDataset, FastLoader, open_reader
from iofast import transforms as T
from iofast.checking import verify
from iofast.packing import pack

WIDTH, HEIGHT = 70_000, 4
SHAPES = [(HEIGHT, WIDTH), (WIDTH, HEIGHT)]  # of tall.png and wide.png


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red rises and green falls from left to right: a width without its upper bits changes the colour of the middle."""
    root = tmp_path_factory.mktemp("wide")
    row = (np.arange(WIDTH) * 255 // WIDTH).astype(np.uint8)
    image = Image.fromarray(np.stack([row, 255 - row, np.full_like(row, 90)], -1)[None].repeat(HEIGHT, 0))
    image.save(root / "wide.png")
    image.transpose(Image.Transpose.ROTATE_90).save(root / "tall.png")
    return root


@pytest.mark.parametrize(
    ("name", "options"), [("", {}), ("out.lmdb", {}), ("out.tar", {"format": "png"}), ("out.tfrecord", {})]
)
def test_folders_and_containers(folder: Path, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """The index has the sizes, and dataset and loader give the middle of each image."""
    if name:
        report = pack(folder, tmp_path / name, **options)
        assert (report.packed, report.failed) == (2, 0)
        assert verify(tmp_path / name).problems == []
    dataset = FastDataset(tmp_path / name if name else folder)
    located = dataset.reader.locate(np.arange(2))
    assert list(zip(located.width.tolist(), located.height.tolist(), strict=True)) == SHAPES
    assert [dataset[i][0].size for i in range(2)] == SHAPES
    (batch, *_), *_ = FastLoader(dataset, 2, transform=[T.CenterCrop(HEIGHT)], num_workers=1)
    middle = WIDTH // 2 - 2
    pieces = [dataset[0][0].crop((0, middle, 4, middle + 4)), dataset[1][0].crop((middle, 0, middle + 4, 4))]
    for image in [*map(np.asarray, pieces), *batch.permute(0, 2, 3, 1).numpy()]:
        assert np.abs(image.mean((0, 1)) - (127, 128, 90)).max() < 2


@pytest.mark.parametrize("mode", ["exact", "pad"])
def test_made_small(folder: Path, tmp_path: Path, mode: str) -> None:
    assert pack(folder, tmp_path / "out.lmdb", resize=16, mode=mode).failed == 0
    with open_reader(tmp_path / "out.lmdb") as reader:
        about = [json.loads(record.fields["json"]) for record in reader]
    assert [(each["original_width"], each["original_height"]) for each in about] == SHAPES


def test_a_header_beyond_the_limits_of_an_index_fails_alone(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(claims(b"\2", side=(1 << 32) - 1))
    with open_reader(tmp_path) as reader:
        assert reader.locate(np.arange(2)).width.tolist() == [8, 0]
