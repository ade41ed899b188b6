"""CIFAR-10 and CIFAR-100, from the *binary* version (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz), unpacked.

The Python version holds pickles, and loading one runs whatever code is in it, so it is not read here. The images become
raw pixels (`rgb`): 32×32 pixels need no decoder. CIFAR-100's coarse label becomes the field `coarse.cls`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from iofast import open_writer
from iofast.errors import SourceError
from tools.recipes.listed import finish, parser

SIDE = 32
TEN = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
HUNDRED = {"train": ["train.bin"], "test": ["test.bin"]}


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__, pixels=False).parse_args(argv)
    return finish(lambda: pack_cifar(args.source, args.target, overwrite=args.overwrite))


def pack_cifar(source: Path, target: Path, *, overwrite: bool = False) -> str:
    """Pack train and test in their own order; return a summary. Raises `SourceError` for a missing or cut file."""
    hundred = (source / "train.bin").is_file()
    if not hundred and not (source / TEN["test"][0]).is_file():
        pickles = any((source / name).is_file() for name in ("data_batch_1", "train", "test_batch"))
        reason = ": this is the Python version, which is pickled: take the binary one" if pickles else ""
        raise SourceError(f"{source} has neither test_batch.bin nor train.bin of CIFAR's binary version{reason}")
    names = source / ("fine_label_names.txt" if hundred else "batches.meta.txt")
    classes = names.read_text().split()
    packed = 0
    with open_writer(target, classes=classes, overwrite=overwrite) as writer:
        for split, files in (HUNDRED if hundred else TEN).items():
            for file in files:
                for coarse, label, pixels in _records(source / file, hundred):
                    fields = {"rgb": pixels, "cls": label, "json": {"width": SIDE, "height": SIDE}}
                    packed = 1 + writer.write(fields | ({"coarse.cls": coarse} if hundred else {}), split)
    return f"packed {packed:,} images into {target}"


def _records(file: Path, hundred: bool) -> Iterator[tuple[int, int, bytes]]:
    """Coarse label (or the label itself), label, and rows of R G B."""
    heads = 2 if hundred else 1
    size = heads + 3 * SIDE * SIDE
    data = np.fromfile(file, np.uint8)
    if not len(data) or len(data) % size:
        raise SourceError(f"{file} has {len(data)} bytes, expected a multiple of {size}")
    for record in data.reshape(-1, size):
        planes = record[heads:].reshape(3, SIDE, SIDE)
        yield int(record[0]), int(record[heads - 1]), np.ascontiguousarray(planes.transpose(1, 2, 0)).tobytes()


if __name__ == "__main__":
    sys.exit(main())
