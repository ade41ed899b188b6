"""Several views of each image: sizes and names, the same pixels as each view alone, broken images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loader_sets import photographs, with_broken
from torch.utils._pytree import tree_leaves
from transform_draws import write_smooth

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import DecodeError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smooth images of several sizes."""
    sizes = [(150 + number, 120 if number % 2 else 170) for number in range(24)]
    return write_smooth(tmp_path_factory.mktemp("views") / "set.lmdb", sizes)


def loader(path: Path, views: T.Views, **options: Any) -> FastLoader:
    options = {"batch_size": 8, "shuffle": True, "dtype": torch.float32, **options}
    return FastLoader(FastDataset(path), transform=views, **options)


class TestBatches:
    def test_have_a_random_tensor_or_list_under_each_name(self, path: Path) -> None:
        images, labels = next(iter(loader(path, T.dino(64, 32, 3))))
        assert list(images) == ["first", "second", "local"]
        assert images["first"].shape == images["second"].shape == (8, 3, 64, 64)
        assert [each.shape for each in images["local"]] == [(8, 3, 32, 32)] * 3
        assert all(each.dtype == torch.float32 and each.is_contiguous() for each in tree_leaves(images))
        assert labels.shape == (8,)
        for one, other in zip(tree_leaves(images), tree_leaves(images)[1:], strict=False):
            assert one.shape != other.shape or not torch.equal(one, other)
        each = loader(path, T.dino(32, 16, 1))
        epochs = []
        for epoch in (0, 1):
            each.set_epoch(epoch)
            epochs.append([images["first"] for images, _ in each])
        assert not any(map(torch.equal, *epochs))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_are_the_same_as_each_view_alone(self, path: Path, dtype: torch.dtype, layout: torch.memory_format) -> None:
        end = [T.Normalize.imagenet()] if dtype != torch.uint8 else [T.Grayscale()]
        lists: dict[str, Any] = {
            "center": [T.Resize(110), T.CenterCrop(100), *end],
            "bicubic": [T.Resize((60, 70), "bicubic"), *end],
            "padded": [T.CenterCrop(200, pad_if_needed=True), *end],
        }
        options: dict[str, Any] = {"dtype": dtype, "memory_format": layout, "seed": 4}
        together = [images for images, _ in loader(path, T.Views(**lists), **options)]
        for name, own in lists.items():
            alone = [images for images, _ in FastLoader(FastDataset(path), 8, shuffle=True, transform=own, **options)]
            for one, several in zip(alone, together, strict=True):
                assert torch.equal(one, several[name])
                assert several[name].is_contiguous(memory_format=layout)


class TestBrokenImages:
    @pytest.mark.parametrize(("action", "rows"), [("replace", [4, 4, 4]), ("drop", [4, 3, 4])])
    def test_raise_or_are_replaced_or_dropped(self, tmp_path: Path, action: str, rows: list[int]) -> None:
        broken = with_broken(tmp_path / "broken.lmdb", photographs(12), [5])
        options: dict[str, Any] = {"batch_size": 4, "shuffle": False}
        with pytest.raises(DecodeError, match="00000005"):
            list(loader(broken, T.dino(32, 16, 1), **options))
        batches = list(loader(broken, T.dino(32, 16, 1), on_error=action, **options))
        assert [len(images["second"]) for images, _ in batches] == rows
        assert all(each.isfinite().all() for images, _ in batches for each in tree_leaves(images))


def test_corners(path: Path) -> None:
    places = ("upper left", "upper right", "lower left", "lower right", "center")
    views = T.Views(**{name: [T.Resize(96), T.CornerCrop(64, name), T.Normalize.imagenet()] for name in places})
    images, _ = next(iter(loader(path, views, shuffle=False)))
    whole = [T.Resize(96), T.Normalize.imagenet()]
    resized, _ = next(iter(FastLoader(FastDataset(path), 1, transform=whole, dtype=torch.float32)))
    assert torch.equal(images["upper left"][:1], resized[:, :, :64, :64])
    assert torch.equal(images["lower right"][:1], resized[:, :, -64:, -64:])
    middle = (resized.shape[2] - 64) // 2, (resized.shape[3] - 64) // 2
    assert torch.equal(images["center"][:1], resized[:, :, middle[0] :, middle[1] :][:, :, :64, :64])
