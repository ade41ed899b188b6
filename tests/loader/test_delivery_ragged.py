"""Images of different sizes on their way to a device: one copy of the memory they share, and views of it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from device_model import Device, lend
from loader_sets import check_equal

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.loader.delivery import _copied

COLOURS: dict[str, Any] = {
    "transform": [T.Resize(20), T.ColorJitter(0.4, 0.4), T.Normalize.imagenet()],
    "dtype": torch.float32,
}


def here(place: Path, name: str = "set.lmdb", ragged: Any = "list", **options: Any) -> FastLoader:
    return FastLoader(FastDataset(place / name), 8, num_workers=2, shuffle=True, ragged=ragged, **options)


class Counting:
    """Counts the copies of a device."""

    def __init__(self, device: Device) -> None:
        self.copy, self.count = device.copy, 0
        device.copy = self  # type: ignore[method-assign, assignment]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.copy(tensor)


@pytest.mark.parametrize("ragged", ["list", "pad"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["last", "first"])
@pytest.mark.parametrize("options", [{}, COLOURS], ids=["plain", "colours"])
def test_a_batch_is_two_copies(place: Path, ragged: str, layout: Any, options: dict[str, Any]) -> None:
    """Its images, and its labels."""
    options = {"memory_format": layout, "ragged": ragged, **options}
    own, other = here(place, **options), here(place, **options)
    copies = Counting(lend(own))
    check_equal(own, other)
    assert copies.count == 2 * len(own)


@pytest.mark.parametrize("action", ["replace", "drop"])
def test_replaced_and_dropped_samples(place: Path, action: Any) -> None:
    """A replacement has memory of its own, and a dropped image leaves a hole."""
    own, other = (here(place, "broken.lmdb", on_error=action) for _ in range(2))
    copies = Counting(lend(own))
    check_equal(own, other)
    assert own.stats.errors == other.stats.errors > 0
    assert 2 * len(own) <= copies.count <= 2 * len(own) + own.stats.errors


def test_images_of_a_users_function(place: Path) -> None:
    """Some in memory of their own, some as they were."""

    def function(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**sample, "image": sample["image"] // 2} if sample["image"].shape[1] % 2 else sample

    own, other = (here(place, map_sample=function) for _ in range(2))
    lend(own)
    check_equal(own, other)


class TestWhatIsCopied:
    """`_copied` by itself, with a bus that records the sizes of copies."""

    class Bus:
        device = torch.device("cpu")

        def __init__(self) -> None:
            self.nbytes: list[int] = []

        def copy(self, tensors: Any) -> list[torch.Tensor]:
            self.nbytes += [tensor.nbytes for tensor in tensors]
            return [tensor.clone() for tensor in tensors]

    @pytest.mark.parametrize(
        ("rows", "nbytes"), [([0, 1], [60]), ([1, 0], [60]), ([0], [36]), ([1], [24]), ([], []), ([0, 0], [60])]
    )
    def test_a_block_or_a_small_part_of_it(self, rows: list[int], nbytes: list[int]) -> None:
        block = torch.arange(60, dtype=torch.uint8)
        images = [block[:36].view(3, 4, 3).permute(2, 0, 1), block[36:].view(2, 4, 3).permute(2, 0, 1)]
        bus = self.Bus()
        made = _copied(bus, [images[row] for row in rows])
        assert bus.nbytes == nbytes
        for image, row in zip(made, rows, strict=True):
            assert torch.equal(image, images[row])
            assert image.stride() == images[row].stride()
            assert image.untyped_storage().data_ptr() != block.data_ptr()

    def test_two_small_ones_of_a_large_block_go_alone(self) -> None:
        block, bus = torch.arange(200, dtype=torch.uint8), self.Bus()
        made = _copied(bus, [block[30:40], block[:9], torch.arange(3)])
        assert bus.nbytes == [10, 9, 24]
        assert [each.tolist()[-1] for each in made] == [39, 8, 2]

    def test_two_blocks_and_none(self) -> None:
        bus = self.Bus()
        blocks = [torch.arange(20, dtype=torch.uint8), torch.arange(100, 130, dtype=torch.uint8)]
        parts = [blocks[1][:15], blocks[0][10:], torch.zeros(0, dtype=torch.uint8), blocks[0][:10], blocks[1][15:]]
        parts.append(torch.zeros(0, dtype=torch.uint8))
        made = _copied(bus, parts)
        assert sorted(bus.nbytes) == [0, 0, 20, 30]
        assert all(map(torch.equal, made, parts))
