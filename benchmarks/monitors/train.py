"""A training process with one of the tools inside: `python train.py NAME --tool gpuprof --folder DIR`.

The programs of the suite, in the loop of the tools' documentation: zero_grad, forward, backward, step. The loss is read
before the optimizer's step, so that the wait for the simulated device is in the step: some tools count the time between
two steps as the loader's. The tool starts after the warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.monitors.tools import INSIDE, Tool
from benchmarks.monitors.workloads import find
from benchmarks.verdicts import loaders
from benchmarks.verdicts.program import UNAVAILABLE, Training, Waits
from benchmarks.verdicts.programs import Program


class Arithmetic(torch.nn.Module):
    """A network that takes `seconds` of the processor a batch: a third forward, two thirds backward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.rand(192, 192))

    def forward(self, _images: object) -> torch.Tensor:
        loss: torch.Tensor = _Pass.apply(self.weight, self.seconds)
        return loss


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        ctx.save_for_backward(weight)
        multiply(weight, seconds / 3)
        return weight.sum()

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        multiply(weight, 2 * ctx.seconds / 3)
        return torch.zeros_like(weight), None


def multiply(matrix: torch.Tensor, seconds: float) -> None:
    """Matrix products for so many seconds of this thread's own time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        torch.mm(matrix, matrix)


class Observed(Training):
    """A program of the suite at work, with a tool that watches it from inside."""

    def __init__(self, program: Program, folder: Path, files: Path, tool: Tool) -> None:
        self.tool, self.observing = tool, False
        super().__init__(program, folder, files, inside=False)

    def run(self, seconds: float) -> None:
        """Warm up, train under the tool, and write timeline and verdict."""
        program = self.program
        loader = loaders.loader_of(program, self.files)
        self.beside = None
        self._warmed_up(Waits(loader))
        self.tool.start(self.folder)
        self.observing = True
        if program.extra in ("second-loader", "idle-loader"):
            self.beside = iter(loaders.idle_loader(program, self.files))
            next(self.beside)
        waits = Waits(self.tool.loader(loader))
        self._begin(seconds)
        self._train(waits, None)
        self.tool.stop()
        (self.folder / "said.json").write_text(json.dumps(self.tool.said))
        self._write(waits)

    def computes(self, seconds: float) -> None:
        super().computes(seconds)
        model: Any = Arithmetic(seconds) if self.device is None else self.network
        self.model: torch.nn.Module = model
        self.optimizer = torch.optim.SGD([model.weight], lr=0.0)

    def train_step(self, batch: Any) -> None:
        with self.tool.step(self.model) if self.observing else contextlib.nullcontext():
            self._step(batch)

    def _step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        if self.program.wait == "loop" and self.device is not None:
            self.train_looking(self.network)
        else:
            loss = self.model(batch)
            loss.backward()
            if self.device is not None and self.program.wait == "step":
                loss.item()
        self.optimizer.step()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--tool", choices=INSIDE, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="a fresh folder for what happened")
    parser.add_argument("--files", type=Path, required=True, help="where the samples are, or are made")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    program = find(arguments.name)
    arguments.files.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    try:
        training = Observed(program, arguments.folder, arguments.files, INSIDE[arguments.tool]())
        with loaders.surroundings(program, arguments.files):
            training.run(arguments.seconds)
    except loaders.UnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
