"""Batch memory comes back when nothing looks at it any more, and never before."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import SupportsIndex

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iofast.gpu.batch_memory import BatchMemory


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Memory has to come back by itself, not when the garbage collector happens to run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def memory(spare: int = 4) -> BatchMemory:
    return BatchMemory(pinned=False, spare=spare)


@pytest.mark.parametrize("shape", [(1,), (4, 8, 8, 3), (2, 3, 5, 7)])
def test_shape_and_type(shape: tuple[int, ...]) -> None:
    tensor = memory().take(shape)
    assert tensor.shape == shape
    assert tensor.dtype == torch.uint8
    assert tensor.is_contiguous()
    tensor.fill_(7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    blocks = memory()
    tensor = blocks.take((3, 5, 7), dtype)
    assert (tensor.shape, tensor.dtype) == ((3, 5, 7), dtype)
    assert tensor.is_contiguous()
    place = tensor.data_ptr()
    view = tensor[1:]
    del tensor
    assert blocks.take((3, 5, 7), dtype).data_ptr() != place
    del view
    assert blocks.take((3, 5, 7), dtype).data_ptr() == place


def test_the_same_memory_comes_back() -> None:
    blocks = memory()
    tensor = blocks.take((8, 32, 32, 3))
    place = tensor.data_ptr()
    for shape in [(8, 32, 32, 3), (8, 3, 32, 32), (5, 32, 32, 3)]:
        del tensor
        tensor = blocks.take(shape)
        assert tensor.data_ptr() == place


def test_nothing_comes_back_while_in_use() -> None:
    blocks = memory()
    held = [blocks.take((100,)) for _ in range(10)]
    assert len({tensor.data_ptr() for tensor in held}) == 10


WAYS = {
    "slice": lambda tensor: tensor[1:2],
    "element": lambda tensor: tensor[3, 3, 3, 0],
    "permuted": lambda tensor: tensor.permute(0, 3, 1, 2),
    "detached": lambda tensor: tensor.detach(),
    "alias": lambda tensor: tensor.view(-1).view(torch.int32),
    "numpy": lambda tensor: tensor.numpy(),
    "numpy of a slice": lambda tensor: tensor[2].numpy()[3:, ::2],
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "tensor of numpy": lambda tensor: torch.from_numpy(tensor.numpy()[1:]),
    "storage": lambda tensor: tensor.untyped_storage(),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
    "capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "set": lambda tensor: torch.empty(0, dtype=torch.uint8).set_(tensor),
    "tensor in a graph": lambda tensor: torch.ones(4, 8, 8, 3, requires_grad=True).mul(tensor[...]),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_looking_at_it_keeps_it(way: str) -> None:
    blocks = memory()
    tensor = blocks.take((4, 8, 8, 3))
    place = tensor.data_ptr()
    look = WAYS[way](tensor)
    del tensor
    other = blocks.take((4, 8, 8, 3))
    assert other.data_ptr() != place
    del look
    assert blocks.take((4, 8, 8, 3)).data_ptr() == place


def test_a_copy_does_not_keep_it() -> None:
    blocks = memory()
    tensor = blocks.take((4, 8, 8, 3))
    place = tensor.data_ptr()
    copies = (tensor.clone(), tensor.float(), tensor.tolist(), pickle.dumps(tensor))
    del tensor
    assert blocks.take((4, 8, 8, 3)).data_ptr() == place
    assert len(copies) == 4


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "drop", "look"]), st.integers(0, 20), st.integers(1, 5000)), max_size=60
    ),
    st.integers(0, 4),
)
def test_what_is_held_is_never_written_to(steps: list[tuple[str, int, int]], spare: int) -> None:
    """Whatever is taken, dropped and kept in part: a new tensor never shares a byte with one still looked at."""
    blocks = memory(spare)
    held: list[tuple[torch.Tensor, int]] = []
    for value, (kind, which, size) in enumerate(steps):
        if kind == "take":
            held.append((blocks.take((size,)).fill_(value), value))
        elif held:
            tensor, number = held.pop(which % len(held))
            if kind == "look":
                held.append((tensor[len(tensor) // 3 :], number))
            del tensor
        assert all((tensor == number).all() for tensor, number in held)
        assert len(blocks._free) <= spare


def test_spare_memory_is_limited() -> None:
    blocks = memory(spare=3)
    held = [blocks.take((1000,)) for _ in range(8)]
    assert not blocks._free
    del held
    assert len(blocks._free) == 3


def test_sizes_that_grow_and_shrink() -> None:
    blocks = memory(spare=3)
    for size in [10, 1000, 10, 50, 100_000, 7, 100_000, 3]:
        blocks.take((size,)).fill_(1)
    assert [loan.block.size for loan in blocks._free] == [
        100_000
    ]  # what was too small was let go, the largest serves all
    first, second = blocks.take((100_000,)), blocks.take((50,))
    del first, second
    assert sorted(loan.block.size for loan in blocks._free) == [50, 100_000]


def test_tensors_outlive_their_pool() -> None:
    blocks = memory()
    tensor = blocks.take((1000,)).fill_(3)
    alive = weakref.ref(blocks)
    del blocks
    assert alive() is None
    gc.collect()
    assert (tensor == 3).all()
    del tensor


def test_a_pool_and_its_memory_leave_no_cycle() -> None:
    blocks = memory()
    tensor = blocks.take((1000,))
    del tensor
    alive = [weakref.ref(blocks), weakref.ref(blocks._free[0].block)]
    del blocks
    assert [each() for each in alive] == [None, None]


def test_no_python_runs_when_memory_comes_back() -> None:
    """It would swallow a Ctrl-C."""
    blocks = memory(spare=1)
    held = [blocks.take((1000,)) for _ in range(3)]
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    held.clear()
    sys.setprofile(None)
    assert "call" not in events
    assert "c_call" in events  # the profiler was looking
    assert len(blocks._free) == 1
    assert not blocks._out


def test_the_last_spare_block_may_go_to_another_thread() -> None:
    class Contested(list[object]):
        """By the time one has seen that a block is there, somebody else has taken it."""

        def __len__(self) -> int:
            return 1

        def pop(self, index: SupportsIndex = -1) -> object:
            raise IndexError(index)

    blocks = memory()
    blocks._free = Contested()  # type: ignore[assignment]
    assert blocks.take((10,)).shape == (10,)


def test_tensors_dropped_by_other_threads() -> None:
    blocks = memory(spare=100)

    def use() -> None:
        for value in range(200):
            tensor = blocks.take((500,)).fill_(value % 251)
            assert (tensor == value % 251).all()
            del tensor

    workers = [threading.Thread(target=use) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(blocks._free) <= 4  # no more blocks were ever made than tensors lived at once
    assert not blocks._out
