"""Train on several GPUs, on several nodes, or in several processes of one machine, with DistributedDataParallel.

    iofast pack ./images images.lmdb --resize 256
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py images.lmdb --steps 1000
    torchrun --standalone --nproc-per-node 4 examples/train_ddp.py images.lmdb --steps 2000 --resume

The second run resumes at the batch where the first ended, although it has more ranks: the global batch is the same, and
the loader's state does not depend on the number of ranks. It uses NCCL on GPUs, else gloo on the CPU.

On eight nodes, from an object store: the same on every node, with a checkpoint in a folder that all of them can read.

    export IOFAST_CACHE=/nvme/iofast
    torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint first-node:29400 \
        examples/train_ddp.py s3://bucket/train.tar --groups 64 --global-batch 2048 --checkpoint /shared/checkpoint.pt

With --groups each node reads only its own ranges of the set. If four nodes are lost, start the others with the same
command, but with `--nnodes 4` and `--resume`.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.order import Blocks, Grouped, Shuffled


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with DistributedDataParallel. Start it with torchrun.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, here or at a URL, or a folder of class folders")
    parser.add_argument("--split", help="one of the dataset's splits, where it has several")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all (default 100)")
    parser.add_argument("--global-batch", type=int, default=64, help="images per step, of all ranks (default 64)")
    parser.add_argument("--groups", type=int, help="ranges of the set that stay with their node, such as 64")
    parser.add_argument("--size", type=int, default=224, help="pixels a side (default 224)")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="where to save")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between two checkpoints (default 1000)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    args = parser.parse_args()

    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train(args)
    finally:
        distributed.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    if args.global_batch % ranks:
        raise SystemExit(f"{ranks} ranks cannot share --global-batch {args.global_batch} equally")

    dataset = FastDataset(args.dataset, args.split)
    loader = FastLoader(  # gets its rank from torch.distributed, without a DistributedSampler
        dataset,
        batch_size=args.global_batch // ranks,
        order=Grouped(args.groups, Blocks(256, 4)) if args.groups else Shuffled(),
        drop_last=True,
        transform=T.train(args.size),
        dtype=torch.float32,
        device=device,
    )
    torch.manual_seed(0)  # every rank begins with the same weights
    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]  # put your own here
    model = nn.Sequential(*layers, nn.Linear(32, len(dataset.classes))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    if args.resume:
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])  # the state is the same on every rank
        step = state["step"]

    parallel = DistributedDataParallel(model)
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and (step == args.steps or step % args.save_every == 0):
                parts = {"model": model, "optimizer": optimizer, "loader": loader}
                save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, args.checkpoint)
            if step == args.steps:
                break
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")


def save(state: dict[str, Any], path: Path) -> None:
    """Replace the checkpoint at once: a kill leaves the old one or the new one."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
