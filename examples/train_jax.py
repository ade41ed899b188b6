"""Train an image classifier in JAX, from a packed file or a plain folder. A starting point: copy it and change it.

    pip install 'iofast[torch]' jax
    iofast pack ./images images.lmdb --resize 256
    python examples/train_jax.py images.lmdb --epochs 20

The loader decodes, crops and normalises on the CPU, and gives NumPy arrays. They are (N, 3, H, W) in channels-last
memory, so that JAX's usual (N, H, W, 3) is a view.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch

from iofast import FastDataset, FastLoader
from iofast import transforms as T

SIZES = ((3, 16, 7, 4), (16, 32, 3, 2), (32, 64, 3, 2))  # of the convolutions: channels in and out, width, stride
Weights = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="a container or a folder")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=128, help="pixels a side (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (default: %(default)s)")
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
    weights = made(jax.random.key(0), len(dataset.classes))
    for epoch in range(args.epochs):
        begun, losses = time.perf_counter(), []
        for images, labels in loader:
            weights, loss = step(weights, jnp.asarray(images.transpose(0, 2, 3, 1)), jnp.asarray(labels), args.rate)
            losses.append(loss)
        rate = len(loader) * args.batch_size / (time.perf_counter() - begun)
        print(f"epoch {epoch}: loss {jnp.stack(losses).mean():.3f}, {rate:,.0f} images/s", flush=True)
    return 0


def made(key: Any, classes: int) -> Weights:
    """Weights of three convolutions and a linear layer, as He et al. (2015) draw them."""
    shapes = [(width, width, before, after) for before, after, width, _ in SIZES] + [(1, 1, SIZES[-1][1], classes)]
    keys = jax.random.split(key, len(shapes))
    normal = jax.nn.initializers.he_normal()
    return [{"w": normal(each, shape), "b": jnp.zeros(shape[-1])} for each, shape in zip(keys, shapes, strict=True)]


def scores(weights: Weights, images: Any) -> Any:
    """float32 (N, classes) for images (N, H, W, 3)."""
    for layer, (_, _, _, stride) in zip(weights, SIZES, strict=False):
        images = jax.lax.conv_general_dilated(
            images, layer["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        images = jax.nn.relu(images + layer["b"])
    return images.mean((1, 2)) @ weights[-1]["w"][0, 0] + weights[-1]["b"]


@jax.jit
def step(weights: Weights, images: Any, labels: Any, rate: float) -> tuple[Weights, Any]:
    """One step of gradient descent, and the loss before it."""

    def loss(weights: Weights) -> Any:
        return -jax.nn.log_softmax(scores(weights, images))[jnp.arange(len(labels)), labels].mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda own, slope: own - rate * slope, weights, gradient), value


if __name__ == "__main__":
    raise SystemExit(main())
