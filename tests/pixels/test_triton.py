"""The Triton passes against the torch oracle: in Triton's interpreter, or compiled where there is a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pixel_work import EVERYTHING, IMAGENET, JITTER, drawn_work, noise, operations
from places import SUPPORT
from test_pixels_geometry import pictures, plan, ragged

from iofast import transforms as T
from iofast.ops import Op
from iofast.pixels import apply, augment, dispatch, torch_geometry, torch_pixels
from iofast.pixels.torch_geometry import RaggedBatch
from iofast.work import NUMBERS, Step, Work, no_work

pytest.importorskip("triton")

from iofast.pixels import triton_geometry, triton_pixels

# Each example takes a second in the interpreter. On a GPU most are compiled for their layout, type and size (whether a
# multiple of 16), which takes a second for the geometry pass and several for the pixel pass.
FEW = settings(max_examples=8)
GPU = os.environ.get("TRITON_INTERPRET") != "1"
DEVICE = "cuda" if GPU else "cpu"
pytestmark = [pytest.mark.gpu] if GPU else []  # so that `pytest -m gpu` runs the compiled passes


def there(batch: RaggedBatch) -> RaggedBatch:
    return RaggedBatch(batch.data.to(DEVICE), batch.offsets, batch.sizes)


def close(made: torch.Tensor, wanted: torch.Tensor) -> None:
    """Identical in the interpreter. Compiled within 1e-5 before the cast, and so within one step of float16."""
    made, half = made.cpu(), wanted.dtype == torch.float16
    assert made.dtype == wanted.dtype
    if not GPU:
        assert torch.equal(made, wanted)
        return
    if half:
        steps = (made.view(torch.int16).int() - wanted.view(torch.int16).int()).abs()
        large = wanted.abs() >= 2.0**-6
        assert not large.any() or steps[large].max() <= 1
        made, wanted = made[~large].float(), wanted[~large].float()
    torch.testing.assert_close(made, wanted, rtol=0, atol=2e-5 if half else 1e-5)


def in_torch(
    images: torch.Tensor,
    ops: list[Op],
    work: Work,
    dtype: torch.dtype = torch.float32,
    layout: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """The result of torch."""
    out = torch.empty_like(images, dtype=dtype, memory_format=layout)
    torch_pixels.apply(images, ops, work, out)
    return out


NUMBERS_OF = {
    Step.SOLARIZE: (100.0, 0.0),
    Step.POSTERIZE: (3.0, 0.0),
    Step.ADD_BELOW: (100.0, 20.0),
    Step.BLUR: (2.0, 3.0),
    Step.PERMUTE: (3.0, 0.0),
}

LAYOUTS = st.sampled_from([torch.channels_last, torch.contiguous_format])


def sides(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def crops(draw: st.DrawFn) -> tuple[RaggedBatch, NDArray[np.int32], NDArray[np.uint8], tuple[int, int]]:
    """A batch, its boxes and flips, and the size of the crops."""
    sizes, seed = draw(st.lists(sides(1, 60), min_size=1, max_size=2)), draw(st.integers(0, 99))
    size = draw(sides(4, 24))
    batch = ragged(pictures(sizes, seed))
    return batch, *plan([T.RandomResizedCrop(size), T.RandomHorizontalFlip()], sizes, seed), size


class TestGeometry:
    @FEW
    @given(crop=crops(), layout=LAYOUTS)
    def test_equals_torch_to_the_last_bit(self, crop: Any, layout: torch.memory_format) -> None:
        batch, *where = crop
        made = triton_geometry.resample(there(batch), *where, memory_format=layout)
        assert made.is_contiguous(memory_format=layout)
        assert torch.equal(made.cpu(), torch_geometry.resample(batch, *where))

    def test_windows_of_resized_images_and_parts_of_images(self) -> None:
        """The regions of the parts reach beyond them on all sides; the windows do not."""
        parts = np.array([[-9, -7, 40, 40, 40, 38, 10, 10], [-3, -30, 50, 41, 30, 50, 4, 22]], np.int32)
        sizes = [(40, 53), (31, 24), (9, 90)]
        for batch, boxes, flips, size in (
            (ragged(pictures(sizes)), *plan([T.Resize(20), T.CenterCrop(16)], sizes), (16, 16)),
            (ragged(pictures([(22, 26), (30, 24)])), parts, np.array([0, 1], np.uint8), (12, 8)),
        ):
            made = triton_geometry.resample(there(batch), boxes, flips, size)
            assert torch.equal(made.cpu(), torch_geometry.resample(batch, boxes, flips, size))

    @FEW
    @given(crop=crops(), layout=LAYOUTS, dtype=st.sampled_from([torch.float32, torch.float16]))
    def test_normalises_in_the_same_pass(self, crop: Any, layout: torch.memory_format, dtype: torch.dtype) -> None:
        batch, *where = crop
        made = triton_geometry.resample(there(batch), *where, [IMAGENET], dtype=dtype, memory_format=layout)
        assert made.is_contiguous(memory_format=layout)
        close(made, augment(batch, *where, [IMAGENET], dtype=dtype, memory_format=layout))


class TestTritonPixels:
    @settings(max_examples=14)
    @given(
        ops=st.one_of(st.just(EVERYTHING), operations()),
        mix=st.sampled_from([None, T.MixUp(num_classes=3), T.CutMix(num_classes=3)]),
        seed=st.integers(0, 10_000),
        n=st.integers(1, 5),
        size=sides(1, 24),
        layouts=st.tuples(st.one_of(st.none(), LAYOUTS), LAYOUTS),
        dtype=st.sampled_from([torch.float32, torch.float16]),
    )
    def test_any_operations(
        self, ops: list[Op], mix: Op | None, seed: int, n: int, size: tuple[int, int], layouts: Any, dtype: torch.dtype
    ) -> None:
        """With any parameters and in any order, on images in either layout or in none."""
        ops = [*ops, mix] if mix else ops
        work = drawn_work(ops, n, size, seed, paired=mix is not None)
        images = noise(n, size[0], 2 * size[1], seed)[..., ::2]
        images = images if layouts[0] is None else images.contiguous(memory_format=layouts[0])
        made = triton_pixels.apply(images.to(DEVICE), ops, work, dtype=dtype, memory_format=layouts[1])
        assert made.is_contiguous(memory_format=layouts[1])
        close(made, in_torch(images, ops, work, dtype, layouts[1]))

    @pytest.mark.parametrize("step", [step for step in Step if step], ids=lambda step: step.name)
    def test_each_step_has_its_branch(self, step: Step) -> None:
        images, numbers = noise(3, 30, 33) // 2 + 20, np.full((3, 1, NUMBERS), 0.3, np.float32)
        numbers[:, 0, :2] = NUMBERS_OF.get(step, (0.3, 0.3))
        work = replace(no_work(3), steps=np.full((3, 1), step, np.int8), numbers=numbers)
        wanted = in_torch(images, [JITTER], work)
        assert not torch.equal(wanted, in_torch(images, [], no_work(3)))
        made = triton_pixels.apply(images.to(DEVICE), [JITTER], work)
        assert torch.equal(made.cpu(), wanted)

    def test_several_contrasts_and_a_filter_between(self) -> None:
        """One image without steps, one with fewer than the others, one with a step on neighbouring pixels."""
        contrasts: list[Op] = [T.ColorJitter(contrast=0.9), JITTER, T.ColorJitter(contrast=(0.2, 0.2)), IMAGENET]
        images, work = noise(5, 30, 31), drawn_work(contrasts, 5, (30, 31))
        steps = work.steps.copy()
        steps[1], steps[3, 0], steps[4, 2] = 0, 0, Step.SHARPNESS
        work = replace(work, steps=steps)
        made = triton_pixels.apply(images.to(DEVICE), contrasts, work)
        assert torch.equal(made.cpu(), in_torch(images, contrasts, work))

    def test_nothing_but_normalisation_and_no_images(self) -> None:
        images = noise(3, 5, 1)
        wanted = apply(images, [IMAGENET])
        torch.testing.assert_close(triton_pixels.apply(images.to(DEVICE), [IMAGENET], no_work(3)).cpu(), wanted)
        assert triton_pixels.apply(images[:0].to(DEVICE), [IMAGENET], no_work(0)).shape == (0, 3, 5, 1)


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    """Compile for Hopper, without fused multiplication and addition: the oracle rounds after each."""
    program = SUPPORT / "triton_compiles.py"
    places = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_CACHE_DIR": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | places
    run = subprocess.run([sys.executable, program, "90"], capture_output=True, text=True, env=environment, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert {each["kernel"] for each in found} == {"_windows", "_resample", "_gray_sums", "_finish"}
    assert [each for each in found if each["fused"] or not each["bytes"]] == []
    geometry = [each for each in found if each["kernel"] in ("_windows", "_resample")]
    assert all(each["varying"] == ["n_images", "most"] for each in geometry), "a batch would wait for a compiler"


def test_torch_replaces_triton_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no C compiler\nand more")

    dispatch.triton_works.cache_clear()
    monkeypatch.setattr(triton_pixels, "apply", broken)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    with pytest.warns(RuntimeWarning, match="plain torch, not in Triton: no C compiler$"):
        assert not dispatch.triton_works()
    assert not dispatch.triton_works()
    dispatch.triton_works.cache_clear()


@pytest.mark.gpu
class TestOnAGpu:
    """Tests that need a GPU: bfloat16, which the interpreter truncates, and the choice of Triton."""

    def test_bfloat16_within_one_step_of_its_own(self) -> None:
        images, work = noise(16, 64, 48), drawn_work(EVERYTHING, 16, (64, 48))
        wanted = in_torch(images, EVERYTHING, work, torch.bfloat16)
        made = triton_pixels.apply(images.cuda(), EVERYTHING, work, dtype=torch.bfloat16).cpu()
        steps = made.view(torch.int16).int() - wanted.view(torch.int16).int()
        large = wanted.abs() > 2.0**-6
        assert steps[large].abs().max() <= 1

    def test_pixels_apply_uses_triton_on_a_gpu(self) -> None:
        assert dispatch.triton_works()
        work = drawn_work(EVERYTHING, 8, (32, 32))
        made = apply(noise(8, 32, 32).cuda(), EVERYTHING, work=work, memory_format=torch.channels_last)
        assert made.is_cuda
        assert torch.equal(made, triton_pixels.apply(noise(8, 32, 32).cuda(), EVERYTHING, work))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64])
    def test_augment_on_a_gpu(self, dtype: torch.dtype) -> None:
        sizes = [(300, 400), (224, 224), (97, 50)]
        boxes, flips = plan([T.RandomResizedCrop(96), T.RandomHorizontalFlip()], sizes)
        batch = ragged(pictures(sizes))
        there = RaggedBatch(batch.data.cuda(), batch.offsets, batch.sizes)
        ops: list[Op] = [] if dtype == torch.uint8 else [IMAGENET]
        wanted = augment(batch, boxes, flips, (96, 96), ops, dtype=dtype)
        made = augment(there, boxes, flips, (96, 96), ops, dtype=dtype).cpu()
        torch.testing.assert_close(made, wanted, rtol=2.0**-7, atol=1e-5)

    def test_torch_gives_the_same_pixels_on_gpu_and_cpu(self) -> None:
        work = drawn_work(EVERYTHING, 8, (40, 40))
        made = in_torch(noise(8, 40, 40).cuda(), EVERYTHING, work).cpu()
        assert torch.equal(made, in_torch(noise(8, 40, 40), EVERYTHING, work))
        sizes = [(300, 400), (224, 224)]
        boxes, flips = plan([T.RandomResizedCrop(96), T.RandomHorizontalFlip()], sizes)
        batch = ragged(pictures(sizes))
        there = RaggedBatch(batch.data.cuda(), batch.offsets, batch.sizes)
        made = torch_geometry.resample(there, boxes, flips, (96, 96)).cpu()
        assert torch.equal(made, torch_geometry.resample(batch, boxes, flips, (96, 96)))
