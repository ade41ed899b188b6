"""Train an image classifier in Keras 3, from a packed file or a plain folder. A starting point: copy it and change it.

    pip install 'iofast[torch]' keras jax
    iofast pack ./images images.lmdb --resize 256
    KERAS_BACKEND=jax python examples/train_keras.py images.lmdb --epochs 20

Keras gets NumPy arrays, whatever its backend (jax, tensorflow or torch). They are (N, 3, H, W) in channels-last memory,
so that Keras's usual (N, H, W, 3) is a view.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import torch

from iofast import FastDataset, FastLoader
from iofast import transforms as T


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="a container or a folder")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=128, help="pixels a side (default: %(default)s)")
    args = parser.parse_args()
    dataset = FastDataset(args.data)
    loader = FastLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        drop_last=True,
        transform=T.train(args.size),
        dtype=torch.float32,
        memory_format=torch.channels_last,
        output="numpy",
    )
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((args.size, args.size, 3)),
            layers.Conv2D(16, 7, 4, activation="relu"),
            layers.Conv2D(32, 3, 2, activation="relu"),
            layers.Conv2D(64, 3, 2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(len(dataset.classes)),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(forever(loader), steps_per_epoch=len(loader), epochs=args.epochs, shuffle=False, verbose=2)
    return 0


def forever(loader: FastLoader) -> Iterator[tuple[Any, Any]]:
    """Images (N, H, W, 3) and labels of one epoch after another; Keras counts the steps."""
    while True:
        for images, labels in loader:
            yield images.transpose(0, 2, 3, 1), labels


if __name__ == "__main__":
    raise SystemExit(main())
