"""Batch memory is used again when nothing refers to it any more, and never before."""

import gc
import sys
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from at_once import at_once
from hypothesis import given
from hypothesis import strategies as st

from iofast.batch_memory import BatchMemory
from iofast.errors import BatchSizeError


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Memory must come back without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def memory(spare: int = 4) -> BatchMemory:
    return BatchMemory(pinned=False, spare=spare)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3,), (4, 8, 8, 3), (2, 3, 5, 7)])
def test_shape_type_and_reuse(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    blocks = memory()
    tensor = blocks.take(shape, dtype)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
    place, view = tensor.data_ptr(), tensor[1:]
    del tensor
    assert blocks.take(shape, dtype).data_ptr() != place
    del view
    assert blocks.take(shape, dtype).data_ptr() == place


def test_sizes_beyond_the_memory_are_an_error_of_ours() -> None:
    """Of an altered index, say: as a NumPy error it named neither the batch nor a remedy."""
    with pytest.raises(BatchSizeError, match=r"^a batch needs [0-9,]+ MB .*: give a smaller batch_size") as raised:
        memory().take((1 << 20, 1 << 20, 1 << 20))
    assert isinstance(raised.value, MemoryError)


REFERENCES = {
    "slice": lambda tensor: tensor[1:2],
    "permuted": lambda tensor: tensor.permute(0, 3, 1, 2),
    "alias": lambda tensor: tensor.view(-1).view(torch.int32),
    "numpy of a slice": lambda tensor: tensor[2].numpy()[3:, ::2],
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "tensor of numpy": lambda tensor: torch.from_numpy(tensor.numpy()[1:]),
    "storage": lambda tensor: tensor.untyped_storage(),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
    "capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "tensor in a graph": lambda tensor: torch.ones(4, 8, 8, 3, requires_grad=True).mul(tensor[...]),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_every_kind_of_reference_keeps_the_memory(kind: str) -> None:
    blocks = memory()
    tensor = blocks.take((4, 8, 8, 3))
    place = tensor.data_ptr()
    reference = REFERENCES[kind](tensor)
    del tensor
    other = blocks.take((4, 8, 8, 3))
    assert other.data_ptr() != place
    del reference
    assert blocks.take((4, 8, 8, 3)).data_ptr() == place


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "drop", "slice"]), st.integers(0, 20), st.integers(1, 5000)), max_size=60
    ),
    st.integers(0, 4),
)
def test_live_tensors_share_no_byte(steps: list[tuple[str, int, int]], spare: int) -> None:
    blocks = memory(spare)
    live: list[tuple[torch.Tensor, int]] = []
    for value, (kind, which, size) in enumerate(steps):
        if kind == "take":
            live.append((blocks.take((size,)).fill_(value), value))
        elif live:
            tensor, number = live.pop(which % len(live))
            if kind == "slice":
                live.append((tensor[len(tensor) // 3 :], number))
            del tensor
        assert all((tensor == number).all() for tensor, number in live)
        assert len(blocks._free) <= spare


def test_tensors_outlive_their_pool_and_leave_no_cycle() -> None:
    blocks = memory()
    tensor = blocks.take((1000,)).fill_(3)
    blocks.take((10,))
    pool, spare = weakref.ref(blocks), weakref.ref(blocks._free[0].block)
    del blocks
    assert pool() is None
    assert (tensor == 3).all()
    del tensor
    assert spare() is None


def test_no_python_runs_when_memory_comes_back() -> None:
    """A Ctrl-C in a Python callback would be lost."""
    blocks = memory(spare=1)
    live = [blocks.take((1000,)) for _ in range(3)]
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    live.clear()
    sys.setprofile(None)
    assert "call" not in events
    assert "c_call" in events  # the profiler was active
    assert len(blocks._free) == 1
    assert not blocks._out


def test_tensors_dropped_by_other_threads() -> None:
    blocks = memory(spare=100)

    def use() -> None:
        for value in range(200):
            tensor = blocks.take((500,)).fill_(value % 251)
            assert (tensor == value % 251).all()
            del tensor

    at_once(*[use] * 4)
    assert len(blocks._free) <= 4  # no more blocks than tensors alive at once
    assert not blocks._out
