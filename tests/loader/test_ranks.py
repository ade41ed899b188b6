"""Ranks that need the same data: four processes as torchrun starts them (gloo), as a mesh of two by two."""

import json
import os
import sys
from copy import copy
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from places import SUPPORT
from torch.distributed.device_mesh import init_device_mesh

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import OptionError

LOADER: dict[str, Any] = {"batch_size": 5, "shuffle": True, "drop_last": True, "transform": [T.CenterCrop(24)]}


def labels(loader: FastLoader) -> list[list[int]]:
    return [own.tolist() for _, own in loader]


def one_rank(data: str, folder: str) -> None:
    """In each of the four processes: what a loader gives with each group, or its error."""
    torch.distributed.init_process_group("gloo")
    dataset, world = FastDataset(data), torch.distributed.group.WORLD
    found: dict[str, Any] = {}

    def note(name: str, group: object = None) -> None:
        try:
            found[name] = labels(FastLoader(dataset, **LOADER, group=group))
        except OptionError as error:
            found[name] = str(error)

    note("no mesh")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    note("none given")
    note("mesh", mesh)
    note("dimension", mesh["dp"])
    note("process group", mesh.get_group("dp"))
    note("other dimension", mesh["tp"])
    note("all", world)
    found["copied"] = labels(copy(FastLoader(dataset, **LOADER, group=mesh)))
    del mesh
    for name, dims in {"hybrid": ("dp_replicate", "dp_shard"), "tensors alone": None, "context": ("cp", "sp")}.items():
        mesh = init_device_mesh("cpu", (2, 2) if dims else (4,), mesh_dim_names=dims or ("tp",))
        note(f"{name}, none given")
        note(name, mesh)
        del mesh
    mesh = init_device_mesh("cpu", (4,))
    assert mesh.mesh_dim_names is None
    note("one dimension without a name")
    Path(folder, f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def four(place: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, __file__, place / "numbered.lmdb", folder]
    run = forked.run(command, env=own, timeout=300, ranks=4)
    assert run.returncode == 0, run.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


SHARES: list[tuple[list[str], list[int], int]] = [  # groups, and which of how many shares each rank gets
    (["mesh", "dimension", "process group", "copied"], [0, 0, 1, 1], 2),  # ranks of tensor parallelism get the same
    (["other dimension"], [0, 1, 0, 1], 2),
    (["tensors alone", "no mesh", "all", "hybrid", "hybrid, none given"], [0, 1, 2, 3], 4),
    (["one dimension without a name"], [0, 1, 2, 3], 4),
]


@pytest.mark.parametrize(("groups", "shares", "of"), SHARES)
def test_the_group_decides(
    four: list[dict[str, Any]], numbered: FastDataset, groups: list[str], shares: list[int], of: int
) -> None:
    expected = [labels(FastLoader(numbered, **LOADER, rank=share, world_size=of)) for share in shares]
    for group in groups:
        assert [each[group] for each in four] == expected


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("none given", "torch has a device mesh of 2 x 2 ranks (dp, tp), whose ranks do not all need data"),
        ("tensors alone, none given", "torch has a device mesh of 4 ranks (tp), whose ranks do not all need data"),
        ("context, none given", "torch has a device mesh of 2 x 2 ranks (cp, sp), whose ranks do not all need data"),
        ("context", 'group must be data-parallel dimensions of a mesh, as mesh["dp"], or a process group, found a '),
    ],
)
def test_a_mesh_whose_data_parallel_part_is_unknown(four: list[dict[str, Any]], case: str, words: str) -> None:
    for each in four:
        assert each[case].startswith(words)


if __name__ == "__main__":
    one_rank(*sys.argv[1:])
