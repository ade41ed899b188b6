"""Functions of the script's libraries that a lazy image only notes. Nothing heavy is imported: it may never be one."""

from functools import wraps
from typing import Any


def is_lazy(image: Any) -> bool:
    """Whether this is a lazy image, whatever class it poses as."""
    return type(image).__module__ == "iofast.run.images"


def noting(real: Any) -> Any:
    """Return what only notes a function, or method, of Pillow or torchvision on a lazy image, if that can be."""

    @wraps(real)
    def operation(*given: Any, **named: Any) -> Any:
        noted = given[0].noted(real, given[1:], named) if given and is_lazy(given[0]) else None
        return real(*given, **named) if noted is None else noted

    return operation
