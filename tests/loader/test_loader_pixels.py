"""Work on the pixels of batches: against float64, and drawn per sample, the same on any ranks and workers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loader_sets import digest, photographs, with_broken
from pixel_work import EVERYTHING, IMAGENET, apply, drawn_work, expected, noise, operations, stepped

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.loader.finishing import check_dtype
from iofast.order import Population, Shuffled
from iofast.transforms.transform import Op
from iofast.work import Work, no_work

N = 40
CROP: list[T.Transform] = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
OPS = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomGrayscale(0.1),
    T.RandomSolarize(0.5, p=0.2),
    T.Normalize.imagenet(),
    T.RandomErasing(0.25),
]
MIXES = [None, T.MixUp(alpha=0.4, num_classes=N), T.CutMix(num_classes=N)]
SHARED: dict[str, Any] = {"shuffle": True, "seed": 9, "dtype": torch.float32}


def transform(mix: T.Transform | None) -> list[T.Transform]:
    return [*CROP, *OPS, *([mix] if mix else [])]


def compare(ops: list[Op], work: Work, images: torch.Tensor) -> None:
    """After the steps the expected values are computed in float64."""
    made = apply(images, ops, work=work)
    levels = stepped(images, work.steps, work.numbers).numpy()
    for row, image in enumerate(levels):
        np.testing.assert_allclose(made[row].numpy(), expected(image, ops, work, row), rtol=0, atol=5e-6)
    assert torch.equal(apply(images, ops, work=work, dtype=torch.float64), made.double())


@given(ops=operations(), seed=st.integers(0, 1 << 20), data=st.data())
def test_any_operations(ops: list[Op], seed: int, data: st.DataObject) -> None:
    n, height, width = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)))
    compare(ops, drawn_work(ops, n, (height, width), seed), noise(n, height, width, seed))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_only_erased_pixels_get_noise(before: bool) -> None:
    """Before and after normalisation; it is normal, and differs between images and erasings."""
    erasing = T.RandomErasing(1, value="random")
    ops: list[Op] = [erasing, IMAGENET] if before else [IMAGENET, erasing]
    work = drawn_work(ops, 8, (40, 40))
    made = apply(noise(8, 40, 40), ops, work=work)
    boxes = enumerate(work.erased[:, 0].tolist())
    erased = torch.cat([made[row, 0, y0:y1, x0:x1].flatten() for row, (y0, x0, y1, x1) in boxes])
    assert erased.std() == pytest.approx(1 / 0.229 if before else 1, rel=0.1)
    compare(ops, work, noise(8, 40, 40))
    twice = drawn_work([erasing] * 2, 50, (8, 8))
    assert len(np.unique(twice.noise)) == 100
    assert twice.noise.min() > 0
    assert twice.rows(slice(7, 8)).noise.tolist() == [twice.noise[7].tolist()]
    assert not drawn_work([T.RandomErasing(1)], 5, (8, 8)).noise.any()


@pytest.mark.parametrize("mix", [T.MixUp(alpha=0.4, num_classes=9), T.CutMix(num_classes=9)], ids=repr)
def test_each_image_is_mixed_with_its_partner(mix: T.MixUp | T.CutMix) -> None:
    images, ops = noise(7, 12, 10), [*EVERYTHING, mix]
    work = drawn_work(ops, 7, (12, 10), paired=True)
    own = apply(images, EVERYTHING, work=work.paired(np.arange(7)))
    mixed = apply(images, ops, work=work)
    assert torch.equal(mixed[6], own[6])  # without a partner
    for row in range(6):
        share = float(work.share[row])
        wanted = own[row] * share + own[row ^ 1] * (1 - share)
        y0, x0, y1, x1 = work.patch[row].tolist()
        wanted[:, y0:y1, x0:x1] = own[row ^ 1, :, y0:y1, x0:x1]
        torch.testing.assert_close(mixed[row], wanted, rtol=0, atol=1e-6)
    assert not torch.equal(mixed, own)


NOTHING = no_work(4)
WRONG: dict[str, Callable[[], object]] = {
    "dtype must be uint8, float16, bfloat16, float32 or float64": lambda: check_dtype([], torch.int32),
    "partner must pair neighbouring rows": lambda: NOTHING.paired(np.array([2, 1, 0, 3])),
    "neighbouring rows, each with the other": lambda: no_work(3).paired(np.array([1, 2, 1])),
    "steps must be int8": lambda: replace(NOTHING, steps=np.zeros((4, 0))),
}


@pytest.mark.parametrize("reason", WRONG)
def test_arguments_that_do_not_fit_together(reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        WRONG[reason]()


# --- in a loader


def test_a_batch_is_its_uint8_images_and_what_was_drawn(numbered: FastDataset) -> None:
    plain = FastLoader(numbered, 8, transform=CROP, shuffle=True, seed=9)
    made = FastLoader(numbered, 8, transform=transform(None), **SHARED)
    for loader in (plain, made):
        loader.set_epoch(2)
    for batch, ((images, labels), (finished, same)) in enumerate(zip(plain, made, strict=True)):
        assert torch.equal(labels, same)
        draw = Draw(9, 2, np.arange(8 * batch, 8 * batch + 8))
        work = T.compile(transform(None)).work(draw, np.full(8, 24), np.full(8, 24))
        assert torch.equal(finished, apply(images, OPS, work=work))


@pytest.mark.parametrize("mix", MIXES, ids=repr)
class TestDeterminism:
    def test_workers(self, numbered: FastDataset, mix: T.Transform | None) -> None:
        loaders = [FastLoader(numbered, 8, transform=transform(mix), num_workers=k, **SHARED) for k in (1, 3)]
        first = digest(loaders[0])
        assert first == digest(loaders[1]) != digest(loaders[0])  # then comes another epoch

    def test_ranks(self, numbered: FastDataset, mix: T.Transform | None) -> None:
        """The last batch of five samples is dealt to the ranks and filled up, which tears pairs."""
        ranks = 4
        some = FastDataset(str(numbered.path), indices=range(37))
        alone = FastLoader(some, 16, transform=transform(mix), **SHARED)
        loaders = [
            FastLoader(some, 16 // ranks, transform=transform(mix), rank=r, world_size=ranks, **SHARED)
            for r in range(ranks)
        ]
        for batch, *shares in zip(alone, *loaders, strict=True):
            real = [loader.last_valid for loader in loaders]
            for number, whole in enumerate(batch):  # images, labels
                assert torch.equal(
                    torch.cat([share[number][own] for share, own in zip(shares, real, strict=True)]), whole
                )


class TestMixing:
    @pytest.mark.parametrize("mix", MIXES[1:], ids=repr)
    def test_labels_are_the_shares_of_the_image(self, numbered: FastDataset, mix: T.MixUp | T.CutMix) -> None:
        order = Shuffled().bind(Population(N), 9).indices(0, np.arange(N))
        for batch, (images, labels) in enumerate(FastLoader(numbered, 16, transform=[*CROP, mix], **SHARED)):
            count = len(images)
            positions = np.arange(16 * batch, 16 * batch + count)
            assert (labels.shape, labels.dtype) == ((count, N), torch.float32)
            work = T.compile([*CROP, mix]).work(Draw(9, 0, positions), np.full(count, 24), np.full(count, 24))
            own = work.own if batch < 2 else np.ones(count)  # the short last batch is not mixed
            expected = np.zeros((count, N), np.float32)
            expected[np.arange(count), order[positions]] = own
            expected[np.arange(count), order[positions ^ 1]] += 1 - own
            np.testing.assert_allclose(labels, expected, atol=1e-6)

    def test_dropped_and_replaced_samples(self, place: Path, tmp_path: Path) -> None:
        broken, options = {5, 6, 30}, {"transform": [T.CenterCrop(24), T.MixUp(num_classes=N)], "dtype": torch.float32}
        dataset = FastDataset(place / "broken.lmdb")
        dropping = FastLoader(dataset, 20, on_error="drop", **options)  # type: ignore[arg-type]
        unbroken = FastDataset(with_broken(tmp_path / "whole.lmdb", photographs(N), ()))
        whole = FastLoader(unbroken, 20, **options)  # type: ignore[arg-type]
        for (images, labels), (all_images, all_labels), start in zip(dropping, whole, (0, 20), strict=True):
            kept = [k for k in range(start, start + 20) if k not in broken]
            assert len(images) == len(kept)
            for row, k in enumerate(kept):
                if k ^ 1 in broken:
                    assert labels[row].nonzero().tolist() == [[k]]
                else:
                    assert torch.equal(images[row], all_images[k - start])
                    assert torch.equal(labels[row], all_labels[k - start])
        replacing = FastLoader(dataset, 20, on_error="replace", **options)  # type: ignore[arg-type]
        assert digest(replacing) == digest(FastLoader(dataset, **vars(replacing.options)))


def test_dictionaries_and_lists(numbered: FastDataset) -> None:
    fields, steps = FastDataset(str(numbered.path), fields=["image", "label", "index"]), transform(MIXES[1])
    loader = FastLoader(fields, 8, transform=steps, map_sample=lambda sample, rng: sample, map_batch=dict, **SHARED)
    batch, pair = loader.peek(), FastLoader(numbered, 8, transform=steps, **SHARED).peek()
    assert torch.equal(batch["image"], pair[0])
    assert torch.equal(batch["label"], pair[1])
    ops = [T.ColorJitter(0.4), T.RandomErasing(1.0, value=9)]
    for ragged in ("list", "pad"):
        images, _ = FastLoader(numbered, 6, transform=ops, ragged=ragged, **SHARED).peek()
        assert [9.0 in image for image in images] == [True] * 6


@pytest.mark.parametrize("more", [{}, {"map_sample": lambda sample, rng: sample}], ids=["kernel", "map_sample"])
def test_colours_alone_stay_bytes(numbered: FastDataset, more: dict[str, Any]) -> None:
    """Normalised afterwards, they are what the loader normalises, also after a user's function."""
    colours = [*CROP, T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    plain = FastLoader(numbered, 8, transform=colours, shuffle=True, **more)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "shuffle": True}
    ready = FastLoader(numbered, 8, transform=[*colours, T.Normalize.imagenet()], **options)
    for (levels, _), (values, _) in zip(plain, ready, strict=True):
        assert levels.dtype == torch.uint8
        assert torch.equal(apply(levels, [T.Normalize.imagenet()], dtype=torch.bfloat16), values)


@pytest.mark.gpu
@pytest.mark.parametrize("mix", MIXES, ids=repr)
def test_a_gpu_gets_the_batches_of_the_cpu(numbered: FastDataset, mix: T.Transform | None) -> None:
    """Without RandomSolarize, a jump that any rounding crosses."""
    steps = [step for step in transform(mix) if not isinstance(step, T.RandomSolarize)]
    there, here = (FastLoader(numbered, 8, transform=steps, device=device, **SHARED) for device in ("cuda", "cpu"))
    for (images, labels), (own, same) in zip(there, here, strict=True):
        torch.testing.assert_close(images.cpu(), own, rtol=0, atol=1e-5)
        assert torch.equal(labels.cpu(), same)
