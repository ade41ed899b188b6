"""The usual packing script: Pillow in a process pool of two. `python -m benchmarks.peers.pillow_pack SRC DST` resizes
every image of SRC to a short side of 256 with the filter that iofast uses by default and writes a JPEG of quality 90
under DST. It builds no container, checks nothing and writes no index: less than `iofast pack` does.
"""

import sys
from functools import partial
from multiprocessing import Pool
from pathlib import Path

from PIL import Image, ImageOps

SIZE, QUALITY, PROCESSES = 256, 90, 2


def transcode(source: Path, target: Path, path: Path) -> int:
    """One image; gives the bytes written."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file).convert("RGB")
    short = min(image.size)
    size = tuple(SIZE if side == short else side * SIZE // short for side in image.size)
    out = target / path.relative_to(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    image.resize((size[0], size[1]), Image.Resampling.BILINEAR).save(out, "JPEG", quality=QUALITY)
    return out.stat().st_size


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    files = sorted(path for path in source.rglob("*") if path.is_file())
    with Pool(PROCESSES) as pool:
        sizes = list(pool.imap(partial(transcode, source, target), files, chunksize=16))
    print(sum(sizes))


if __name__ == "__main__":
    main()
