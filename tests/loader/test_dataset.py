"""FastDataset: a map-style dataset like any other, whatever holds its images and whoever asks for them."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from kernel_images import exif, jpeg, photo, save
from loader_sets import CLASSES, eventually, photographs, upright, with_broken, write_folder, write_lmdb
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from iofast import FastDataset, open_writer
from iofast import transforms as T
from iofast.errors import DecodeError, OptionError, SourceError
from iofast.selection import Selection

IMAGES = photographs(30)
LABELS = [i * 3 // 30 for i in range(30)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dataset")


@pytest.fixture(scope="module", params=["lmdb", "folder"])
def path(request: pytest.FixtureRequest, place: Path) -> Path:
    """The same images as an LMDB and as class folders."""
    if request.param == "lmdb":
        return write_lmdb(place / "set.lmdb", IMAGES)
    return write_folder(place / "folder", IMAGES)


@pytest.fixture
def dataset(path: Path) -> FastDataset:
    return FastDataset(path)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """A transform that survives spawn: 2 x 2 pixels that tell images apart."""
    return torch.from_numpy(np.array(image.resize((2, 2), Image.Resampling.BOX)))


def plus_hundred(label: int) -> int:
    return label + 100


def test_what_it_says_of_itself(path: Path, dataset: FastDataset) -> None:
    assert dataset.path == str(path)
    assert len(dataset) == 30
    assert dataset.classes == list(CLASSES)
    assert dataset.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    assert dataset.labels().dtype == np.int64
    assert dataset.labels().tolist() == LABELS
    assert dataset.manifest.count == 30
    assert repr(dataset) == f"FastDataset({dataset.path!r}): 30 samples"


def test_targets_are_a_list_as_torchvisions(dataset: FastDataset) -> None:
    targets = dataset.targets
    assert targets == LABELS
    assert (targets[:2], targets[-1], targets.count(1), targets.index(2)) == ([0, 0], 2, 10, 20)
    assert targets + targets == [*LABELS, *LABELS]
    assert Counter(targets) == {0: 10, 1: 10, 2: 10}
    assert torch.tensor(targets).dtype == torch.int64
    assert np.unique(targets).tolist() == [0, 1, 2]
    assert json.loads(json.dumps(targets)) == LABELS
    assert dataset.targets is targets  # a loop that asks for it each time stays fast
    with pytest.raises(AttributeError):
        dataset.targets = [0] * 30  # type: ignore[misc]


def test_every_image_is_upright_rgb(dataset: FastDataset) -> None:
    for i, data in enumerate(IMAGES):
        image, label = dataset[i]
        expected = upright(data)
        assert (image.mode, image.size) == ("RGB", expected.size)
        difference = np.asarray(image, np.int16) - np.asarray(expected, np.int16)
        assert np.abs(difference).max() <= 1
        assert (type(label), label) == (int, LABELS[i])


def test_all_orientations_are_among_them() -> None:
    found = {Image.open(BytesIO(data)).getexif().get(0x0112, 1) for data in IMAGES}
    assert {1, 2, 3, 4, 5, 6, 7} <= found


def pixels(sample: tuple[Image.Image, int]) -> tuple[bytes, int]:
    return sample[0].tobytes(), sample[1]


def test_indices_as_a_list_has_them(dataset: FastDataset) -> None:
    assert pixels(dataset[-1]) == pixels(dataset[29])
    assert pixels(dataset[-30]) == pixels(dataset[0])
    assert pixels(dataset[np.int64(4)]) == pixels(dataset[torch.tensor(4)]) == pixels(dataset[4])
    for outside in (30, -31, 1 << 40):
        with pytest.raises(IndexError, match=rf"index {outside} is out of range for a dataset of 30"):
            dataset[outside]
    for wrong in (1.5, "1", slice(2), None):
        with pytest.raises(TypeError):
            dataset[wrong]
    assert len(list(iter(dataset))) == 30  # Python's iteration by index ends at the IndexError


def test_getitems(dataset: FastDataset) -> None:
    wanted = [7, 0, 29, 7, -2]
    assert [pixels(sample) for sample in dataset.__getitems__(wanted)] == [pixels(dataset[i]) for i in wanted]
    assert dataset.__getitems__([]) == []
    with pytest.raises(IndexError, match="index 30 "):
        dataset.__getitems__([3, 30])


def test_an_image_belongs_to_whoever_got_it(dataset: FastDataset) -> None:
    first = dataset[3][0]
    before = first.tobytes()
    first.putpixel((0, 0), (1, 2, 3))
    assert dataset[3][0].tobytes() == before


def test_transforms(path: Path) -> None:
    dataset = FastDataset(path, transform=to_tensor, target_transform=plus_hundred)
    image, label = dataset[5]
    assert torch.equal(image, to_tensor(FastDataset(path)[5][0]))
    assert label == 100 + LABELS[5]


@pytest.mark.parametrize("name", ["transform", "target_transform"])
def test_our_transforms_are_for_the_loader(path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=rf"{name} must be callable.*FastLoader"):
        FastDataset(path, **{name: T.train(32)})


FORMATS = [("JPEG", "jpg", ("RGB", "L")), ("PNG", "png", ("RGB", "L", "RGBA", "P")), ("WEBP", "webp", ("RGB", "RGBA"))]


@pytest.mark.parametrize(
    ("name", "field", "mode"), [(name, field, mode) for name, field, all in FORMATS for mode in all]
)
def test_formats(tmp_path: Path, name: str, field: str, mode: str) -> None:
    data = save(Image.fromarray(photo(50, 37, 3)).convert(mode), name)
    packed = FastDataset(write_lmdb(tmp_path / "set.lmdb", [data], field))
    plain = FastDataset(write_folder(tmp_path / "folder", [data], field))
    expected = np.asarray(upright(data), np.int16)
    for dataset in (packed, plain):
        found, label = dataset[0]
        assert np.abs(np.asarray(found, np.int16) - expected).max() <= (name == "JPEG")
        assert label == 0


def test_orientation_of_a_png_and_a_folder(tmp_path: Path) -> None:
    data = save(Image.fromarray(photo(50, 37, 3)), "PNG", exif=exif(6))
    for dataset in (
        FastDataset(write_lmdb(tmp_path / "a.lmdb", [data], "png")),
        FastDataset(write_folder(tmp_path / "a", [data], "png")),
    ):
        image = dataset[0][0]
        assert image.size == (37, 50)
        assert image.tobytes() == upright(data).tobytes()


def test_without_labels_or_classes(tmp_path: Path) -> None:
    with open_writer(tmp_path / "flat.lmdb") as writer:
        writer.write({"jpg": IMAGES[0]})
    dataset = FastDataset(tmp_path / "flat.lmdb")
    assert (dataset[0][1], dataset.classes, dataset.class_to_idx) == (-1, [], {})
    assert dataset.targets == [-1]


class TestSplits:
    SIZES = (("train", 12), ("val", 5), ("test", 3))

    @pytest.fixture
    def packed(self, tmp_path: Path) -> Path:
        with open_writer(tmp_path / "splits.lmdb") as writer:
            for number in range(20):
                split = "train" if number < 12 else "val" if number < 17 else "test"
                writer.write({"jpg": IMAGES[number], "cls": number}, split=split)
        return tmp_path / "splits.lmdb"

    def test_each(self, packed: Path) -> None:
        labels = {name: FastDataset(packed, split=name).targets for name in ("train", "val", "test", "all")}
        assert labels["train"] == list(range(12))
        assert labels["val"] == list(range(12, 17))
        assert labels["test"] == list(range(17, 20))
        assert labels["all"] == list(range(20))
        val = FastDataset(packed, split="val")
        assert [label for _, label in val] == labels["val"]
        assert val[0][0].tobytes() == FastDataset(packed, split="all")[12][0].tobytes()
        with pytest.raises(IndexError):
            val[5]
        assert val[-5][1] == 12

    def test_it_has_to_be_told(self, packed: Path) -> None:
        with pytest.raises(OptionError, match=r"splits\.lmdb has the splits .*train.*with split="):
            FastDataset(packed)
        with pytest.raises(OptionError, match=r"no split 'trian', only .*train"):
            FastDataset(packed, split="trian")

    def test_one_split_needs_no_name(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "one.lmdb", split="train") as writer:
            writer.write({"jpg": IMAGES[0]})
        assert len(FastDataset(tmp_path / "one.lmdb")) == len(FastDataset(tmp_path / "one.lmdb", split="train")) == 1

    def test_of_folders(self, tmp_path: Path) -> None:
        for name, count in (("train", 6), ("val", 3)):
            write_folder(tmp_path / "nested" / name, IMAGES[:count])
        with pytest.raises(OptionError, match="has the splits"):
            FastDataset(tmp_path / "nested")
        val = FastDataset(tmp_path / "nested", split="val")
        assert val.targets == [0, 1, 2]
        assert val[2][0].tobytes() == FastDataset(tmp_path / "nested", split="all")[8][0].tobytes()

    def test_ranges_apart_from_each_other_are_one_split(self, packed: Path) -> None:
        """What appending to a packed set leaves; here the ranges are set by hand."""
        dataset = FastDataset(packed, split="all")
        dataset._selection = Selection([(2, 5), (9, 10), (15, 20)])
        assert dataset.targets == [2, 3, 4, 9, 15, 16, 17, 18, 19]
        assert [dataset[i][1] for i in (0, 3, 4, -1)] == [2, 9, 15, 19]

    def test_an_empty_set(self, packed: Path) -> None:
        dataset = FastDataset(packed, split="all")
        dataset._selection = Selection([])
        assert len(dataset) == 0
        assert dataset.targets == []
        assert dataset.__getitems__([]) == []
        with pytest.raises(IndexError):
            dataset[0]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        FastDataset(tmp_path / "none.lmdb")


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    dataset = FastDataset(with_broken(tmp_path / "broken.lmdb", IMAGES[:3], [1]))
    assert dataset[0][1] == 0
    with pytest.raises(DecodeError, match=r"broken\.lmdb: 0+1: .*truncated"):
        dataset[1]
    with pytest.raises(DecodeError, match=r"broken\.lmdb: 0+1: "):
        dataset.__getitems__([0, 1, 2])
    assert dataset[2][1] == 2


def test_broken_images_leave_nothing_behind(tmp_path: Path) -> None:
    """Two blocks each, before: 18 MB in an epoch of 100,000 images that are all damaged."""
    dataset = FastDataset(with_broken(tmp_path / "broken.lmdb", IMAGES[:3], [1]))

    def fail(times: int) -> int:
        for _ in range(times):
            with contextlib.suppress(DecodeError):
                dataset[1]
        gc.collect()
        return sys.getallocatedblocks()

    before = fail(50)
    assert fail(500) - before < 250


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", IMAGES[:6])
    (folder / "bee" / "00002.jpg").write_bytes(b"\xff\xd8\xffnot a photograph")
    dataset = FastDataset(folder)
    assert dataset[3][1] == 1
    with pytest.raises(DecodeError, match=r"bee/00002\.jpg: .*corrupt"):
        dataset[2]


def test_pickle(path: Path) -> None:
    dataset = FastDataset(path, transform=to_tensor)
    first = dataset[3]  # with everything open
    again = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 20_000  # not the images
    assert torch.equal(again[3][0], first[0])
    assert again.targets == LABELS


@pytest.mark.parametrize("used", [False, True])
def test_a_pool_of_processes(path: Path, used: bool) -> None:
    dataset = FastDataset(path, transform=to_tensor)
    first = sample(dataset, 2) if used else None
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = [pool.apply_async(sample, (dataset, i)).get(60) for i in (2, 11)]
    assert found == [sample(dataset, i) for i in (2, 11)]
    assert first in (None, found[0])


def sample(dataset: FastDataset, index: int) -> tuple[list[object], int]:
    image, label = dataset[index]
    return image.tolist(), label


def test_an_open_dataset_survives_fork(dataset: FastDataset) -> None:
    expected = pixels(dataset[4])
    pid = os.fork()
    if not pid:
        ok = False
        try:
            ok = pixels(dataset[4]) == expected
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pixels(dataset[4]) == expected


@pytest.mark.parametrize("count", [0, 1, 2])
def test_torch_dataloader(path: Path, count: int) -> None:
    dataset = FastDataset(path, transform=to_tensor)
    loader = DataLoader(dataset, 8, num_workers=count, multiprocessing_context="fork" if count else None)
    images, labels = zip(*loader, strict=True)
    assert [len(each) for each in labels] == [8, 8, 8, 6]
    assert torch.cat(labels).tolist() == LABELS
    assert torch.equal(torch.cat(images), torch.stack([image for image, _ in dataset]))


def test_torch_dataloader_spawns(place: Path) -> None:
    """Both kinds in one dataset, for a fresh interpreter takes seconds to import torch."""
    packed = FastDataset(write_lmdb(place / "spawn.lmdb", IMAGES[:16]), transform=to_tensor)
    plain = FastDataset(write_folder(place / "spawn", IMAGES[16:]), transform=to_tensor)
    both = ConcatDataset([packed, plain])
    (images, labels), *more = DataLoader(both, 30, num_workers=1, multiprocessing_context="spawn")
    assert labels.tolist() == [*packed.targets, *plain.targets]
    assert torch.equal(images, torch.stack([both[i][0] for i in range(30)]))
    assert more == []


def test_torch_dataloader_shuffles_and_names_what_is_broken(tmp_path: Path) -> None:
    dataset = FastDataset(with_broken(tmp_path / "broken.lmdb", IMAGES, [17]), transform=to_tensor)
    batches = iter(DataLoader(dataset, batch_size=4, shuffle=True, num_workers=1))
    with pytest.raises(DecodeError, match=r"broken\.lmdb: 0+17: "):
        list(batches)
    batches._shutdown_workers()  # left to the garbage collector, it waits five seconds in whatever test that runs in


def test_threads(dataset: FastDataset) -> None:
    expected = [pixels(dataset[i]) for i in range(30)]
    wrong: list[int] = []

    def read(first: int) -> None:
        wrong.extend(i for k in range(60) if pixels(dataset[i := (first + k * 7) % 30]) != expected[i])

    run_all([lambda first=first: read(first) for first in range(4)])
    assert wrong == []


def run_all(functions: list[Callable[[], None]]) -> None:
    workers = [threading.Thread(target=function) for function in functions]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert eventually(lambda: not any(worker.is_alive() for worker in workers))


def test_each_thread_has_its_own_scratch_memory(dataset: FastDataset) -> None:
    mine = dataset._context()
    theirs: list[object] = []
    run_all([lambda: theirs.append(dataset._context())])
    assert theirs[0] is not mine
    assert dataset._context() is mine


def test_a_large_photograph_is_decoded_in_full(tmp_path: Path) -> None:
    data = jpeg(photo(900, 600, 1), quality=95)
    image = FastDataset(write_lmdb(tmp_path / "large.lmdb", [data]))[0][0]
    assert image.size == (900, 600)
    assert np.abs(np.asarray(image, np.int16) - np.asarray(upright(data), np.int16)).max() <= 1
