"""FastDataset as a map-style dataset: any container, threads, processes, torch's DataLoader."""

import contextlib
import gc
import inspect
import json
import pickle
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from at_once import at_once, in_child
from loader_sets import CLASSES, photographs, upright, write_folder
from PIL import Image
from torch.utils.data import DataLoader

from iofast import FastDataset, open_writer
from iofast.errors import DecodeError, OptionError, SourceError

N = 40
IMAGES = photographs(N)
LABELS = [i * 3 // N for i in range(N)]


@pytest.fixture(scope="module", params=["set.lmdb", "folder"])
def path(request: pytest.FixtureRequest, place: Path) -> Path:
    """The same images as an LMDB and as class folders."""
    path: Path = place / request.param
    return path


@pytest.fixture
def dataset(path: Path) -> FastDataset:
    return FastDataset(path)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """A transform that survives spawn: 2 x 2 pixels that tell images apart."""
    return torch.from_numpy(np.array(image.resize((2, 2), Image.Resampling.BOX)))


def test_attributes(path: Path, dataset: FastDataset) -> None:
    assert dataset.path == str(path)
    assert len(dataset) == dataset.manifest.count == N
    assert dataset.classes == list(CLASSES)
    assert dataset.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    assert (dataset.labels().dtype, dataset.labels().tolist()) == (np.int64, LABELS)
    assert repr(dataset) == f"FastDataset({dataset.path!r}): {N} samples"
    assert json.loads(json.dumps(dataset.targets)) == LABELS  # as torchvision's
    for name in ("targets", "classes", "class_to_idx"):
        assert getattr(dataset, name) is getattr(dataset, name)  # so that a loop may use the property
    with pytest.raises(AttributeError):
        dataset.targets = [0] * N  # type: ignore[misc]


def test_a_mistyped_option_names_the_nearest(path: Path) -> None:
    class Subset(FastDataset):
        def __init__(self, path: Path, **options: object) -> None:
            super().__init__(path, **options)  # type: ignore[call-overload]

    with pytest.raises(OptionError, match=r"^splitt is not an option of Subset: did you mean split\?$"):
        Subset(path, splitt="train")
    with pytest.raises(OptionError, match=r"^root is not an option of FastDataset: expected path, split, transform, "):
        FastDataset(root=path)  # type: ignore[call-overload]
    assert list(inspect.signature(FastDataset).parameters)[:2] == ["path", "split"]


def test_every_image_is_upright_rgb(dataset: FastDataset) -> None:
    for i, data in enumerate(IMAGES):
        image, label = dataset[i]
        expected = upright(data)
        assert (image.mode, image.size) == ("RGB", expected.size)
        difference = np.asarray(image, np.int16) - np.asarray(expected, np.int16)
        assert np.abs(difference).max() <= 1
        assert (type(label), label) == (int, LABELS[i])


def pixels(sample: tuple[Image.Image, int]) -> tuple[bytes, int]:
    return sample[0].tobytes(), sample[1]


def test_indices_as_a_list_has_them(dataset: FastDataset) -> None:
    assert pixels(dataset[-1]) == pixels(dataset[N - 1])
    assert pixels(dataset[-N]) == pixels(dataset[0])
    assert pixels(dataset[np.int64(4)]) == pixels(dataset[torch.tensor(4)]) == pixels(dataset[4])
    for outside in (N, -N - 1, 1 << 40):
        with pytest.raises(IndexError, match=rf"index {outside} is out of range for a dataset of {N}"):
            dataset[outside]
    for wrong in (1.5, "1", slice(2), None):
        with pytest.raises(TypeError):
            dataset[wrong]
    assert len(list(iter(dataset))) == N  # Python's iteration by index ends at the IndexError


def test_getitems(dataset: FastDataset) -> None:
    wanted = [7, 0, 29, 7, -2]
    assert [pixels(sample) for sample in dataset.__getitems__(wanted)] == [pixels(dataset[i]) for i in wanted]
    with pytest.raises(IndexError, match=f"index {N} "):
        dataset.__getitems__([3, N])
    with pytest.raises(TypeError):
        dataset.__getitems__([0.7])  # type: ignore[list-item]


def test_without_labels_or_classes(tmp_path: Path) -> None:
    with open_writer(tmp_path / "flat.lmdb") as writer:
        writer.write({"jpg": IMAGES[0]})
    dataset = FastDataset(tmp_path / "flat.lmdb")
    assert (dataset[0][1], dataset.classes, dataset.class_to_idx, dataset.targets) == (-1, [], {}, [-1])
    with pytest.raises(SourceError, match="does not exist"):
        FastDataset(tmp_path / "none.lmdb")


def test_a_broken_image_is_named(place: Path, tmp_path: Path) -> None:
    dataset = FastDataset(place / "broken.lmdb")
    for read in (lambda: dataset[5], lambda: dataset.__getitems__([0, 5, 2])):
        with pytest.raises(DecodeError, match=r"broken\.lmdb: 0+5: .*truncated"):
            read()
    assert dataset[7][1] == 7
    folder = write_folder(tmp_path / "folder", IMAGES[:6])
    (folder / "bee" / "00002.jpg").write_bytes(b"\xff\xd8\xffnot a photograph")
    with pytest.raises(DecodeError, match=r"bee/00002\.jpg: .*corrupt"):
        FastDataset(folder)[2]


def test_broken_images_leave_nothing_behind(place: Path) -> None:
    """A leak of two blocks each was 18 MB in an epoch of 100,000 damaged images."""
    dataset = FastDataset(place / "broken.lmdb")

    def fail(times: int) -> int:
        for _ in range(times):
            with contextlib.suppress(DecodeError):
                dataset[5]
        gc.collect()
        return sys.getallocatedblocks()

    before = fail(50)
    assert fail(500) - before < 250


def test_pickle(path: Path) -> None:
    dataset = FastDataset(path, transform=to_tensor)
    first = dataset[3]  # with everything open
    again = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 20_000  # not the images
    assert torch.equal(again[3][0], first[0])
    assert again.targets == LABELS


def test_an_open_dataset_survives_fork(dataset: FastDataset) -> None:
    expected = pixels(dataset[4])
    assert in_child(lambda: pixels(dataset[4]) == expected) == 0
    assert pixels(dataset[4]) == expected


@pytest.mark.parametrize("count", [0, 2])
def test_torch_dataloader(path: Path, count: int) -> None:
    dataset = FastDataset(path, transform=to_tensor)
    loader = DataLoader(dataset, 16, num_workers=count, multiprocessing_context="fork" if count else None)
    images, labels = zip(*loader, strict=True)
    assert [len(each) for each in labels] == [16, 16, 8]
    assert torch.cat(labels).tolist() == LABELS
    assert torch.equal(torch.cat(images), torch.stack([image for image, _ in dataset]))


def test_threads(dataset: FastDataset) -> None:
    """Each has a kernel context of its own."""
    expected = [pixels(dataset[i]) for i in range(N)]
    wrong, contexts = list[int](), {id(dataset._context()): dataset._context()}

    def read(first: int) -> None:
        wrong.extend(i for k in range(60) if pixels(dataset[i := (first + k * 7) % N]) != expected[i])
        contexts[id(dataset._context())] = dataset._context()

    at_once(*(partial(read, first) for first in range(4)))
    assert (wrong, len(contexts)) == ([], 5)
