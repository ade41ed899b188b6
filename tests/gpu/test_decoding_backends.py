"""Libraries that decode on a device: called in a safe order, one broken image at a time, and found or not found."""

from __future__ import annotations

import random
import sys
import weakref
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
from iofast.gpu.decode import DeviceDecoder, Jpeg, lacking, libraries, open_decoder
from iofast.gpu.decode.decoder import upright
from iofast.gpu.decode.nvimagecodec import NvImageCodec
from iofast.gpu.decode.torch_libraries import AllOrNothing, torchcodec, torchvision

CUDA = torch.device("cuda")


def decoder(fault: Any = None, regions: bool = False) -> DeviceDecoder:
    return DeviceDecoder(Double(fault, regions), lambda: None)


class TestOneCall:
    @pytest.mark.parametrize("regions", [False, True])
    def test_regions_and_turns(self, regions: bool) -> None:
        data, box = jpeg(photo(40, 30)), (3, 5, 33, 29)
        whole = Image.open(BytesIO(data))
        images = decoder(regions=regions).decode([jpeg_of(data, box)] * 8, range(1, 9))
        for turn, image in enumerate(images, 1):
            piece = whole.crop(box)
            expected = piece if TURNS[turn] is None else piece.transpose(TURNS[turn])
            assert image is not None
            assert np.array_equal(image.numpy(), np.asarray(expected))

    def test_upright_leaves_what_is_upright(self) -> None:
        image = torch.zeros(2, 3, 3, dtype=torch.uint8)
        assert upright(image, 1) is image
        assert upright(image, 0) is image

    @pytest.mark.parametrize(
        "fault",
        [lambda n, image: None, lambda n, image: image[:, 1:], lambda n, image: image.int(), lambda n, image: image[0]],
        ids=["none", "another size", "another type", "no image"],
    )
    def test_an_image_that_is_none(self, fault: Callable[[int, torch.Tensor], Any]) -> None:
        only_second = decoder(lambda n, image: fault(n, image) if n == 1 else image)
        images = only_second.decode([jpeg_of(jpeg(photo(20, 16)))] * 3, [1, 6, 1])
        assert [image is None for image in images] == [False, True, False]

    def test_a_library_that_fails_says_so_once(self) -> None:
        def broken(number: int, image: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no such engine\nwith details")

        there = decoder(broken)
        with pytest.warns(RuntimeWarning, match="the double could not decode a batch of 2 JPEGs.*: no such engine$"):
            assert there.decode([jpeg_of(jpeg(photo(20, 16)))] * 2, [1, 1]) == [None, None]
        assert there.decode([jpeg_of(jpeg(photo(20, 16)))] * 2, [1, 1]) == [None, None]

    def test_a_library_that_loses_images(self) -> None:
        class Loses(Double):
            def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
                return super().decode(jpegs)[1:]

        there = DeviceDecoder(Loses(), lambda: None)
        with pytest.warns(RuntimeWarning, match="it gave 1 images"):
            assert there.decode([jpeg_of(jpeg(photo(20, 16)))] * 2, [1, 1]) == [None, None]

    def test_nothing_to_decode(self) -> None:
        there = decoder()
        assert there.decode([], []) == []
        assert there.backend.calls == 0  # type: ignore[attr-defined]


class TestOneBrokenImageOfMany:
    @staticmethod
    def function(calls: list[int]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        def decode(jpegs: list[torch.Tensor]) -> list[torch.Tensor]:
            calls.append(len(jpegs))
            if any(int(data[0]) == 0 for data in jpegs):
                raise RuntimeError("one of them is broken")
            return [torch.full((3, 4, 5), int(data[0]), dtype=torch.uint8) for data in jpegs]

        return decode

    @staticmethod
    def jpegs(values: list[int]) -> list[Jpeg]:
        return [Jpeg(torch.tensor([value], dtype=torch.uint8), 5, 4, 0, 0, 5, 4) for value in values]

    def test_the_others_come(self) -> None:
        calls: list[int] = []
        values = [1 + number % 200 for number in range(256)]
        values[77] = 0
        images = AllOrNothing("some", self.function(calls)).decode(self.jpegs(values))
        assert [0 if image is None else int(image[0, 0, 0]) for image in images] == values
        assert images[0] is not None
        assert images[0].shape == (4, 5, 3)
        assert len(calls) == 17

    def test_none_of_them(self) -> None:
        backend = AllOrNothing("some", self.function([]))
        with pytest.raises(RuntimeError, match="one of them is broken"):
            backend.decode(self.jpegs([0, 0, 0]))
        assert backend.decode(self.jpegs([0])) == [None]  # of one alone it is not known


class TestOrderOfStreams:
    """nvJPEG's hardware engine writes when it is called, whatever the stream has still to do with that memory."""

    class Hardware:
        """Takes memory of the current stream, as an allocator gives it, and fills it at once."""

        name, ordered, regions = "hardware", False, True

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
    def corrupt(seed: int, *, ordered: bool) -> int:
        """Batches that a late pixel operation found changed, of 12: its input was freed, and decoded into."""
        chance = random.Random(seed)
        device, wrong = Device(chance), []
        device.begin()
        side, hardware = device.side(), TestOrderOfStreams.Hardware(device)
        hardware.ordered = ordered

        def idle() -> None:
            mark = device.record(side)
            while not mark.passed:
                device.go_on()

        there = DeviceDecoder(hardware, idle if not ordered else lambda: None)
        with device.on(side):
            for number in range(12):
                jpegs = [Jpeg(torch.full((1,), number, dtype=torch.uint8), 4, 3, 0, 0, 4, 3)] * 3
                for image in there.decode(jpegs, [1] * 3):
                    assert image is not None

                    def seen(pixels: Any, number: int = number) -> None:
                        if (pixels != number).any():
                            wrong.append(number)

                    device.launch(seen, image)
                del image  # its memory may be given away: torch counts on the order of the stream
        device.go_on(to_the_end=True)
        return len(set(wrong))

    def test_nothing_is_written_before_its_time(self) -> None:
        assert [self.corrupt(seed, ordered=False) for seed in range(60)] == [0] * 60

    def test_the_naive_sequence_is_found_out(self) -> None:
        """The same, but for the wait: as for a library of which somebody thinks that it keeps the stream's order."""
        assert sum(self.corrupt(seed, ordered=True) > 0 for seed in range(60)) > 20


class FakeCodec(ModuleType):
    """What is called of nvidia.nvimgcodec 0.8 and 0.9, with their signatures."""

    class BackendKind:
        HW_GPU_ONLY, GPU_ONLY, HYBRID_CPU_GPU, CPU_ONLY = range(4)

    class LoadHintPolicy:
        FIXED = 2
        ADAPTIVE_MINIMIZE_IDLE_TIME = 3

    class ColorSpec:
        SRGB = 1

    class Region:
        def __init__(self, start_y: int, start_x: int, end_y: int, end_x: int) -> None:
            self.box = (start_x, start_y, end_x, end_y)

    class CodeStream:
        def __init__(self, array: Any, region: Any = None, parent: Any = None) -> None:
            assert array.dtype == np.uint8
            self.array, self.region = array, region
            self.parent = None if parent is None else weakref.ref(parent)

        def get_sub_code_stream(self, image_idx: int = 0, region: Any = None) -> Any:
            return FakeCodec.CodeStream(self.array, region, self)

    def __init__(self) -> None:
        super().__init__("nvidia.nvimgcodec")
        self.asked: dict[str, Any] = {}

    def Backend(self, kind: int, load_hint: float = 1.0, load_hint_policy: int = 2) -> tuple[int, float, int]:  # noqa: N802 (theirs)
        return kind, load_hint, load_hint_policy

    def DecodeParams(self, apply_exif_orientation: bool = True, color_spec: int = 1) -> Any:  # noqa: N802 (theirs)
        return SimpleNamespace(exif=apply_exif_orientation, color=color_spec)

    def Decoder(self, **options: Any) -> Any:  # noqa: N802 (theirs)
        self.asked |= options

        def decode(sources: list[Any], *, params: Any, cuda_stream: int) -> list[Any]:
            self.asked |= {"params": params, "stream": cuda_stream}
            return [self.one(source) for source in sources]

        return SimpleNamespace(decode=decode)

    @staticmethod
    def one(source: Any) -> Any:
        assert source.parent is None or source.parent() is not None, "a region of a stream that is gone"
        try:
            image = Image.open(BytesIO(source.array.tobytes())).convert("RGB")
        except OSError:
            return None
        image = image.crop(source.region.box) if source.region else image
        return torch.from_numpy(np.array(image))


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> FakeCodec:
    module = FakeCodec()
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    return module


class TestNvImageCodec:
    @pytest.mark.parametrize("adaptive", [False, True])
    def test_regions_failures_and_what_it_is_told(self, codec: FakeCodec, adaptive: bool) -> None:
        data = jpeg(photo(40, 30))
        there = DeviceDecoder(NvImageCodec(5, adaptive=adaptive), lambda: None)
        broken = jpeg_of(data)._replace(data=torch.zeros(50, dtype=torch.uint8))
        images = there.decode([jpeg_of(data), broken, jpeg_of(data, (2, 4, 20, 28))], [1, 1, 1])
        pixels = np.asarray(Image.open(BytesIO(data)))
        assert np.array_equal(images[0], pixels)  # type: ignore[arg-type]
        assert images[1] is None
        assert np.array_equal(images[2], pixels[4:28, 2:20])  # type: ignore[arg-type]
        asked = codec.asked
        assert (asked["device_id"], asked["max_num_cpu_threads"], asked["stream"]) == (3, 5, 77)
        assert asked["options"] == ":fancy_upsampling=1"
        assert asked["backends"] == [(0, 0.5, 3 if adaptive else 2), (1, 1.0, 2), (2, 1.0, 2)]
        assert asked["params"].exif is False

    def test_found_and_checked(self, codec: FakeCodec, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(libraries, "lacking", lambda device: None)
        assert open_decoder(CUDA, 2).backend.name == "nvImageCodec"

    @pytest.mark.parametrize("library", ["nvImageCodec", "TorchCodec", "torchvision"])
    def test_each_is_called_when_its_stream_is_idle_and_followed_by_idleness(
        self, codec: FakeCodec, monkeypatch: pytest.MonkeyPatch, library: str
    ) -> None:
        """None of the three may be taken for one that keeps to the order of streams: two have corrupted memory."""
        told: list[str] = []
        stream = SimpleNamespace(cuda_stream=77, synchronize=lambda: told.append("idle"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)

        def decoded(data: torch.Tensor) -> torch.Tensor:
            told.append("decode")
            return torch.from_numpy(np.array(Image.open(BytesIO(data.numpy().tobytes())).convert("RGB")))

        monkeypatch.setattr(FakeCodec, "one", staticmethod(lambda source: decoded(torch.from_numpy(source.array))))
        made = NvImageCodec(2, adaptive=False) if library == "nvImageCodec" else None
        listed = AllOrNothing(library, lambda jpegs: [decoded(data).permute(2, 0, 1) for data in jpegs])
        there = libraries.checked(lambda: made or listed)
        told.clear()
        (image,) = there.decode([jpeg_of(jpeg(photo(20, 16)))], [1])
        assert image is not None
        assert told == ["idle", "decode", "idle"]

    @pytest.mark.parametrize("wrong", [None, torch.zeros(32, 48, 3, dtype=torch.uint8)], ids=["nothing", "black"])
    def test_one_that_gets_a_small_picture_wrong_is_not_taken(
        self, codec: FakeCodec, monkeypatch: pytest.MonkeyPatch, wrong: torch.Tensor | None
    ) -> None:
        monkeypatch.setattr(libraries, "lacking", lambda device: None)
        monkeypatch.setattr(FakeCodec, "one", staticmethod(lambda source: wrong))
        monkeypatch.setitem(sys.modules, "torchcodec", None)
        monkeypatch.setitem(sys.modules, "torchvision", None)
        with pytest.raises(
            OptionError, match=r"nvImageCodec: it (did not decode|got the colours).*TorchCodec: .*torchv"
        ):
            open_decoder(CUDA, 2)


class TestTorchLibraries:
    def test_torchcodec(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def decode_jpeg(source: list[torch.Tensor], *, mode: str, device: torch.device) -> list[torch.Tensor]:
            asked.update(mode=mode, device=device)
            return [torch.zeros(3, 4, 5, dtype=torch.uint8) for _ in source]

        package, module = ModuleType("torchcodec"), ModuleType("torchcodec.decoders")
        monkeypatch.setitem(sys.modules, "torchcodec", package)
        monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
        with pytest.raises(ImportError, match=r"older than 0\.16"):
            torchcodec(CUDA)
        module.decode_jpeg = decode_jpeg  # type: ignore[attr-defined]
        (image,) = torchcodec(CUDA).decode(TestOneBrokenImageOfMany.jpegs([1]))
        assert image is not None
        assert image.shape == (4, 5, 3)
        assert asked == {"mode": "RGB", "device": CUDA}

    def test_torchvision(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def decode_jpeg(data: list[torch.Tensor], mode: str, device: torch.device) -> list[torch.Tensor]:
            asked.update(mode=mode, device=device)
            return [torch.zeros(3, 4, 5, dtype=torch.uint8) for _ in data]

        package, module = ModuleType("torchvision"), ModuleType("torchvision.io")
        module.decode_jpeg, module.ImageReadMode = decode_jpeg, SimpleNamespace(RGB="rgb")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torchvision", package)
        monkeypatch.setitem(sys.modules, "torchvision.io", module)
        (image,) = torchvision(CUDA).decode(TestOneBrokenImageOfMany.jpegs([1]))
        assert image is not None
        assert image.shape == (4, 5, 3)
        assert asked == {"mode": "rgb", "device": CUDA}


class TestWhatIsLacking:
    def test_no_gpu(self) -> None:
        assert lacking(torch.device("cpu")) == "it needs an NVIDIA GPU (device='cuda'), found device='cpu'"
        with pytest.raises(OptionError, match="cannot be decoded on the device: it needs an NVIDIA GPU"):
            open_decoder(torch.device("cpu"), 1)

    def test_rocm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "hip", "6.2")
        assert lacking(CUDA) == "it needs an NVIDIA GPU (device='cuda'), found ROCm"

    def test_no_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        monkeypatch.setattr(libraries, "_installed", lambda module: False)
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        assert lacking(CUDA) == "no library for it is installed: pip install 'iofast[cuda12]' for nvImageCodec"
        monkeypatch.setattr(libraries, "_installed", lambda module: module == "torchvision")
        assert lacking(CUDA) is None

    def test_an_allocator_that_hands_over_in_the_streams_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
        assert "torch's own allocator" in str(lacking(CUDA))

    def test_installed(self) -> None:
        assert libraries._installed("PIL")
        assert not libraries._installed("nowhere.at_all")
