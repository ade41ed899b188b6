"""`output="numpy"`: the same batches as arrays, whose memory is theirs as long as they live."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from iofast import FastDataset, FastLoader
from iofast import transforms as T

TRANSFORM = [T.RandomResizedCrop(32), T.Normalize.imagenet()]
OPTIONS: dict[str, Any] = {"shuffle": True, "transform": TRANSFORM, "dtype": torch.float32, "num_workers": 2}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_same_batches(numbered: FastDataset, layout: torch.memory_format) -> None:
    tensors = list(FastLoader(numbered, 8, memory_format=layout, **OPTIONS))
    arrays = list(FastLoader(numbered, 8, memory_format=layout, output="numpy", **OPTIONS))
    assert len(arrays) == 5
    for (images, labels), (own_images, own_labels) in zip(tensors, arrays, strict=True):
        assert type(own_images) is type(own_labels) is np.ndarray
        assert own_images.dtype == np.float32
        assert np.array_equal(own_images, images.numpy())
        assert np.array_equal(own_labels, labels.numpy())
        assert own_images.transpose(0, 2, 3, 1).flags.c_contiguous == (layout == torch.channels_last)


def test_views_fields_and_lists(numbered: FastDataset) -> None:
    dataset = FastDataset(numbered.path, fields=["image", "label", "key"])
    batch = FastLoader(dataset, 8, transform=[T.Resize((9, 9))], output="numpy").peek()
    assert isinstance(batch, dict)
    assert {name: type(column) for name, column in batch.items()} == {
        "image": np.ndarray,
        "label": np.ndarray,
        "key": list,
        "valid": np.ndarray,
    }
    images, labels = FastLoader(numbered, 8, output="numpy", ragged="list").peek()
    assert [type(image) for image in images] == [np.ndarray] * 8
    assert images[0].dtype == labels.dtype.type(0).astype(np.uint8).dtype
    views = T.Views(big=[T.RandomResizedCrop(24)], small=[T.RandomResizedCrop(8)])
    seen, _ = FastLoader(numbered, 8, transform=views, output="numpy").peek()
    assert {name: each.shape for name, each in seen.items()} == {"big": (8, 3, 24, 24), "small": (8, 3, 8, 8)}


def test_map_batch_gets_arrays(numbered: FastDataset) -> None:
    def doubled(batch: Any) -> Any:
        images, labels = batch
        return images.astype(np.int64) * 2, labels

    plain = FastLoader(numbered, 8, transform=[T.Resize((9, 9))], output="numpy").peek()
    twice = FastLoader(numbered, 8, transform=[T.Resize((9, 9))], output="numpy", map_batch=doubled).peek()
    assert np.array_equal(twice[0], 2 * plain[0].astype(np.int64))


def test_dlpack_of_a_tensor(numbered: FastDataset) -> None:
    """Another framework takes a tensor without a copy."""
    images, _ = FastLoader(numbered, 8, transform=[T.Resize((9, 9))]).peek()
    assert np.from_dlpack(images).ctypes.data == images.data_ptr()
