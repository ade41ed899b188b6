"""One broken image does not end a run: it is named, counted, replaced or left out."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from kernel_images import as_far_as_it_goes, exif, jpeg, photo
from loader_sets import photographs, with_broken, write_folder

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import DecodeError, ErrorBudgetError, OptionError

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
N, BATCH, BROKEN = 40, 8, (3, 4, 17, 30)
IMAGES = photographs(N)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(with_broken(tmp_path_factory.mktemp("errors") / "broken.lmdb", IMAGES, BROKEN))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(with_broken(tmp_path_factory.mktemp("errors") / "whole.lmdb", IMAGES, []))


def make(dataset: FastDataset, **options: Any) -> FastLoader:
    given = {"batch_size": BATCH, "shuffle": True, "seed": 3, "transform": CROP, "num_workers": 2} | options
    return FastLoader(dataset, **given)


class TestDrop:
    @pytest.mark.parametrize(
        "options", [{}, {"transform": T.train(24), "dtype": torch.float32}], ids=["bytes", "floats"]
    )
    def test_the_others_are_those_of_a_run_without_failures(
        self, broken: FastDataset, whole: FastDataset, options: dict[str, Any]
    ) -> None:
        dropping = make(broken, on_error="drop", **options)
        for (images, labels), (all_images, all_labels) in zip(dropping, make(whole, **options), strict=True):
            rows = [row for row, label in enumerate(all_labels.tolist()) if label not in BROKEN]
            assert labels.tolist() == all_labels[rows].tolist()
            assert torch.equal(images, all_images[rows])

    @pytest.mark.parametrize("batch", [1, 3, 13])
    def test_no_batch_is_empty(self, broken: FastDataset, batch: int) -> None:
        """Ranks have equally many batches, so a slice that loses all of its few samples gets another one."""
        loader = make(broken, on_error="drop", shuffle=False, batch_size=batch)
        sizes = [len(images) for images, _ in loader]
        assert len(sizes) == len(loader)
        assert min(sizes) > 0
        assert all(label not in BROKEN for _, labels in loader for label in labels.tolist())
        first = [failure.position for failure in loader.failures if failure.attempt == 0 and failure.epoch == 0]
        assert first == list(BROKEN)


class TestReplace:
    def test_positions_do_not_shift(self, broken: FastDataset, whole: FastDataset) -> None:
        replaced = 0
        for (images, labels), (all_images, all_labels) in zip(
            make(broken, on_error="replace"), make(whole), strict=True
        ):
            assert images.shape == all_images.shape
            for row, label in enumerate(all_labels.tolist()):
                if label in BROKEN:
                    replaced += 1
                    assert int(labels[row]) not in BROKEN
                else:
                    assert int(labels[row]) == label
                    assert torch.equal(images[row], all_images[row])
        assert replaced == len(BROKEN)

    def test_replacements_are_drawn_and_not_random(self, broken: FastDataset) -> None:
        def run(**options: Any) -> list[tuple[list[int], bytes]]:
            return [(y.tolist(), x.numpy().tobytes()) for x, y in make(broken, on_error="replace", **options)]

        assert run() == run(num_workers=1, prefetch=1)
        assert run() != run(seed=4)

    def test_a_replacement_may_fail_as_well(self, tmp_path: Path) -> None:
        mostly = FastDataset(with_broken(tmp_path / "mostly.lmdb", IMAGES, range(10, N)))
        loader = make(mostly, on_error="replace", shuffle=False, batch_size=N)
        (_, labels), *_ = loader
        assert set(labels.tolist()) <= set(range(10))
        assert loader.stats.errors == len(loader.failures) > N
        assert {failure.attempt for failure in loader.failures} > {0, 1, 2}


class TestAlways:
    @pytest.mark.parametrize("action", ["replace", "drop"])
    def test_a_batch_of_failures_raises(self, tmp_path: Path, action: Any) -> None:
        dataset = FastDataset(with_broken(tmp_path / "rotten.lmdb", IMAGES, range(8, 16)))
        loader = make(dataset, on_error=action, shuffle=False)
        with pytest.raises(DecodeError, match=r"rotten.lmdb: 00000008: .* \(every sample of this batch failed\)"):
            list(loader)

    @pytest.mark.parametrize("action", ["replace", "drop"])
    def test_each_is_counted_once_and_named(
        self, broken: FastDataset, action: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        loader = make(broken, on_error=action, shuffle=False)
        with caplog.at_level(logging.WARNING, "iofast"):
            for _ in loader:
                pass
        first = [failure for failure in loader.failures if failure.attempt == 0]
        assert [failure.position for failure in first] == list(BROKEN)
        assert all(f"{failure.position:08d}" in failure.name and failure.reason for failure in first)
        assert loader.stats.errors == len(loader.failures) == len(caplog.records)
        assert "broken.lmdb: 00000003: " in caplog.text

    def test_the_budget(self, broken: FastDataset) -> None:
        loader = make(broken, on_error="drop", max_errors=4)
        for _ in range(3):  # it is that of an epoch
            assert len(list(loader)) == 5
        assert loader.stats.errors == 12
        loader = make(broken, on_error="drop", max_errors=3, shuffle=False, prefetch=5)
        next(iter(loader))
        assert [failure.position for failure in loader.failures] == [3, 4]  # not those of batches made ahead
        for _ in range(3):  # resuming the epoch meets the same batch, and the budget that is used up
            loader.set_epoch(0)
            with pytest.raises(ErrorBudgetError, match=r"4 samples of epoch 0 .* at most max_errors=3; .*00000030"):
                list(loader)
            assert loader.stats.errors == 3
            assert loader.state_dict()["batch"] == 3

    @pytest.mark.parametrize("action", ["replace", "drop"])
    @pytest.mark.parametrize("ranks", [1, 2, 4, 8])
    def test_ranks_together_give_what_one_gives(self, broken: FastDataset, action: Any, ranks: int) -> None:
        """Numbers 3 and 4 may be all that a rank has of a batch. What then fills it up is not valid."""

        def valid(rank: int, ranks: int) -> tuple[list[int], int]:
            options: dict[str, Any] = {"batch_size": 8 // ranks, "rank": rank, "world_size": ranks}
            loader = make(broken, on_error=action, shuffle=False, order=[0, 1, 3, 4, 5, 6, 7, 8], **options)
            found = [(labels, loader.last_valid) for _, labels in loader]
            assert all(mask is not None and 0 < len(labels) == len(mask) for labels, mask in found)
            return torch.cat([labels[mask] for labels, mask in found]).tolist(), loader.stats.errors

        shares = [valid(rank, ranks) for rank in range(ranks)]
        together = [label for labels, _ in shares for label in labels]
        assert together == valid(0, 1)[0]
        assert not set(together) & set(BROKEN)
        assert len(together) == (8 if action == "replace" else 6)
        assert sum(errors for _, errors in shares) >= 2

    def test_what_fills_up_is_not_counted(self, tmp_path: Path) -> None:
        dataset = FastDataset(with_broken(tmp_path / "first.lmdb", IMAGES[:20], [0]))
        ranks = [make(dataset, on_error="replace", shuffle=False, batch_size=3, rank=r, world_size=7) for r in range(7)]
        for loader in ranks:
            list(loader)
        assert [loader.stats.errors for loader in ranks] == [1, 0, 0, 0, 0, 0, 0]

    def test_a_file_that_is_gone(self, tmp_path: Path) -> None:
        dataset = FastDataset(write_folder(tmp_path / "folder", IMAGES))
        victim = dataset.reader.name(5)
        Path(victim).unlink()
        loader = make(dataset, on_error="drop", shuffle=False)
        assert sum(len(labels) for _, labels in loader) == N - 1
        assert (loader.failures[0].name, "cannot be read" in loader.failures[0].reason) == (victim, True)


class TestTruncated:
    def test_strict_or_accepted(self, tmp_path: Path) -> None:
        """A packed file that ended early before it was packed: its checksum is that of the truncated bytes."""
        data = jpeg(photo(256, 256, 1))
        dataset = FastDataset(with_broken(tmp_path / "cut.lmdb", [data] * 3, [1]))
        whole = [T.Resize((256, 256))]
        with pytest.raises(DecodeError, match="truncated"):
            list(make(dataset, batch_size=3, transform=whole))
        (images, _), *_ = make(dataset, batch_size=3, shuffle=False, transform=whole, truncated="accept")
        assert not torch.equal(images[0], images[1])
        assert torch.equal(images[0], images[2])
        assert torch.equal(images[0, :, :8], images[1, :, :8])  # what came before the cut

    @pytest.mark.parametrize("option", [None, "strict", "accept"])
    def test_as_pillow_decodes_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: Literal["strict", "accept"] | None
    ) -> None:
        """The dataset's option holds in it, and in a loader that says nothing else."""
        data = jpeg(photo(250, 190, 1), exif=exif(6))[:-4000]
        (tmp_path / "cut.jpg").write_bytes(data)
        expected = as_far_as_it_goes(data, monkeypatch)
        for dataset in (FastDataset(tmp_path, truncated="accept"), FastDataset(tmp_path)):
            accepts = (option or dataset.truncated) == "accept"
            with nullcontext() if accepts else pytest.raises(DecodeError, match="truncated"):
                ((images, _),) = FastLoader(dataset, transform=[], truncated=option)
                assert np.abs(images[0].permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1
            with nullcontext() if dataset.truncated == "accept" else pytest.raises(DecodeError, match="truncated"):
                assert np.abs(np.asarray(dataset[0][0], int) - expected).max() <= 1
        with pytest.raises(OptionError, match="truncated must be 'strict' or 'accept', found True"):
            FastDataset(tmp_path, truncated=True)  # type: ignore[arg-type]
