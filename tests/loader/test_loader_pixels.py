"""FastLoader with transforms drawn per sample: the same pixels on any ranks and workers, and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loader_sets import digest, photographs, with_broken
from pixel_work import apply

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.choices import Draw
from iofast.loader.assemble import partners
from iofast.order import Population, Shuffled

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


def test_a_batch_is_its_uint8_images_and_what_was_drawn(numbered: FastDataset) -> None:
    plain = FastLoader(numbered, 8, transform=CROP, shuffle=True, seed=9)
    made = FastLoader(numbered, 8, transform=transform(None), **SHARED)
    for loader in (plain, made):
        loader.set_epoch(2)
    for batch, ((images, labels), (finished, same)) in enumerate(zip(plain, made, strict=True)):
        assert torch.equal(labels, same)
        draw = Draw(9, 2, np.arange(8 * batch, 8 * batch + 8))
        work = T.compile(transform(None)).work(draw, np.full(8, 24), np.full(8, 24))
        wanted = apply(images, OPS, work=work)
        assert torch.equal(finished, wanted)


@pytest.mark.parametrize("mix", MIXES, ids=repr)
class TestDeterminism:
    def test_workers_and_dtypes(self, numbered: FastDataset, mix: T.Transform | None) -> None:
        loaders = [FastLoader(numbered, 8, transform=transform(mix), num_workers=k, **SHARED) for k in (1, 3)]
        first = digest(loaders[0])
        assert first == digest(loaders[1]) != digest(loaders[0])  # then comes another epoch
        half, whole = (
            next(iter(FastLoader(numbered, 8, transform=transform(mix), **SHARED | {"dtype": dtype})))[0]
            for dtype in (torch.float16, torch.float32)
        )
        assert torch.equal(half, whole.half())

    @pytest.mark.parametrize("ranks", [2, 4])
    def test_ranks(self, numbered: FastDataset, mix: T.Transform | None, ranks: int) -> None:
        """The last batch of five samples is dealt to the ranks and filled up, which tears pairs."""
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
        broken, mix = {5, 6, 30}, [T.CenterCrop(24), T.MixUp(num_classes=N)]
        dataset, floats = FastDataset(place / "broken.lmdb"), {"dtype": torch.float32}
        dropping = FastLoader(dataset, 20, transform=mix, on_error="drop", **floats)
        unbroken = FastDataset(with_broken(tmp_path / "whole.lmdb", photographs(N), ()))
        whole = FastLoader(unbroken, 20, transform=mix, **floats)
        for (images, labels), (all_images, all_labels), start in zip(dropping, whole, (0, 20), strict=True):
            kept = [k for k in range(start, start + 20) if k not in broken]
            assert len(images) == len(kept)
            for row, k in enumerate(kept):
                if k ^ 1 in broken:
                    assert labels[row].nonzero().tolist() == [[k]]
                else:
                    assert torch.equal(images[row], all_images[k - start])
                    assert torch.equal(labels[row], all_labels[k - start])
        replacing = FastLoader(dataset, 20, transform=[mix[0], OPS[0], mix[1]], on_error="replace", **floats)
        assert digest(replacing) == digest(FastLoader(dataset, **vars(replacing.options)))

    @given(st.integers(0, 6).map(lambda k: 2 * k), st.lists(st.booleans(), min_size=1, max_size=16), st.integers(0, 30))
    def test_partners(self, start: int, kept: list[bool], full: int) -> None:
        positions = np.array([start + row for row, keep in enumerate(kept) if keep], np.int64)
        found = partners(positions, full)
        for row, position in enumerate(positions.tolist()):
            there = np.flatnonzero(positions == position ^ 1).tolist()
            wanted = there[0] if there and max(position, position ^ 1) < full else row
            assert found[row] == wanted


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


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_images_of_different_sizes(numbered: FastDataset, ragged: Any) -> None:
    ops = [T.ColorJitter(0.4), T.RandomErasing(1.0, value=9)]
    batch, _ = next(iter(FastLoader(numbered, 6, transform=ops, ragged=ragged, **SHARED)))
    assert [9.0 in image for image in batch] == [True] * 6


def test_dictionary_batches_and_functions(numbered: FastDataset) -> None:
    fields = FastDataset(str(numbered.path), fields=["image", "label", "index"])
    loader = FastLoader(
        fields, 8, transform=transform(MIXES[1]), map_sample=lambda sample, rng: sample, map_batch=dict, **SHARED
    )
    batch = next(iter(loader))
    pair = next(iter(FastLoader(numbered, 8, transform=transform(MIXES[1]), **SHARED)))
    assert torch.equal(batch["image"], pair[0])
    assert torch.equal(batch["label"], pair[1])


@pytest.mark.gpu
@pytest.mark.parametrize("mix", MIXES, ids=repr)
def test_a_gpu_gets_the_batches_of_the_cpu(numbered: FastDataset, mix: T.Transform | None) -> None:
    """Without RandomSolarize, a jump that any rounding crosses."""
    steps = [step for step in transform(mix) if not isinstance(step, T.RandomSolarize)]
    there, here = (FastLoader(numbered, 8, transform=steps, device=device, **SHARED) for device in ("cuda", "cpu"))
    for (images, labels), (own, same) in zip(there, here, strict=True):
        torch.testing.assert_close(images.cpu(), own, rtol=0, atol=1e-5)
        assert torch.equal(labels.cpu(), same)
