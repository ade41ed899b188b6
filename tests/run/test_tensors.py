"""Lazy tensors give what torch gives, to the last digit, whatever is done to them."""

import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import current_thread
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

from iofast.run import deferred, notes, patches
from iofast.run.deferred import Deferred

MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def pil_to_tensor(image: Image.Image) -> torch.Tensor:
    """As torchvision's."""
    return torch.as_tensor(np.array(image, copy=True)).permute(2, 0, 1)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """As torchvision's."""
    return pil_to_tensor(image).contiguous().to(dtype=torch.get_default_dtype()).div(255)


def normalize(tensor: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
    """As torchvision's."""
    if not tensor.is_floating_point():
        raise TypeError(f"a float tensor expected, {tensor.dtype} found")
    tensor = tensor if inplace else tensor.clone()
    mean, std = (torch.as_tensor(each, dtype=tensor.dtype).view(-1, 1, 1) for each in (mean, std))
    return tensor.sub_(mean).div_(std)


_normalize = patches.levelwise(normalize)
MEANS, STDS = [0.485, 0.456, 0.406], (0.229, 0.224, 0.225)


def _erased(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[..., 3:20, 5:11] = torch.arange(3.0)[:, None, None]
    tensor[:, 10:12, 0:30] = 7
    return tensor


def _in_place(tensor: torch.Tensor) -> torch.Tensor:
    alias = tensor.requires_grad_(False)
    tensor.sub_(MEAN).div_(STD)
    return alias


def _written(tensor: torch.Tensor) -> torch.Tensor:
    tensor[0, 3] = 5
    tensor += 1
    return tensor


class Picture(torch.Tensor):
    """As torchvision's classes of tensors."""

    @classmethod
    def wrap(cls, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return tensor.as_subclass(cls)


def _kept_class(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What torchvision's v2 does with a picture."""
    own: Any = tensor.as_subclass(Picture)
    changed = type(own).wrap(change(own.as_subclass(torch.Tensor)), like=own)
    assert isinstance(changed, Picture)
    return changed.as_subclass(torch.Tensor)


LAZY: dict[str, Callable[[torch.Tensor], Any]] = {
    "nothing": lambda t: t,
    "normalise": lambda t: t.clone().sub_(MEAN).div_(STD),
    "normalise by torchvision": lambda t: _normalize(t, MEANS, std=STDS),
    "normalise by torchvision, in place": lambda t: [_normalize(t, MEANS, STDS, True), t][1],
    "normalise by torchvision, with a list of tensors": lambda t: _normalize(t, [*MEAN.flatten()], STDS),
    "normalise by torchvision, with tensors": lambda t: _normalize(t, MEAN, STD),
    "normalise by operators": lambda t: (t - MEAN) / STD,
    "scale": lambda t: 2 * t - 1,
    "scale to bytes": lambda t: t.mul(255),
    "in place": _in_place,
    "erase": _erased,
    "normalise, erase": lambda t: _erased((t - 0.5) / 0.5),
    "dtype": lambda t: t.to(torch.float32).to("cpu").contiguous(memory_format=torch.contiguous_format).float(),
    "double": lambda t: t.to(torch.float64) * 3,
    "half": lambda t: t.to(torch.float16),
    "another class": lambda t: _kept_class(t, lambda t: t * 2),
}
ORDINARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "erase, scale": lambda t: _erased(t) * 2,
    "erase, normalise by torchvision": lambda t: _normalize(_erased(t), MEANS, STDS),
    "write": _written,
    "shape": lambda t: torch.tensor([*t.shape, t.ndim, len(t), t.numel(), t.size(1)]),
    "a negative zero": lambda t: 1 / (t * 0 * -1),
    "row": lambda t: t[0],
    "numpy": lambda t: torch.from_numpy(t.numpy()),
    "array": lambda t: torch.from_numpy(np.asarray(t)),
    "sum": lambda t: t.sum(),
    "tensor times tensor": lambda t: t * t.flip(-1),
    "times a picture": lambda t: t * torch.linspace(0, 1, t.shape[-1]),
    "concatenate": lambda t: torch.cat([t, t]),
    "channels last": lambda t: t[None].contiguous(memory_format=torch.channels_last),
    "list": lambda t: torch.tensor(t[:, :2, :2].tolist()),
    "copy into": lambda t: torch.zeros(t.shape, dtype=t.dtype).copy_(t),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "interpolate": lambda t: torch.nn.functional.interpolate(t[None].float(), (7, 9)),
    "view of bytes": lambda t: t.contiguous().view(torch.uint8),
    "bfloat16": lambda t: t.to(torch.bfloat16),
    "clamp": lambda t: t.clamp(0, 1),
    "comparison": lambda t: t > 0.5,
    "flip of another class": lambda t: _kept_class(t, lambda t: t.flip(-1)),
}


@pytest.fixture(params=["checked", "unchecked"])
def opened(request: Any, photos: dict[str, Path], by_iofast: Callable[[bool], None]) -> Callable[[bool], Image.Image]:
    def open_part(lazy: bool) -> Image.Image:
        by_iofast(lazy)
        notes.notes().counts["checked"] = 0 if request.param == "checked" else 1000
        return Image.open(photos["rgb"]).convert("RGB").crop((7, 9, 207, 150)).resize((64, 48)).transpose(0)

    return open_part


def defer(image: Image.Image, *, floats: bool = True) -> Deferred:
    return deferred.defer(image.__dict__["_pending"], to_tensor if floats else pil_to_tensor, floats=floats)


@pytest.mark.parametrize("name", [*LAZY, *ORDINARY])
def test_operations(name: str, opened: Callable[[bool], Image.Image]) -> None:
    use = (LAZY | ORDINARY)[name]
    expected, result = use(to_tensor(opened(False))), use(defer(opened(True)))
    assert isinstance(result, Deferred) == (name in LAZY)
    if isinstance(result, Deferred):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        result = result.make()
    assert type(result) is torch.Tensor
    assert torch.equal(result, expected)
    assert notes.notes().counts["differences"] == 0


def test_torchvisions_own_errors(opened: Callable[[bool], Image.Image]) -> None:
    with pytest.raises(TypeError, match=r"torch\.uint8 found"):
        _normalize(defer(opened(True), floats=False), MEANS, STDS)
    with pytest.raises(RuntimeError, match="must match"):
        _normalize(defer(opened(True)), [0.1, 0.2], [1, 1])


def test_bytes(opened: Callable[[bool], Image.Image]) -> None:
    expected, lazy = pil_to_tensor(opened(False)), defer(opened(True), floats=False)
    assert lazy.dtype == torch.uint8
    assert torch.equal(lazy.make(), expected)
    assert lazy.make().stride() == expected.stride()
    assert torch.equal((defer(opened(True), floats=False).to(torch.float32) / 255).make(), expected.float() / 255)


def test_copies_and_aliases(opened: Callable[[bool], Image.Image]) -> None:
    expected = pil_to_tensor(opened(False))
    lazy = defer(opened(True), floats=False)
    copies = [lazy.contiguous(), lazy.clone()]
    for copy in copies:
        copy.add_(1)
    assert torch.equal(lazy.make(), expected)
    assert all(torch.equal(copy, expected + 1) for copy in copies)
    floats = defer(opened(True))
    floats.contiguous().float().requires_grad_(False).add_(1)  # the same tensor each time
    assert torch.equal(floats.make(), to_tensor(opened(False)) + 1)


@pytest.mark.parametrize("stack", [default_collate, torch.stack])
def test_a_batch_stays_lazy_and_travels_as_files(stack: Any, opened: Callable[[bool], Image.Image]) -> None:
    expected = torch.stack([_erased(to_tensor(opened(False)) - MEAN)] * 3)
    batch = stack([_erased(defer(opened(True)) - MEAN) for _ in range(3)])
    assert isinstance(batch, Deferred)
    sent = ForkingPickler.dumps(batch)  # type: ignore[attr-defined]
    assert len(sent) < expected.numel() * 4
    arrived = pickle.loads(sent)  # by a consumer that knows nothing of lazy tensors
    assert type(arrived) is torch.Tensor
    assert torch.equal(arrived, expected)
    assert torch.equal(batch.contiguous().float().make(), expected)


def test_a_tensor_travels_with_its_class(opened: Callable[[bool], Image.Image]) -> None:
    sent = ForkingPickler.dumps(defer(opened(True)).as_subclass(Picture))  # type: ignore[attr-defined]
    assert b"arrive" in bytes(sent)
    arrived = pickle.loads(sent)
    assert type(arrived) is Picture
    assert torch.equal(arrived.as_subclass(torch.Tensor), to_tensor(opened(False)))


def test_a_file_has_an_ordinary_tensor(opened: Callable[[bool], Image.Image], tmp_path: Path) -> None:
    torch.save({"pixels": defer(opened(True))}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)["pixels"]
    assert type(saved) is torch.Tensor
    assert torch.equal(saved, to_tensor(opened(False)))
    assert b"iofast" not in pickle.dumps(defer(opened(True)))


def test_what_a_script_keeps_is_decoded_once(opened: Callable[[bool], Image.Image]) -> None:
    kept = defer(opened(True))
    assert isinstance(torch.stack([kept]), Deferred)
    again = torch.stack([kept])
    assert type(again) is torch.Tensor
    assert torch.equal(again[0], to_tensor(opened(False)))


def test_unlike_images_are_stacked_as_pixels(opened: Callable[[bool], Image.Image]) -> None:
    part = to_tensor(opened(False))
    mixed = [defer(opened(True)), part, defer(opened(True)) * 2, defer(opened(True))]
    assert torch.equal(torch.stack(mixed), torch.stack([part, part, part * 2, part]))


def test_a_wrong_tensor_is_replaced_by_the_right_one(
    photos: dict[str, Path], by_iofast: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_iofast(False)
    expected = to_tensor(Image.open(photos["rgb"]).crop((0, 0, 40, 40)))
    by_iofast(True)
    monkeypatch.setattr("iofast.run.parts.Part.flips", lambda part: 3)  # mirrored
    monkeypatch.setattr("iofast.run.shadow.FIRST", 2)
    made = torch.stack([defer(Image.open(photos["rgb"]).crop((0, 0, 40, 40))) for _ in range(4)])
    assert torch.equal(made, expected.expand(4, 3, 40, 40))
    assert notes.notes().counts["differences"] == 1  # Pillow makes all the rest
    monkeypatch.setattr(notes, "_notes", None)
    monkeypatch.setenv(notes.STRICT, "1")
    with pytest.raises(RuntimeError, match=r"rgb\.jpg differs from what Pillow"):
        defer(Image.open(photos["rgb"]).crop((0, 0, 40, 40))).make()


def test_bytes_in_order_are_in_order(opened: Callable[[bool], Image.Image]) -> None:
    ours = defer(opened(True), floats=False).contiguous()
    assert torch.equal(ours.view(-1), pil_to_tensor(opened(False)).contiguous().view(-1))


def test_a_loop_within_a_loop(opened: Callable[[bool], Image.Image]) -> None:
    outer, inner = (cast(Any, object()) for _ in range(2))
    with deferred.lazily(outer):
        with deferred.lazily(inner):
            pass
        assert deferred.loops[current_thread()] is outer
    assert current_thread() not in deferred.loops
