"""The transfer on a GPU: equal batches, streams, churn, captured graphs."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from at_once import at_once
from loader_sets import eventually, photographs, workers, write_numbered

from iofast import FastDataset, FastLoader
from iofast import transforms as T

pytestmark = pytest.mark.gpu

N = 40
CROP = [T.RandomResizedCrop(64), T.RandomHorizontalFlip()]
COLOURS = [*CROP, T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Normalize.imagenet()]
ERASE = T.RandomErasing(0.5, value="random")
MANY = [*CROP, T.RandAugment(), T.GaussianBlur(9), T.RandomPosterize(4), *COLOURS[2:], ERASE]
SHARED: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": 2}
LATE = 20_000_000  # cycles: ten milliseconds of a GPU


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("gpu") / "numbered.lmdb", photographs(N)))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    assert eventually(lambda: workers() == 0)


CACHED = {"dtype": torch.float32, "cache": "device"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"transform": CROP, "memory_format": torch.channels_last}, 0),
        ({"transform": CROP, "memory_format": torch.contiguous_format}, 0),
        ({"dtype": torch.float32, "ragged": "list"}, 1e-5),
        ({"dtype": torch.float32, "ragged": "pad"}, 1e-5),
        ({"transform": CROP, **CACHED}, 1e-4),
        ({"transform": COLOURS, **CACHED}, 1e-4),
    ],
)
def test_batches_are_those_of_the_cpu(dataset: FastDataset, options: dict[str, Any], error: float) -> None:
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        there = FastLoader(dataset, 8, device=device, **options, **SHARED)
        for _ in range(2):
            here = FastLoader(dataset, 8, **options, **SHARED)
            here.set_epoch(there.epoch)
            for (images, labels), (expected, theirs) in zip(there, here, strict=True):
                assert torch.equal(labels.cpu(), theirs)
                for image, wanted in zip(images, expected, strict=True):
                    assert image.is_cuda
                    assert image.stride() == wanted.stride()
                    torch.testing.assert_close(image.cpu(), wanted, rtol=0, atol=error)
        assert "cache" not in options or there.stats.stages["decode"].items == N


def test_two_hundred_batches_amid_churn(dataset: FastDataset) -> None:
    """The consumer's stream is far behind; the host drops each batch at once and allocates memory of its size."""
    options: dict[str, Any] = {"transform": CROP, **SHARED}
    expected = {}
    for epoch, loader in ((epoch, FastLoader(dataset, 4, **options)) for epoch in range(20)):
        loader.set_epoch(epoch)
        expected[epoch] = [int(images.long().sum()) for images, _ in loader]
    there, stream = FastLoader(dataset, 4, device="cuda", **options), torch.cuda.Stream()
    found = []
    with torch.cuda.stream(stream):
        for _ in range(20):
            sums = []
            for images, _ in there:
                torch.cuda._sleep(LATE // 40)
                sums.append(images.long().sum())
                size = images.numel()
                del images
                for _ in range(3):
                    torch.full((size,), 255, dtype=torch.uint8, device="cuda")
            found.append(sums)
    stream.synchronize()
    assert [[int(each) for each in sums] for sums in found] == [expected[epoch] for epoch in range(20)]


def test_a_captured_graph_is_fed(dataset: FastDataset) -> None:
    """The loader's threads work during a capture, whose default mode ends it at any thread's unsafe call."""

    def slow(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        time.sleep(0.02)
        return sample

    options: dict[str, Any] = {"transform": CROP, "dtype": torch.float32, **SHARED}
    weight = torch.linspace(0, 1, 3 * 64 * 64, device="cuda").view(3, 64, 64)
    there, here = FastLoader(dataset, 4, device="cuda", map_sample=slow, **options), FastLoader(dataset, 4, **options)
    static = torch.zeros((4, 3, 64, 64), device="cuda").contiguous(memory_format=torch.channels_last)
    for _ in range(2):  # a capture needs warm kernels
        out = (static * weight).sum((1, 2, 3))
    torch.cuda.empty_cache()  # batches then need the driver's memory
    graph, batches = torch.cuda.CUDAGraph(), iter(there)
    first, _ = next(batches)
    with torch.cuda.graph(graph):
        out = (static * weight).sum((1, 2, 3))
        time.sleep(0.3)  # batches are made during the capture
    results = []
    for images in [first, *(images for images, _ in batches)]:
        static.copy_(images)
        graph.replay()
        results.append(out.clone())
    for result, (images, _) in zip(results, here, strict=True):
        torch.testing.assert_close(result.cpu(), (images * weight.cpu()).sum((1, 2, 3)), rtol=1e-4, atol=1e-2)


def test_two_loaders_on_two_streams_in_two_threads(dataset: FastDataset) -> None:
    options: dict[str, Any] = {"transform": CROP, **SHARED}
    expected = [int(images.long().sum()) for images, _ in FastLoader(dataset, 4, **options)]
    found: list[list[int]] = []

    def consume() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            sums = []
            for images, _ in FastLoader(dataset, 4, device="cuda", **options):
                torch.cuda._sleep(LATE // 40)
                sums.append(images.long().sum())
            found.append([int(each) for each in sums])

    at_once(consume, consume)
    assert found == [expected, expected]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs")
def test_cuda_means_the_consumers_current_device(dataset: FastDataset) -> None:
    with torch.cuda.device(1):
        images, labels = next(iter(FastLoader(dataset, 4, device="cuda", transform=CROP, **SHARED)))
    assert images.device.index == labels.device.index == 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("transform", [COLOURS, MANY], ids=["colours", "many"])
@pytest.mark.parametrize("options", [{}, {"cache": "device"}], ids=["decoded", "cached"])
def test_nothing_synchronises(dataset: FastDataset, options: dict[str, Any], transform: list[Any]) -> None:
    """Neither the consumer's thread nor the one ahead of it waits for the device."""
    shared: dict[str, Any] = {"transform": transform, "dtype": torch.bfloat16, **SHARED, **options}
    loader = FastLoader(dataset, 8, device="cuda", **shared)
    list(loader)  # compiles, and fills the cache
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(list(loader)) == 5
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_is_bounded_where_the_host_runs_ahead(dataset: FastDataset) -> None:
    """The host launches fifty steps of 10 ms at once."""
    loader = FastLoader(dataset, 8, device="cuda", transform=[T.RandomResizedCrop(512)], **SHARED)
    list(loader)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    for _ in range(10):
        for images, _ in loader:
            torch.cuda._sleep(LATE)
            del images, _
    batch = 8 * 3 * 512 * 512
    # blocks that wait for a stream count as active, not as allocated
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before <= 9 * batch


def test_the_copies_are_timed_by_the_device(dataset: FastDataset) -> None:
    loader = FastLoader(dataset, 8, device="cuda", transform=CROP, decode="cpu", **SHARED)
    list(loader)
    torch.cuda.synchronize()
    transfer = loader.stats.stages["transfer"]
    assert transfer.bytes == N * (3 * 64 * 64 + 8)
    assert 0 < transfer.work_s < 0.1
    assert loader.stats.meter.transfer is not None


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch's own, for its pool of memory
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning")  # of torch 2.11's compiler
def test_a_compiled_step_is_fed(dataset: FastDataset) -> None:
    options: dict[str, Any] = {"transform": CROP, "dtype": torch.float32, **SHARED}

    @torch.compile(mode="reduce-overhead")
    def step(images: torch.Tensor) -> torch.Tensor:
        return (images * 2).mean((1, 2, 3))

    there, here = FastLoader(dataset, 4, device="cuda", **options), FastLoader(dataset, 4, **options)
    results = [step(images).clone() for images, _ in there]
    for result, (images, _) in zip(results, here, strict=True):
        torch.testing.assert_close(result.cpu(), (images * 2).mean((1, 2, 3)), rtol=1e-4, atol=1e-5)
