"""One broken image does not end a run: it is named, counted, replaced or left out; so is one beyond the limits."""

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from altered_index import alter
from kernel_images import as_far_as_it_goes, claims, exif, jpeg, photo, save, with_size
from loader_sets import photographs, with_broken, write_folder
from PIL import Image

from iofast import FastDataset, FastLoader, open_reader, open_writer, pack
from iofast import transforms as T
from iofast.checking import verify
from iofast.errors import DecodeError, ErrorBudgetError, OptionError
from iofast.sheet import contact_sheet

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


@pytest.mark.parametrize("action", ["replace", "drop"])
def test_the_others_are_those_of_a_run_without_failures(broken: FastDataset, whole: FastDataset, action: Any) -> None:
    """Positions do not shift."""
    options: dict[str, Any] = {"transform": T.train(24), "dtype": torch.float32}
    replaced = 0
    for (images, labels), (all_images, all_labels) in zip(
        make(broken, on_error=action, **options), make(whole, **options), strict=True
    ):
        good = torch.tensor([label not in BROKEN for label in all_labels.tolist()])
        found = good if action == "replace" else torch.ones(len(labels), dtype=torch.bool)
        assert len(found) == len(labels)
        assert torch.equal(labels[found], all_labels[good])
        assert torch.equal(images[found], all_images[good])
        assert not set(labels.tolist()) & set(BROKEN)
        replaced += int((~found).sum())
    assert replaced == (len(BROKEN) if action == "replace" else 0)


def test_a_replacement_may_fail_as_well(tmp_path: Path) -> None:
    mostly = FastDataset(with_broken(tmp_path / "mostly.lmdb", IMAGES, range(10, N)))
    loader = make(mostly, on_error="replace", shuffle=False, batch_size=N)
    (_, labels), *_ = loader
    assert set(labels.tolist()) <= set(range(10))
    assert loader.stats.errors == len(loader.failures) > N
    assert {failure.attempt for failure in loader.failures} > {0, 1, 2}


class TestAlways:
    def test_a_batch_of_failures_raises(self, tmp_path: Path) -> None:
        dataset = FastDataset(with_broken(tmp_path / "rotten.lmdb", IMAGES, range(8, 16)))
        for action in ("replace", "drop"):
            with pytest.raises(DecodeError, match=r"rotten.lmdb: 00000008: .* \(every sample of this batch failed\)"):
                list(make(dataset, on_error=action, shuffle=False))

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
        assert [(len(list(loader)), loader.stats.errors) for loader in ranks] == [(1, 1), *[(1, 0)] * 6]

    def test_a_file_that_is_gone(self, tmp_path: Path) -> None:
        dataset = FastDataset(write_folder(tmp_path / "folder", IMAGES))
        victim = dataset.reader.name(5)
        Path(victim).unlink()
        loader = make(dataset, on_error="drop", shuffle=False)
        assert sum(len(labels) for _, labels in loader) == N - 1
        assert (loader.failures[0].name, "cannot be read" in loader.failures[0].reason) == (victim, True)


class TestTruncated:
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


LIMIT, MOST = "the image is larger than the limit on ", "the limit is 268435456; pack has --max-pixels)"
FILES = {
    "a.png": (claims(b"\2", side=100_000), f"{LIMIT}pixels (100000x100000 pixels, {MOST}"),
    "b.png": (
        claims(b"\6"),
        f"{LIMIT}memory (16000x16000 pixels of RGBA take up to 2304 MB, the limit is 2147 MB; pack has --max-memory)",
    ),
    "c.jpg": (with_size(jpeg(photo(64, 48)), 65_500, 65_500), f"{LIMIT}pixels (65500x65500 pixels, {MOST}"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    for name, (data, _) in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "small.jpg").write_bytes(jpeg(photo(64, 48)))
    (folder / "thin.png").write_bytes(save(Image.new("RGB", (60_000, 1)), "PNG"))
    return folder


@pytest.mark.parametrize(
    ("transform", "more"), [([], {}), ([T.Resize(256)], {"thin.png": "15360000x256 pixels after resizing"})]
)
def test_images_beyond_the_limits(folder: Path, transform: list[T.Transform], more: dict[str, str]) -> None:
    wanted = {name: reason for name, (_, reason) in FILES.items()} | {
        own: f"{LIMIT}pixels ({why}, {MOST}" for own, why in more.items()
    }
    loader = FastLoader(FastDataset(folder), 5, transform=transform, ragged="list", on_error="drop", dtype=torch.uint8)
    list(loader)
    assert {Path(failure.name).name: failure.reason for failure in loader.failures} == wanted


def test_other_readers_have_the_same_words(folder: Path, tmp_path: Path) -> None:
    dataset, problems = FastDataset(folder), verify(folder).problems
    for number, (name, (_, reason)) in enumerate(FILES.items()):
        with pytest.raises(DecodeError) as caught:
            dataset[number]
        assert str(caught.value).endswith(reason)
        assert [reason in problem.reason for problem in problems if problem.where.endswith(name)] == [True]
    assert [dataset[number][0].size for number in (3, 4)] == [(64, 48), (60_000, 1)]
    pack(folder, tmp_path / "x.tar", resize=64, mode="long", max_errors=3)
    failed = [json.loads(line) for line in (tmp_path / "x.tar.errors.jsonl").read_text().splitlines()]
    assert {each["path"] for each in failed} == set(FILES)
    for each in failed:
        assert each["reason"].partition(" (")[0] == FILES[each["path"]][1].partition(" (")[0]
    with open_reader(folder) as reader:
        assert contact_sheet(reader, range(5)).width > 5


def test_an_index_that_says_so(tmp_path: Path) -> None:
    """And a view of a record without an image."""
    with open_writer(tmp_path / "x.tar") as writer:
        writer.write({"jpg": jpeg(photo(64, 48))})
        writer.write({"rgb": bytes(12), "json": {"width": 2, "height": 2}})
        writer.write({"txt": "no image"})
    for row in range(2):
        alter(tmp_path / "x.tar", row, {"width": 65_535, "height": 65_535})
    dataset = FastDataset(tmp_path / "x.tar")
    for number in range(2):
        with pytest.raises(DecodeError, match=r"differs from the index|corrupt"):
            dataset[number]
    with open_reader(tmp_path / "x.tar") as reader:
        assert contact_sheet(reader, [0, 1, 2]).width > 5
    assert {problem.index for problem in verify(tmp_path / "x.tar").problems} == {0, 1}
