"""What is replaced in the script's libraries, right after it imported them.

Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import sys

from iofast.run import notes

TYPE_CHECKING = False  # typing's own would import typing: this module is part of the start of every process
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any


def _like(real: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function the name and attributes of the one that it replaces."""
    import functools

    return functools.wraps(real)


def pillow(module: Any) -> None:
    """Open JPEGs lazily. The kernel is imported when the first one is opened."""
    from PIL import Image

    real = module.jpeg_factory

    def open_jpeg(fp: Any, filename: Any = None) -> Any:
        try:
            from iofast import kernel

            if kernel.backend != "native":
                raise ImportError("the native kernel is missing")
            from iofast.run import opening

            factory: Any = opening.open_jpeg
        except Exception as error:  # another Python than the launcher's, without NumPy
            notes.leave("JPEGs", f"iofast cannot run here: {error}")
            factory = real
        Image.register_open("JPEG", factory, module._accept)
        return factory(fp, filename)

    Image.register_open("JPEG", open_jpeg, module._accept)


def torchvision(module: ModuleType) -> None:
    """Let `to_tensor` and `pil_to_tensor` return lazy tensors in workers, in every module that has them."""
    for name, floats in (("to_tensor", True), ("pil_to_tensor", False)):
        real = getattr(module, name)
        lazy = _lazy(real, floats=floats)
        for each in list(sys.modules.values()):
            if getattr(each, "__name__", "").startswith("torchvision.") and each.__dict__.get(name) is real:
                setattr(each, name, lazy)


def _lazy(real: Callable[[Any], Any], *, floats: bool) -> Callable[[Any], Any]:
    @_like(real)
    def to_tensor(pic: Any) -> Any:
        if not type(pic).__module__.startswith("iofast."):
            return real(pic)
        from torch.utils.data import get_worker_info

        from iofast.run import deferred, images, shadow

        pending = images.pending_of(pic)
        if pending is None or shadow.failed():
            return real(pic)
        tensor = deferred.defer(pending, real, floats=floats)
        later = get_worker_info() is not None and pending.source.pixels is None
        return tensor if later else tensor.make()

    return to_tensor


def dataloader(module: Any) -> None:
    """Decode what DataLoader's workers send."""
    real = module.DataLoader._get_iterator

    @_like(real)
    def _get_iterator(self: Any) -> Any:
        iterator = real(self)
        if self.num_workers > 0 and type(iterator) is module._MultiProcessingDataLoaderIter:
            try:
                from iofast.run import loaders
            except Exception as error:
                notes.leave("DataLoader", f"iofast cannot run here: {error}")
            else:
                loaders.attach(iterator, self.num_workers)
        return iterator

    module.DataLoader._get_iterator = _get_iterator


def timm(module: Any) -> None:
    """Let timm's collate function for bytes stack lazily."""
    real = module.fast_collate

    @_like(real)
    def fast_collate(batch: Sequence[Any]) -> Any:
        first = batch[0][0]
        if not type(first).__module__.startswith("iofast."):
            return real(batch)
        import torch

        from iofast.run import deferred

        one = torch.zeros((1, 1, 1), dtype=torch.uint8)
        _, targets = real([(one, *sample[1:]) for sample in batch])
        return deferred.stack([sample[0] for sample in batch]), targets

    module.fast_collate = fast_collate


# What is patched after the import of which module.
PATCHES: dict[str, Callable[[Any], None]] = {
    "PIL.JpegImagePlugin": pillow,
    "torchvision.transforms.functional": torchvision,
    "torch.utils.data.dataloader": dataloader,
    "timm.data.loader": timm,
}
