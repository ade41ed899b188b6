"""The shared libraries that decode PNG and WebP in the native kernel: looked for once, when the kernel is imported."""

from __future__ import annotations

from pathlib import Path

import PIL
from PIL import features

from iofast.kernel import _native


def webp_path() -> str | None:
    """Return the file or the name of the libwebp that Pillow uses: that in its wheel, or the system's."""
    if not features.check("webp"):
        return None
    folder = Path(PIL.__file__).parent.parent / "pillow.libs"
    return next((str(path) for path in sorted(folder.glob("libwebp-*.so*"))), "libwebp.so.7")


_found = _native.find_libraries(webp_path())
FOREIGN = tuple(name for bit, name in enumerate(("png", "webp")) if _found >> bit & 1)  # formats decoded without Pillow
