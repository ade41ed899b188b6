"""No loader: one batch from memory again and again. With a network, what training alone reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from protocol import Options, Seen, main, no_pack

from tools.pillow_folder import files_by_class


def load(options: Options) -> tuple[Any, Any]:
    count = len(files_by_class(Path(options.data)))
    batch = torch.randn(options.batch, options.size, options.size, 3).permute(0, 3, 1, 2)

    def seen(start: int) -> Seen:
        images = batch[: count - start]
        return len(images), images

    return range(0, count, options.batch), seen


if __name__ == "__main__":
    main(load, no_pack)
