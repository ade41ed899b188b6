"""Imported by Python in every process of an example under test: records what the model was trained on.

The labels that reach the loss count, whatever a framework did to the loader. Each training step is a line of JSON in
the file of its rank.
"""

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import torch


def record(loss_of: Callable[..., torch.Tensor], folder: str) -> Callable[..., torch.Tensor]:
    """`loss_of` that also records its labels if it computes gradients."""

    @functools.wraps(loss_of)
    def recorded(logits: torch.Tensor, labels: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        loss = loss_of(logits, labels, *args, **options)
        if torch.is_grad_enabled() and logits.requires_grad:
            rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
            with open(os.path.join(folder, f"{rank}.jsonl"), "a") as file:
                file.write(json.dumps(labels.tolist()) + "\n")
        return loss

    return recorded


def without_torchvisions_operators() -> None:
    """Make torchvision importable beside a torch for the CPU.

    Its own operators are missing then, and their registration fails the import. timm and transformers import
    torchvision for names only.
    """
    describe = torch.library.register_fake

    def describe_if_there(operator: Any, *args: Any, **options: Any) -> Any:
        if isinstance(operator, str) and operator.startswith("torchvision::"):
            return lambda function: function
        return describe(operator, *args, **options)

    torch.library.register_fake = describe_if_there


if folder := os.environ.get("RECORD_TRAINING"):
    torch.nn.functional.cross_entropy = record(torch.nn.functional.cross_entropy, folder)
    without_torchvisions_operators()
