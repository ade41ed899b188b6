"""The library that decodes on a device: its calls, broken images, the order of streams, and how it is found."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from device_decoding import Double, jpeg_of
from device_model import Device
from kernel_images import TURNS, jpeg, photo
from PIL import Image

from iofast.errors import OptionError
from iofast.gpu.decode import DeviceDecoder, Jpeg, lacking, library, open_decoder
from iofast.gpu.decode.decoder import upright
from iofast.gpu.decode.nvimagecodec import KEPT, NvImageCodec, keep_memory

CUDA = torch.device("cuda")


def decoder(fault: Any = None) -> DeviceDecoder:
    return DeviceDecoder(Double(fault), lambda: None)


class TestOneCall:
    def test_regions_and_turns(self) -> None:
        data, box = jpeg(photo(40, 30)), (3, 5, 33, 29)
        whole = Image.open(BytesIO(data))
        images = decoder().decode([jpeg_of(data, box)] * 8, range(1, 9))
        for turn, image in enumerate(images, 1):
            piece = whole.crop(box)
            expected = piece if TURNS[turn] is None else piece.transpose(TURNS[turn])
            assert image is not None
            assert np.array_equal(image.numpy(), np.asarray(expected))

    def test_an_upright_image_is_not_copied(self) -> None:
        image = torch.zeros(2, 3, 3, dtype=torch.uint8)
        assert upright(image, 1) is upright(image, 0) is image

    @pytest.mark.parametrize(
        "fault",
        [lambda n, image: None, lambda n, image: image[:, 1:], lambda n, image: image.int(), lambda n, image: image[0]],
        ids=["none", "another size", "another type", "no image"],
    )
    def test_an_image_that_fails_or_has_another_shape(self, fault: Callable[[int, torch.Tensor], Any]) -> None:
        only_second = decoder(lambda n, image: fault(n, image) if n == 1 else image)
        images = only_second.decode([jpeg_of(jpeg(photo(20, 16)))] * 3, [1, 6, 1])
        assert [image is None for image in images] == [False, True, False]

    @pytest.mark.parametrize("failure", ["raises", "loses an image"])
    def test_a_library_that_fails_is_reported_once(self, failure: str) -> None:
        class Failing(Double):
            def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
                if failure == "raises":
                    raise RuntimeError("no such engine\nwith details")
                return super().decode(jpegs)[1:]

        failing, jpegs = DeviceDecoder(Failing(), lambda: None), [jpeg_of(jpeg(photo(20, 16)))] * 2
        reason = "no such engine" if failure == "raises" else "expected 2 images, found 1"
        with pytest.warns(RuntimeWarning, match=f"the double could not decode a batch of 2 JPEGs.*: {reason}$"):
            assert failing.decode(jpegs, [1, 1]) == [None, None]
        assert failing.decode(jpegs, [1, 1]) == [None, None]

    def test_nothing_to_decode(self) -> None:
        unused = decoder()
        assert unused.decode([], []) == []
        assert unused.backend.calls == 0  # type: ignore[attr-defined]


class TestOrderOfStreams:
    """nvJPEG's hardware engine writes at once, even to memory that the stream still uses."""

    class Hardware:
        """A library that fills memory of the current stream at once."""

        name = "hardware"

        def __init__(self, device: Device) -> None:
            self.device = device

        def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
            made = []
            for one in jpegs:
                image = self.device.empty(torch.empty(one.height, one.width, 3, dtype=torch.uint8))
                image.fill_(int(one.data[0]))
                made.append(image)
            return [*made]

    @staticmethod
    def corrupt(seed: int, *, waits: bool) -> int:
        """Return how many of 12 batches changed before a late pixel operation read them."""
        chance = random.Random(seed)
        device, wrong = Device(chance), []
        device.begin()
        side, hardware = device.side(), TestOrderOfStreams.Hardware(device)

        def idle() -> None:
            mark = device.record(side)
            while not mark.passed:
                device.go_on()

        there = DeviceDecoder(hardware, idle if waits else lambda: None)
        with device.on(side):
            for number in range(12):
                jpegs = [Jpeg(torch.full((1,), number, dtype=torch.uint8), 4, 3, 0, 0, 4, 3)] * 3
                for image in there.decode(jpegs, [1] * 3):
                    assert image is not None

                    def seen(pixels: Any, number: int = number) -> None:
                        if (pixels != number).any():
                            wrong.append(number)

                    device.launch(seen, image)
                del image  # the stream's order protects the memory
        device.go_on(to_the_end=True)
        return len(set(wrong))

    def test_no_library_writes_too_early(self) -> None:
        assert [self.corrupt(seed, waits=True) for seed in range(60)] == [0] * 60

    def test_without_the_wait_the_model_reveals_it(self) -> None:
        assert sum(self.corrupt(seed, waits=False) > 0 for seed in range(60)) > 20


class FakeCodec(ModuleType):
    """The part of nvidia.nvimgcodec 0.8 and 0.9 that is used, with their signatures."""

    class BackendKind:
        HW_GPU_ONLY, GPU_ONLY, HYBRID_CPU_GPU, CPU_ONLY = range(4)

    class ColorSpec:
        SRGB = 1

    class CodeStream:
        def __init__(self, array: Any) -> None:
            assert array.dtype == np.uint8
            self.array = array

    def __init__(self) -> None:
        super().__init__("nvidia.nvimgcodec")
        self.options: dict[str, Any] = {}
        self.calls: list[int] = []

    def Backend(self, kind: int) -> int:  # noqa: N802 (theirs)
        return kind

    def DecodeParams(self, apply_exif_orientation: bool = True, color_spec: int = 1) -> Any:  # noqa: N802 (theirs)
        return SimpleNamespace(exif=apply_exif_orientation, color=color_spec)

    def Decoder(self, **options: Any) -> Any:  # noqa: N802 (theirs)
        self.options |= options

        def decode(sources: list[Any], *, params: Any, cuda_stream: int) -> list[Any]:
            self.options |= {"params": params, "stream": cuda_stream}
            self.calls.append(len(sources))
            return [self.one(source) for source in sources]

        return SimpleNamespace(decode=decode)

    @staticmethod
    def one(source: Any) -> Any:
        try:
            image = Image.open(BytesIO(source.array.tobytes())).convert("RGB")
        except OSError:
            return None
        return torch.from_numpy(np.array(image))


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> FakeCodec:
    module = FakeCodec()
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    return module


class TestNvImageCodec:
    def test_regions_failures_and_options(self, codec: FakeCodec) -> None:
        data = jpeg(photo(40, 30))
        there = DeviceDecoder(NvImageCodec(5), lambda: None)
        broken = jpeg_of(data)._replace(data=torch.zeros(50, dtype=torch.uint8))
        images = there.decode([jpeg_of(data), broken, jpeg_of(data, (2, 4, 20, 28))], [1, 1, 1])
        pixels = np.asarray(Image.open(BytesIO(data)))
        assert np.array_equal(images[0], pixels)  # type: ignore[arg-type]
        assert images[1] is None
        assert np.array_equal(images[2], pixels[4:28, 2:20])  # type: ignore[arg-type]
        asked = codec.options
        assert (asked["device_id"], asked["max_num_cpu_threads"], asked["stream"]) == (3, 5, 77)
        assert asked["options"] == ":fancy_upsampling=1"
        assert asked["backends"] == [0, 1, 2]
        assert asked["params"].exif is False

    def test_large_batches_are_divided(self, codec: FakeCodec) -> None:
        data, waits = jpeg(photo(9, 7)), list[int]()
        there = DeviceDecoder(NvImageCodec(5), lambda: waits.append(len(codec.calls)))
        assert len(there.decode([jpeg_of(data)] * 600, [1] * 600)) == 600
        assert codec.calls == [256, 256, 88]
        assert waits == [0, 1, 2, 3], "the engine's memory may still be in use by the stream"

    def test_the_first_call_is_as_large_as_any(self, codec: FakeCodec) -> None:
        """The engine takes as many images of a batch as it got in its first one."""
        library.checked(lambda: NvImageCodec(5))
        assert codec.calls == [256]

    def test_is_found_and_checked(self, codec: FakeCodec, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "lacking", lambda device: None)
        assert open_decoder(CUDA, 2).backend.name == "nvImageCodec"

    def test_it_is_called_between_two_waits_for_the_stream(
        self, codec: FakeCodec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        stream = SimpleNamespace(cuda_stream=77, synchronize=lambda: calls.append("idle"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)

        def decoded(data: torch.Tensor) -> torch.Tensor:
            calls.append("decode")
            return torch.from_numpy(np.array(Image.open(BytesIO(data.numpy().tobytes())).convert("RGB")))

        monkeypatch.setattr(FakeCodec, "one", staticmethod(lambda source: decoded(torch.from_numpy(source.array))))
        there = library.checked(lambda: NvImageCodec(2))
        calls.clear()
        (image,) = there.decode([jpeg_of(jpeg(photo(20, 16)))], [1])
        assert image is not None
        assert calls == ["idle", "decode", "idle"]

    @pytest.mark.parametrize("wrong", [None, torch.zeros(32, 48, 3, dtype=torch.uint8)], ids=["nothing", "black"])
    def test_a_library_that_fails_on_the_test_image_is_not_used(
        self, codec: FakeCodec, monkeypatch: pytest.MonkeyPatch, wrong: torch.Tensor | None
    ) -> None:
        monkeypatch.setattr(library, "lacking", lambda device: None)
        monkeypatch.setattr(FakeCodec, "one", staticmethod(lambda source: wrong))
        with pytest.raises(OptionError, match=r"nvImageCodec: it (decoded 0 of 256|got the colours)"):
            open_decoder(CUDA, 2)


class TestWhatIsLacking:
    def test_no_gpu(self) -> None:
        assert lacking(torch.device("cpu")) == "it needs an NVIDIA GPU (device='cuda'), found device='cpu'"
        with pytest.raises(OptionError, match="cannot be decoded on the device: it needs an NVIDIA GPU"):
            open_decoder(torch.device("cpu"), 1)

    @pytest.mark.parametrize(
        ("hip", "allocator", "installed", "reason"),
        [
            ("6.2", "native", "nvidia.nvimgcodec", "it needs an NVIDIA GPU (device='cuda'), found ROCm"),
            (None, "cudaMallocAsync", "nvidia.nvimgcodec", "it needs torch's own allocator"),
            (None, "native", "", "nvImageCodec is not installed: pip install 'iofast[cuda12]'"),
            (None, "native", "nvidia.nvimgcodec", "None"),
        ],
    )
    def test_on_a_gpu(
        self, monkeypatch: pytest.MonkeyPatch, hip: str | None, allocator: str, installed: str, reason: str
    ) -> None:
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: allocator)
        monkeypatch.setattr(library, "_installed", lambda module: module == installed)
        assert str(lacking(CUDA)).startswith(reason)

    def test_installed(self) -> None:
        assert library._installed("PIL")
        assert not library._installed("nowhere.at_all")


class TestTheDriversPool:
    """By default it keeps nothing."""

    @pytest.mark.parametrize(
        ("before", "after"), [(0, KEPT), (KEPT - 1, KEPT), (KEPT, KEPT), (1 << 40, 1 << 40), (None, None)]
    )
    def test_keeps_the_memory_of_a_batch(
        self, monkeypatch: pytest.MonkeyPatch, before: int | None, after: int | None
    ) -> None:
        threshold = [before]

        def pool_of(pool: Any, device: int) -> int:
            assert device == 3
            pool._obj.value = 0x5EED
            return 0 if before is not None else 801  # CUDA_ERROR_NOT_SUPPORTED

        def get(pool: Any, attribute: int, value: Any) -> int:
            assert (pool.value, attribute) == (0x5EED, 4)
            value._obj.value = threshold[0]
            return 0

        def put(pool: Any, attribute: int, value: Any) -> int:
            assert (pool.value, attribute) == (0x5EED, 4)
            threshold[0] = value._obj.value
            return 0

        functions = {"cuDeviceGetDefaultMemPool": pool_of, "cuMemPoolGetAttribute": get, "cuMemPoolSetAttribute": put}
        monkeypatch.setattr("iofast.gpu.decode.nvimagecodec.ctypes.CDLL", lambda name: SimpleNamespace(**functions))
        keep_memory(3)
        assert threshold == [after]

    def test_no_driver_and_one_without_pools(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> None:
            raise OSError(name)

        for load in (missing, lambda name: SimpleNamespace()):
            monkeypatch.setattr("iofast.gpu.decode.nvimagecodec.ctypes.CDLL", load)
            keep_memory(0)
