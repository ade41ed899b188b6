"""What is replaced in the script's libraries, right after their own code has run.

Nothing is imported for the script, nothing heavy before it is needed, and no thread is started: what a script does not
use costs it nothing.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import ModuleType
from typing import Any

from iofast.run import notes
from iofast.run.noting import is_lazy, noting

OFF = "IOFAST_RUN"  # the variable that turns everything off where it is 0


def opening(real: Any) -> Any:
    """Open JPEGs lazily. The kernel is imported when the first one is opened."""
    from PIL import Image

    accept = sys.modules[real.__module__]._accept

    def open_jpeg(fp: Any, filename: Any = None) -> Any:
        try:
            from iofast.run import images

            factory: Any = images.open_jpeg
        except Exception as error:  # another Python than the launcher's, without NumPy, or without the native kernel
            notes.leave("JPEGs", f"iofast cannot run here: {error}")
            factory = real
        Image.register_open("JPEG", factory, accept)
        return factory(fp, filename)

    Image.register_open("JPEG", open_jpeg, accept)
    return real


def enhancing(kind: Any) -> Any:
    """Let a class of ImageEnhance note its operation on a lazy image."""
    begin, real = kind.__init__, kind.enhance

    @wraps(begin)
    def starting(self: Any, image: Any) -> None:
        if is_lazy(image):
            self.image, self._before = image, image.copy()
        else:
            begin(self, image)

    def missing(self: Any, attribute: str) -> Any:  # Pillow's own attributes, made at their first use
        if (before := vars(self).pop("_before", None)) is None:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {attribute!r}")
        image = self.image
        begin(self, before)
        self.image = image
        return getattr(self, attribute)

    @wraps(real)
    def enhance(self: Any, factor: Any) -> Any:
        own = not is_lazy(self.image) or "degenerate" in vars(self)  # which the script may have changed
        noted = None if own else self.image.noted(kind, (factor,), {})
        return real(self, factor) if noted is None else noted

    kind.__init__, kind.enhance, kind.__getattr__ = starting, enhance, missing
    return kind


def deferring(real: Any, *, floats: bool) -> Any:
    """Let `to_tensor` or `pil_to_tensor` return lazy tensors in workers, in every module that has it."""

    @wraps(real)
    def to_tensor(pic: Any) -> Any:
        if not is_lazy(pic) or pic.mode != "RGB":
            return real(pic)
        from iofast.run import deferred, shadow

        if shadow.failed():
            return real(pic)
        tensor = deferred.defer(pic._pending, real, floats=floats)
        return tensor if deferred.wanted() and pic._pending.source.pixels is None else tensor.make()

    name: str = real.__name__
    for each in list(sys.modules.values()):
        if getattr(each, "__name__", "").startswith("torchvision.") and vars(each).get(name) is real:
            setattr(each, name, to_tensor)
    return to_tensor


def levelwise(real: Any) -> Any:
    """Let a function of torchvision that changes each value by itself do so once for all images."""

    @wraps(real)
    def function(*given: Any, **named: Any) -> Any:
        if given and type(given[0]).__module__ == "iofast.run.deferred":
            from iofast.run import deferred

            if (result := deferred.on_levels(real, *given, **named)) is not NotImplemented:
                return result
        return real(*given, **named)

    return function


def levelwise_kernels(function: Any) -> Any:
    """Let what a function of torchvision's v2 has for each kind of image be `levelwise`."""
    of_kind = sys.modules["torchvision.transforms.v2.functional._utils"]._KERNEL_REGISTRY[function]
    of_kind.update({kind: levelwise(real) for kind, real in of_kind.items()})
    return function


def decoding(kind: Any) -> Any:
    """Decode what DataLoader's workers send, or what it collates without them."""
    module, real = sys.modules[kind.__module__], kind._get_iterator

    @wraps(real)
    def _get_iterator(self: Any) -> Any:
        if (images := sys.modules.get("iofast.run.images")) is not None:
            images.decode_kept()
        iterator = real(self)
        if type(iterator) in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
            try:
                from iofast.run import loaders

                loaders.attach(self, iterator)
            except Exception as error:
                notes.leave("DataLoader", f"iofast cannot run here: {error}")
        return iterator

    kind._get_iterator = _get_iterator
    return kind


def collating(real: Any) -> Any:
    """Let timm's collate function for bytes stack lazily."""

    @wraps(real)
    def fast_collate(batch: Sequence[Any]) -> Any:
        if not type(batch[0][0]).__module__.startswith("iofast."):
            return real(batch)
        import torch

        from iofast.run import deferred

        one = torch.zeros((1, 1, 1), dtype=torch.uint8)
        _, targets = real([(one, *sample[1:]) for sample in batch])
        return deferred.stack([sample[0] for sample in batch]), targets

    return fast_collate


Patch = Callable[[Any], Any]  # takes what a library has under a name, and returns what takes its place
# By module: what is replaced after its import.
PATCHES: Mapping[str, Mapping[str, Patch]] = {
    "PIL.JpegImagePlugin": {"jpeg_factory": opening},
    "PIL.ImageEnhance": dict.fromkeys(("Brightness", "Contrast", "Color", "Sharpness"), enhancing),
    "PIL.ImageOps": dict.fromkeys(("autocontrast", "equalize", "invert", "posterize", "solarize"), noting),
    "torchvision.transforms._functional_pil": dict.fromkeys(("adjust_hue", "to_grayscale"), noting),
    "torchvision.transforms.functional": {
        "to_tensor": partial(deferring, floats=True),
        "pil_to_tensor": partial(deferring, floats=False),
        "normalize": levelwise,
        "convert_image_dtype": levelwise,
    },
    "torchvision.transforms.v2.functional": dict.fromkeys(("normalize", "to_dtype"), levelwise_kernels),
    "torch.utils.data.dataloader": {"DataLoader": decoding},
    "timm.data.loader": {"fast_collate": collating},
}


class Finder:
    """Finds what the other finders find; for modules in `PATCHES` it adds a step behind their execution."""

    def __init__(self) -> None:
        self._searching = False  # this finder is asked again

    def find_spec(self, name: str, *_: Any) -> Any:
        """Return the module's own spec, or None for modules that stay as they are."""
        if name not in PATCHES or self._searching:
            return None
        self._searching = True
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                patch(name, module)

            spec.loader.exec_module = exec_module
        return spec


def patch(name: str, module: Any) -> None:
    """Patch a module; one that is not as expected stays as it is, and the report says so."""
    if getattr(module, "__iofast__", False):
        return
    try:
        for attribute, replaced in PATCHES[name].items():
            setattr(module, attribute, replaced(getattr(module, attribute)))
        module.__iofast__ = True
    except Exception as error:
        notes.leave(name, f"it is not as iofast expects: {error!r}")


def install() -> None:
    """Watch further imports, patch what is imported already, report; nothing where IOFAST_RUN=0 forbids it."""
    if os.environ.get(OFF) == "0" or any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
    for name in PATCHES:
        if (module := sys.modules.get(name)) is not None:
            patch(name, module)
    notes.write()
