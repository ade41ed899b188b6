"""Train with Hugging Face Accelerate. Its checkpoints have the loader's state, so a run resumes in mid-epoch.

    iofast pack ./images images.lmdb --resize 256
    accelerate launch --num_processes 2 examples/train_accelerate.py images.lmdb --steps 1000
    accelerate launch --num_processes 2 examples/train_accelerate.py images.lmdb --steps 2000 --resume

`accelerator.prepare` rebuilds torch's DataLoader to give each process its part. A FastLoader has its own part already,
and its batches are on the device: prepare returns it unchanged. `register_for_checkpointing` saves its state.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from iofast import FastDataset, FastLoader
from iofast import transforms as T


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with Hugging Face Accelerate.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of class folders")
    parser.add_argument("--split", help="one of the dataset's splits, where it has several")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all (default 100)")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step and process (default 64)")
    parser.add_argument("--size", type=int, default=224, help="pixels a side (default 224)")
    parser.add_argument("--cpu", action="store_true", help="leave the GPUs alone")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"), help="folder to save in at the end")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=args.cpu)  # first: the loader gets its rank from torch.distributed
    dataset = FastDataset(args.dataset, args.split)
    loader = FastLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        transform=T.train(args.size),
        dtype=torch.float32,
        device=accelerator.device,
    )
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]  # put your own here
    model = nn.Sequential(*layers, nn.Linear(32, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    if args.resume:
        accelerator.load_state(args.checkpoint)

    step = loader.epoch * len(loader) + loader.batch
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step == args.steps:
                break
        accelerator.print(f"step {step}: loss {loss.item():.3f}")
    accelerator.save_state(args.checkpoint)
    held_out = FastLoader(
        dataset, args.batch_size, transform=T.evaluate(args.size), dtype=torch.float32, device=accelerator.device
    )
    hits, count = validate(accelerator, model, held_out)
    accelerator.print(f"{hits} of {count} images right")
    accelerator.end_training()


@torch.inference_mode()
def validate(accelerator: Accelerator, model: nn.Module, loader: FastLoader) -> tuple[int, int]:
    """Correctly classified images, and all images, of all processes. Each image counts once.

    `gather_for_metrics` would count what fills up the last batch too: it knows only the loaders that Accelerate made.
    """
    hits = count = 0
    for images, labels in loader:
        right = model(images).argmax(1) == labels
        right, real = accelerator.gather((right, loader.last_valid.to(right.device)))
        hits, count = hits + int(right[real].sum()), count + int(real.sum())
    return hits, count


if __name__ == "__main__":
    main()
