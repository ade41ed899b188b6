"""nvImageCodec on a GPU: its images, broken images, and the order of streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_decoding import jpeg_of
from kernel_images import jpeg, photo
from loader_sets import photographs, write_lmdb

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.gpu.decode import Backend, DeviceDecoder, choice
from iofast.gpu.decode.library import check
from iofast.gpu.decode.nvimagecodec import NvImageCodec
from iofast.kernel import TranscodeRecipe, decode, transcode

pytestmark = pytest.mark.gpu

ITERATIONS, STALL = 200, 50_000_000  # cycles that the stream is busy before each decode: 30 ms
CLOSE = 12  # levels: another inverse DCT, another upsampling at edges of colours


@pytest.fixture
def library() -> Backend:
    try:
        backend = NvImageCodec(2)
        check(backend)
    except Exception as error:
        pytest.skip(f"nvImageCodec does not work here: {error}")
    return backend


@pytest.fixture
def decoder(library: Backend) -> DeviceDecoder:
    return DeviceDecoder(library, lambda: torch.cuda.current_stream().synchronize())


def packed(count: int, size: tuple[int, int] = (320, 256)) -> list[bytes]:
    recipe = TranscodeRecipe(restart="auto")
    return [transcode(jpeg(photo(*size, i)), recipe).data for i in range(count)]


def close(image: torch.Tensor, expected: Any) -> bool:
    made, wanted = image.cpu().float(), torch.from_numpy(np.array(expected)).float()
    off = (made - wanted).abs()
    return bool(off.mean() < 1.5 and torch.quantile(off.flatten(), 0.99) <= CLOSE)


def test_images_are_those_of_the_cpu(decoder: DeviceDecoder) -> None:
    kinds: list[dict[str, Any]] = [{"subsampling": name} for name in ("4:4:4", "4:2:2", "4:2:0")]
    images = [jpeg(photo(200 + 17 * i, 150 + 9 * i, i), **kind) for i, kind in enumerate(kinds)]
    images += [jpeg(photo(97, 61), "L"), *packed(3)]
    made = decoder.decode([jpeg_of(data) for data in images], [1] * len(images))
    for image, data in zip(made, images, strict=True):
        assert image is not None
        assert close(image, decode(data))


def test_regions(decoder: DeviceDecoder) -> None:
    data, box = jpeg(photo(320, 240), subsampling="4:2:0"), (70, 40, 231, 177)
    image = decoder.decode([jpeg_of(data, box)], [6])[0]
    assert image is not None
    assert close(image, np.rot90(decode(data)[box[1] : box[3], box[0] : box[2]], -1))


def test_one_broken_image_among_others(decoder: DeviceDecoder) -> None:
    jpegs = [jpeg_of(data) for data in packed(9)]
    jpegs[4] = jpegs[4]._replace(data=jpegs[4].data[:60])
    images = decoder.decode(jpegs, [1] * 9)
    assert [image is None for image in images] == [number == 4 for number in range(9)]


def corrupt(decoder: DeviceDecoder) -> int:
    """Return the number of iterations in which a decoder wrote to memory that the stream had still to read."""
    jpegs = [jpeg_of(data) for data in packed(8, (512, 512))]
    side, wrong = torch.cuda.Stream(), 0  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        decoder.decode(jpegs, [1] * 8)
        for number in range(ITERATIONS):
            victims = [torch.full((512, 512, 3), 7, dtype=torch.uint8, device="cuda") for _ in range(4 + number % 5)]
            torch.cuda._sleep(STALL)
            sums = [victim.sum(dtype=torch.int64) for victim in victims]
            del victims  # the stream's next allocation gets their memory, which it has not read yet
            images = decoder.decode(jpegs, [1] * 8)
            assert all(image is not None for image in images)
            wrong += any(int(one) != 7 * 512 * 512 * 3 for one in sums)
            del images
    return wrong


def test_it_never_writes_too_early(decoder: DeviceDecoder) -> None:
    assert corrupt(decoder) == 0


def test_a_loader_gives_the_cpus_batches(
    decoder: DeviceDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "open_decoder", lambda device, threads: decoder)
    path = write_lmdb(tmp_path / "set.lmdb", [*packed(80), *photographs(40)])
    options: dict[str, Any] = {"transform": [T.RandomResizedCrop(96), T.RandomHorizontalFlip()], "shuffle": True}
    own = FastLoader(FastDataset(path), 16, device="cuda", decode="gpu", **options)
    for (images, labels), (expected, theirs) in zip(own, FastLoader(FastDataset(path), 16, **options), strict=True):
        assert torch.equal(labels.cpu(), theirs)
        assert images.is_cuda
        assert close(images, expected)
    assert own.stats.errors == 0


def test_churn(tmp_path: Path) -> None:
    """A training loop that allocates and frees memory does not change the batches."""
    path = write_lmdb(tmp_path / "set.lmdb", packed(64))
    options: dict[str, Any] = {"transform": [T.RandomResizedCrop(128)], "device": "cuda", "decode": "gpu"}
    alone = [images.cpu() for images, _ in FastLoader(FastDataset(path), 8, **options)]
    wrong, batches = 0, 0
    while batches < ITERATIONS:
        loader = FastLoader(FastDataset(path), 8, **options)
        for (images, _), expected in zip(loader, alone, strict=True):
            waste = [torch.empty(1 << (18 + batches % 5), device="cuda").normal_() for _ in range(6)]
            torch.cuda._sleep(20_000_000)
            wrong += not torch.equal(images.cpu(), expected)
            del waste
            batches += 1
    assert wrong == 0
