"""Training steps: a network in bfloat16, channels last."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.job import Job
from iofast.beside import Step

CLASSES = 1000


def networks(job: Job) -> dict[str, Callable[[], nn.Module]]:
    """torchvision's ResNets; three convolutions without torchvision and in a quick run."""
    try:
        models: Any = importlib.import_module("torchvision.models")
    except Exception as error:  # built for another torch, it raises anything
        job.lacks("ResNet-18 and ResNet-50", f"torchvision cannot be imported: {error}")
        return {"three convolutions": convolutions}
    if job.quick:
        return {"three convolutions": convolutions}
    return {"ResNet-50": models.resnet50, "ResNet-18": models.resnet18}


def convolutions() -> nn.Module:
    """The smallest network that trains."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def training(job: Job, network: Callable[[], nn.Module]) -> Step:
    """Forward, backward, an update by SGD; batches are moved to the device."""
    torch.backends.cudnn.benchmark = True
    model = network().to(job.device, torch.bfloat16, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch: Any) -> None:
        images, labels = (each.to(job.device, non_blocking=True) for each in batch)
        images = images.to(torch.bfloat16, memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
