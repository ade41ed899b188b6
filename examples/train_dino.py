"""Learn without labels from several crops of each image, as DINO does (arXiv 2104.14294), with a tiny network.

    iofast pack ./images images.lmdb --resize 256
    iofast view images.lmdb crops.png --transform "dino(224)"       # what the network sees
    python examples/train_dino.py images.lmdb --steps 1000

`T.dino()` makes two large crops and eight small ones of each image, which is read and decoded once for all of them. The
student gets all crops, the teacher the large ones; the student learns the teacher's output for another crop, and the
teacher is the student's moving average.
"""

import argparse
from copy import deepcopy
from itertools import chain, islice, repeat

import torch
from torch import nn
from torch.nn.functional import log_softmax, softmax

from iofast import FastDataset, FastLoader
from iofast import transforms as T

TEACHER, STUDENT = 0.04, 0.1  # temperatures: the teacher's answers are sharper
KEPT = 0.9  # share of the mean of the teacher's answers that stays in each step


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn from several crops of each image, without labels.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of images")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels a side of the large crops (default 224)")
    parser.add_argument("--local-size", type=int, default=96, help="pixels a side of the small crops (default 96)")
    parser.add_argument("--local", type=int, default=8, help="small crops of each image (default 8)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default 64)")
    parser.add_argument("--answers", type=int, default=1024, help="what the head tells apart (default 1024)")
    parser.add_argument("--momentum", type=float, default=0.996, help="of the teacher (default 0.996)")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = FastLoader(
        FastDataset(args.dataset, "all"),
        args.batch_size,
        shuffle=True,
        drop_last=True,
        transform=T.dino(args.size, args.local_size, args.local),
        dtype=torch.float32,
        device=args.device,
    )
    student = network(args.width, args.answers).to(args.device)
    teacher = deepcopy(student).requires_grad_(False)
    center = torch.zeros(args.answers, device=args.device)  # else the teacher collapses to one answer
    optimizer = torch.optim.AdamW(student.parameters(), args.lr, weight_decay=0.04)
    for step, (views, _) in enumerate(islice(chain.from_iterable(repeat(loader)), args.steps), start=1):
        large = [views["first"], views["second"]]
        with torch.no_grad():
            answers = [teacher(images) for images in large]
        loss = disagreement([student(images) for images in large + views["local"]], answers, center)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        center.lerp_(torch.cat(answers).mean(0), 1 - KEPT)
        follow(teacher, student, args.momentum)
        if step in (1, args.steps) or step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


def disagreement(said: list[torch.Tensor], wanted: list[torch.Tensor], center: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy of the student's answers and the teacher's, of pairs of different crops."""
    targets = [softmax((each - center) / TEACHER, dim=1) for each in wanted]
    logs = [log_softmax(each / STUDENT, dim=1) for each in said]
    pairs = [(target, log) for i, target in enumerate(targets) for j, log in enumerate(logs) if i != j]
    return torch.stack([-(target * log).sum(1).mean() for target, log in pairs]).mean()


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move the teacher's weights towards the student's."""
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.lerp_(fast, 1 - momentum)


class Head(nn.Module):
    """DINO's projection: a hidden layer, then cosines with as many directions as there are answers."""

    def __init__(self, inputs: int, answers: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(inputs, 2 * inputs), nn.GELU(), nn.Linear(2 * inputs, inputs))
        self.directions = nn.Parameter(torch.randn(answers, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, directions = self.hidden(x), self.directions
        return nn.functional.linear(nn.functional.normalize(x, dim=1), nn.functional.normalize(directions, dim=1))


def network(width: int, answers: int) -> nn.Module:
    """Convolutions over images of any size, and a head. Put your own backbone here."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(4, outputs), nn.GELU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Head(4 * width, answers))


if __name__ == "__main__":
    main()
