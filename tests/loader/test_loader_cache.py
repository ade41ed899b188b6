"""cache="device": samples, choices and failures of the usual way, decoded once; and JPEGs that the device decodes."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from at_once import at_once
from command_line import Terminal
from device_model import decode_there, lend
from kernel_images import jpeg, photo
from loader_sets import all_labels, digest, photographs, upright, with_markers, workers, write_numbered
from pixel_work import apply
from tqdm import tqdm

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import DecodeError, OptionError, StorageError
from iofast.loader import filling
from iofast.loader.delivery import AHEAD
from iofast.loader.resources import decode_obstacles

N = 40
IMAGES = photographs(N)
CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
COLOURS = [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Normalize.imagenet(), T.RandomErasing(0.5)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part holds a few images, and one is larger."""
    monkeypatch.setattr(filling, "PART", 30_000)


def cached(dataset: FastDataset, batch_size: int = 8, *, there: bool = False, **options: Any) -> FastLoader:
    loader = FastLoader(dataset, batch_size, cache="device", num_workers=2, **options)
    if there:
        lend(loader)
    return loader


def usual(dataset: FastDataset, batch_size: int = 8, **options: Any) -> FastLoader:
    return FastLoader(dataset, batch_size, num_workers=2, **options)


def compare(own: FastLoader, other: FastLoader, epochs: int = 2) -> None:
    """Same labels, masks and failures; images are within a level of Pillow's on both sides."""
    for _ in range(epochs):
        for (images, labels), (expected, theirs) in zip(own, other, strict=True):
            assert torch.equal(labels, theirs)
            assert images.shape == expected.shape
            assert images.is_contiguous(memory_format=own.options.memory_format)
            most = 2 if images.dtype == torch.uint8 else 2.01 / 255
            assert (images.double() - expected.double()).abs().max() <= most
            assert own.last_valid is not None
            assert torch.equal(own.last_valid, other.last_valid)  # type: ignore[arg-type]
    assert own.failures == other.failures


MIXED: dict[str, Any] = {"transform": [*CROP, T.CutMix(num_classes=N)], "dtype": torch.float32}
CASES: dict[str, dict[str, Any]] = {
    "crop": {},
    "resize": {"transform": [T.Resize((20, 28))]},
    "window": {"transform": [T.RandomCrop((24, 20)), T.RandomHorizontalFlip()]},
    "rank": {"rank": 2, "world_size": 3},
    "rank, drop_last": {"rank": 1, "world_size": 3, "drop_last": True},
    "list": {"shuffle": False, "order": [5, 5, 1, 0, 39, 38, 7, 5]},
    "replaced": {**MIXED, "on_error": "replace"},
    "dropped": {**MIXED, "on_error": "drop"},
    "crops outside": {"transform": [T.CenterCrop(60)], "on_error": "drop"},
}


@pytest.mark.parametrize("there", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_as_without_a_cache(place: Path, case: str, there: bool) -> None:
    dataset = FastDataset(place / ("broken.lmdb" if case in ("replaced", "dropped") else "numbered.lmdb"))
    options = {"transform": CROP, "shuffle": True, "seed": 5} | CASES[case]
    layout = torch.channels_last if there else torch.contiguous_format
    own, other = cached(dataset, there=there, memory_format=layout, **options), usual(dataset, **options)
    compare(own, other)
    assert (own.stats.errors > 0) == ("on_error" in CASES[case])


def test_errors_raise_in_their_batch(place: Path) -> None:
    messages = set()
    for make in (cached, usual):
        batches = iter(make(FastDataset(place / "broken.lmdb"), 4, transform=CROP))
        next(batches)
        with pytest.raises(DecodeError, match="00000005: the image is truncated") as caught:
            next(batches)
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize("there", [False, True], ids=["cpu", "device"])
def test_pixel_work_is_that_of_the_usual_way(numbered: FastDataset, there: bool) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5}
    steps = [*CROP, *COLOURS, T.CutMix(num_classes=N)]
    made = cached(numbered, there=there, transform=steps, dtype=torch.float32, **options)
    usually = usual(numbered, transform=steps, dtype=torch.float32, **options)
    plain = cached(numbered, transform=CROP, **options)
    for batch, ((images, labels), (_, theirs), (raw, _)) in enumerate(zip(made, usually, plain, strict=True)):
        assert torch.equal(labels, theirs)
        work = T.compile(steps).work(Draw(5, 0, np.arange(8 * batch, 8 * batch + 8)), np.full(8, 24), np.full(8, 24))
        assert torch.equal(images, apply(raw, T.compile(steps).ops, work=work.paired(np.arange(8) ^ 1)))


def test_without_a_transform(tmp_path: Path, numbered: FastDataset) -> None:
    equal = FastDataset(write_numbered(tmp_path / "equal.lmdb", [jpeg(photo(24, 24, i)) for i in range(N)]))
    assert digest(cached(equal, shuffle=True)) == digest(usual(equal, shuffle=True))
    with pytest.raises(OptionError, match="images of a batch must have one size"):
        next(iter(cached(numbered)))


def test_a_state_serves_either_way(numbered: FastDataset) -> None:
    options: dict[str, Any] = {"transform": CROP, "shuffle": True}
    own, other = cached(numbered, **options), usual(numbered, **options)
    state = own.state_dict() | {"batch": 2}
    for each in (own, other):
        each.load_state_dict(state)
    compare(own, other)
    assert own.state_dict() == other.state_dict()


@pytest.mark.parametrize("there", [False, True], ids=["cpu", "device"])
def test_dictionaries_subsets_and_functions_that_collate(place: Path, there: bool) -> None:
    fields = ["image", "label", "key", "index", "crop"]
    dataset = FastDataset(place / "broken.lmdb", fields=fields, indices=[30, 2, 2, 17, 5, 8, 9])
    collate: dict[str, Any] = {"label": list, "key": tuple, "index": lambda values: torch.tensor(values) + 1}
    options: dict[str, Any] = {"transform": CROP, "collate": collate, "shuffle": True, "on_error": "drop"}
    for batch, expected in zip(cached(dataset, there=there, **options), usual(dataset, **options), strict=True):
        assert batch.keys() == expected.keys() == {*fields, "valid"}
        assert all(batch[name] == expected[name] for name in ("label", "key", "crop"))
        assert all(torch.equal(batch[name], expected[name]) for name in ("index", "valid"))


def test_each_image_is_decoded_once(numbered: FastDataset) -> None:
    loader = cached(numbered, transform=CROP)
    found: list[list[int]] = []
    at_once(*[lambda: found.append(all_labels(loader))] * 2)
    assert [*found, all_labels(loader)] == [list(range(N))] * 3
    stats = loader.stats
    assert stats.stages["decode"].items == stats.stages["read"].items == stats.images == N
    assert stats.stages["read"].bytes == sum(map(len, IMAGES))
    assert stats.decode == "on the CPU, once"
    assert min(stats.stages["read"].work_s, stats.stages["decode"].work_s) > 0


def test_what_does_not_fit(numbered: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = cached(numbered, there=True, transform=CROP)
    device: Any = loader._resources.transfer._streams  # type: ignore[union-attr]
    needed = sum(3 * image.size[0] * image.size[1] for image in map(upright, IMAGES))
    needed += 2048 + 2 * filling.PART + (AHEAD + 2) * 8 * 3 * 24 * 24
    message = r"needs 0\.\d MB on cuda for 40 images and 0\.\d MB to work with, and 0\.\d MB are free: pack sm"
    for device.free_memory in (1000, needed - 1):
        with pytest.raises(OptionError, match=message):
            next(iter(loader))
    device.free_memory = needed
    next(iter(loader))
    monkeypatch.setattr(filling, "free_memory", lambda: 100_000)
    with pytest.raises(OptionError, match="on cpu for 40 images"):
        cached(numbered, transform=CROP).peek()
    loader = cached(numbered, there=True, transform=CROP)  # free, but in pieces, or beyond what the process may take

    def issue(work: Any) -> Any:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(loader._resources.transfer, "issue", issue)
    with pytest.raises(OptionError, match=r"to work with, and 1\.1 GB are free"):
        next(iter(loader))


def test_peek_copies_and_map_batch(numbered: FastDataset) -> None:
    options: dict[str, Any] = {"transform": CROP, "shuffle": True, "map_batch": lambda batch: [*batch, "mine"]}
    loader = cached(numbered, transform=CROP, shuffle=True)
    first = loader.peek()
    assert torch.equal(first[0], next(iter(loader))[0])
    copied = pickle.loads(pickle.dumps(loader))
    copied.set_epoch(0)
    loader.set_epoch(0)
    assert digest(copied) == digest(loader)
    assert next(iter(cached(numbered, **options)))[2] == "mine"


def test_an_interrupted_beginning_is_begun_again(numbered: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = cached(numbered, transform=CROP)
    put, calls = filling._put, []

    def interrupted(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        put(*given)

    monkeypatch.setattr(filling, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    assert workers() == 0
    assert digest(loader) == digest(cached(numbered, transform=CROP))


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_a_bar_on_a_terminal(numbered: FastDataset, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    monkeypatch.setattr(filling, "DELAY_S", 0.0)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(tqdm, "monitor_interval", 7)
    cached(numbered, transform=CROP).peek()
    assert tqdm.monitor_interval == 7, "the user's bars keep their monitor"
    assert ("reading into device memory" in stream.getvalue()) == stream.isatty()
    assert stream.getvalue()[-1:] == ("\r" if stream.isatty() else ""), "it goes when it is done"


# --- JPEGs that the device decodes: pixels, failures, states


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("there") / "packed.lmdb", with_markers(N))


def there(dataset: FastDataset, batch_size: int = 8, *, workers: int = 2, **options: Any) -> FastLoader:
    loader = FastLoader(dataset, batch_size, num_workers=workers, **options)
    lend(loader)
    decode_there(loader)
    return loader


def same(own: FastLoader, other: FastLoader, epochs: int = 1) -> None:
    for _ in range(epochs):
        for (images, labels), (expected, theirs) in zip(own, other, strict=True):
            assert torch.equal(labels, theirs)
            assert images.dtype == expected.dtype
            assert torch.equal(images, expected)
    assert own.failures == other.failures


DECODED: dict[str, dict[str, Any]] = {
    "crop": {"transform": CROP},
    "colours": {"transform": [*CROP, *COLOURS], "dtype": torch.float32},
    "mixed": {"transform": [*CROP, *COLOURS, T.CutMix(num_classes=N)], "dtype": torch.bfloat16},
    "window": {"transform": [T.RandomCrop((24, 20)), T.RandomHorizontalFlip()]},
    "evaluation": {"transform": [T.Resize(32), T.CenterCrop(24)]},
    "gray": {"transform": CROP, "image_mode": "L"},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", DECODED)
def test_batches_are_those_of_the_cpu(packed: Path, case: str, workers: int) -> None:
    dataset = FastDataset(packed)
    options: dict[str, Any] = {"shuffle": True, "seed": 5, **DECODED[case]}
    own = there(dataset, workers=workers, **options)
    same(own, FastLoader(dataset, 8, num_workers=2, **options), 2)
    assert own.stats.ways["device"] > N


@pytest.mark.parametrize("case", ["crop", "mixed", "window", "evaluation"])
def test_jpegs_in_device_memory(packed: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cache="device"` keeps them as they are; pixels, also of those without restart markers, are the CPU's."""
    monkeypatch.setattr(filling, "GAIN", 0)
    dataset = FastDataset(packed)
    options: dict[str, Any] = {"shuffle": True, "seed": 5, **DECODED[case]}
    own = FastLoader(dataset, 8, num_workers=2, cache="device", **options)
    lend(own)
    same(own, FastLoader(dataset, 8, num_workers=2, **options), 2)
    assert own.stats.decode == "on the device, which has the JPEGs"
    resident = own._resident
    assert resident is not None
    assert resident.files is not None
    assert 0.5 < (resident.files["width"] > 0).mean() < 1
    assert resident.data.numel() < 3 * sum(int(size) for size in resident.sizes.prod(axis=1))


@pytest.mark.parametrize("on_error", ["replace", "drop"])
def test_damage_is_the_cpus_to_judge(
    tmp_path: Path, packed: Path, on_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every seventh JPEG has wrong bytes where its markers do not show it."""
    monkeypatch.setattr(filling, "GAIN", 0)
    rng, files = np.random.default_rng(3), []
    for row in range(N):
        data = bytearray(FastDataset(packed).reader.view(row))
        if row % 7 == 1:
            middle = len(data) // 2
            data[middle : middle + 40] = rng.integers(0, 255, 40, np.uint8).tobytes()
        files.append(bytes(data))
    dataset = FastDataset(write_numbered(tmp_path / "damaged.lmdb", files))
    options: dict[str, Any] = {"transform": [*CROP, *COLOURS], "dtype": torch.float32, "on_error": on_error, "seed": 1}
    for count in (0, 2):
        own, other = there(dataset, workers=count, **options), FastLoader(dataset, 8, num_workers=2, **options)
        same(own, other)
        assert own.failures
    cached = FastLoader(dataset, 8, num_workers=2, cache="device", **options)
    lend(cached)
    same(cached, FastLoader(dataset, 8, num_workers=2, **options), 2)
    assert cached._resident is not None
    assert cached._resident.tables is not None, "JPEGs are kept"


def test_the_cpu_decodes_what_a_device_would_mostly_leave_to_it(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the CPU decoded photographs one by one beside the device, at a third of its usual rate."""
    originals = write_numbered(tmp_path / "originals.lmdb", photographs(N))
    raw = tmp_path / "raw.lmdb"
    with open_writer(raw) as writer:
        for number in range(N):
            writer.write({"rgb": bytes(3 * 30 * 40), "cls": number, "json": {"width": 40, "height": 30}})

    def loader(path: Path, decode: Any = "auto") -> FastLoader:
        return FastLoader(FastDataset(path), 8, transform=CROP, decode=decode)

    for path in (originals, raw):
        assert "restart markers" in next(iter(decode_obstacles(loader(path)._spec)))
        assert list(decode_obstacles(loader(path, "cpu")._spec)) == []
    good = loader(packed)
    assert list(decode_obstacles(good._spec)) == []

    def late(*_: Any) -> None:
        raise StorageError("503 slow down")

    monkeypatch.setattr(good.dataset.reader, "payloads", late)  # the batch of an unreadable image has its error
    assert list(decode_obstacles(good._spec)) == []
