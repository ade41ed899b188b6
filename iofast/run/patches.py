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


def enhancers(module: Any) -> None:
    """Let the classes of ImageEnhance note their operation on a lazy image."""
    for name in ("Brightness", "Contrast", "Color", "Sharpness"):
        _enhancer(name, getattr(module, name))


def _enhancer(name: str, kind: Any) -> None:
    begin, real = kind.__init__, kind.enhance

    @_like(begin)
    def starting(self: Any, image: Any) -> None:
        if _is_lazy(image):
            self.image, self.__dict__["_before"] = image, image.copy()
        else:
            begin(self, image)

    def missing(self: Any, attribute: str) -> Any:  # Pillow's own attributes, made at their first use
        image, before = self.__dict__.get("image"), self.__dict__.pop("_before", None)
        if before is None:
            raise AttributeError(f"{name!r} object has no attribute {attribute!r}")
        begin(self, before.copy())
        self.image = image
        return getattr(self, attribute)

    @_like(real)
    def enhance(self: Any, factor: Any) -> Any:
        if "_before" in self.__dict__ and _is_lazy(self.image):
            from iofast.run import colours

            info, code = colours.ENHANCERS[name]
            call = colours.calling(colours.__name__, "enhanced", name, factor)
            return self.image.step((code, (float(factor),)), call, info=info)
        return real(self, factor)

    kind.__init__, kind.enhance, kind.__getattr__ = starting, enhance, missing


def operations(module: Any, *names: str) -> None:
    """Let functions of ImageOps and torchvision note their operation on a lazy image."""
    for name in names:
        setattr(module, name, _operation(name, getattr(module, name)))


def _operation(name: str, real: Any) -> Any:
    @_like(real)
    def operation(*given: Any, **named: Any) -> Any:
        if given and _is_lazy(given[0]):
            from iofast.run import colours

            image, *more = given
            info, step_for = colours.OPERATIONS[name]
            try:
                step = step_for(*more, **named)
            except TypeError:  # with a mask, a cutoff
                step = None
            if step is not None:
                return image.step(step, colours.calling(real.__module__, name, *more, **named), info=info)
        return real(*given, **named)

    return operation


def _is_lazy(image: Any) -> bool:
    """Whether this is a lazy RGB image."""
    if not type(image).__module__.startswith("iofast."):
        return False
    from iofast.run import images

    return images.pending_of(image) is not None


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
        from iofast.run import deferred, images, shadow

        pending = images.pending_of(pic)
        if pending is None or shadow.failed():
            return real(pic)
        tensor = deferred.defer(pending, real, floats=floats)
        return tensor if deferred.wanted() and pending.source.pixels is None else tensor.make()

    return to_tensor


def dataloader(module: Any) -> None:
    """Decode what DataLoader's workers send, or what it collates without them."""
    real, alone = module.DataLoader._get_iterator, module._SingleProcessDataLoaderIter
    next_data = alone._next_data

    @_like(real)
    def _get_iterator(self: Any) -> Any:
        iterator = real(self)
        if type(iterator) in (alone, module._MultiProcessingDataLoaderIter):
            try:
                from iofast.run import loaders

                loaders.attach(self, iterator)
            except Exception as error:
                notes.leave("DataLoader", f"iofast cannot run here: {error}")
        return iterator

    @_like(next_data)
    def _next_data(self: Any) -> Any:
        if (own := self.__dict__.get("_iofast")) is None:
            return next_data(self)
        from iofast.run import loaders

        return loaders.fetched(lambda: next_data(self), own)

    module.DataLoader._get_iterator, alone._next_data = _get_iterator, _next_data


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
    "PIL.ImageEnhance": enhancers,
    "PIL.ImageOps": lambda module: operations(module, "autocontrast", "equalize", "invert", "posterize", "solarize"),
    "torchvision.transforms._functional_pil": lambda module: operations(module, "adjust_hue", "to_grayscale"),
    "torchvision.transforms.functional": torchvision,
    "torch.utils.data.dataloader": dataloader,
    "timm.data.loader": timm,
}
