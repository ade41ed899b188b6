"""The picture that the odd images show, and the parts of their files."""

import struct
import zlib
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

WIDTH, HEIGHT = 64, 48
CORNERS = ((220, 40, 30), (30, 180, 60), (40, 60, 200), (235, 215, 40))  # red, green / blue, yellow
PURE = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0))

_STORED = {  # by EXIF orientation: from the upright picture to the stored one
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@dataclass(frozen=True)
class Odd:
    """One file: what is odd about it, and the expected result of packing.

    `pixels`: the packed image, upright, uint8 (height, width, 3), on average within `tolerance` levels. None: packing
    fails with `error` in its message. `link`: no regular file but `pipe` or `dangling`.
    """

    name: bytes
    about: str
    data: bytes
    pixels: Pixels | None = None
    tolerance: float = 3.0
    error: str = ""
    link: str = ""


def scene(width: int = WIDTH, height: int = HEIGHT, corners: tuple[tuple[int, ...], ...] = CORNERS) -> Pixels:
    """Four quarters of one colour each: any turn, mirror or mix-up of channels shows."""
    pixels = np.empty((height, width, 3), np.uint8)
    y, x = (height + 1) // 2, (width + 1) // 2
    for part, colour in zip((np.s_[:y, :x], np.s_[:y, x:], np.s_[y:, :x], np.s_[y:, x:]), corners, strict=True):
        pixels[part] = colour
    return pixels


def gray(pixels: Pixels) -> Pixels:
    """The same in shades of gray, with three channels."""
    return np.asarray(Image.fromarray(pixels).convert("L").convert("RGB"))


def over(pixels: Pixels, alpha: NDArray[np.uint8], background: tuple[int, int, int] = (255, 255, 255)) -> Pixels:
    """`pixels` blended over a background."""
    share = alpha[..., None] / 255
    return (pixels * share + np.array(background) * (1 - share)).round().astype(np.uint8)


def ramp() -> NDArray[np.uint8]:
    """Alpha of the scene: nothing at the left, everything at the right."""
    return np.tile(np.linspace(0, 255, WIDTH).round().astype(np.uint8), (HEIGHT, 1))


def save(image: Image.Image | Pixels, name: str, **options: object) -> bytes:
    """One file, as Pillow writes it."""
    stream = BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, name, **options)
    return stream.getvalue()


def jpeg(pixels: Pixels, mode: str = "RGB", **options: object) -> bytes:
    """A JPEG of high quality."""
    return save(Image.fromarray(pixels).convert(mode), "JPEG", **{"quality": 95, "subsampling": "4:4:4", **options})


def exif(orientation: int) -> bytes:
    """An EXIF block that holds an orientation and nothing else."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def xmp(orientation: int) -> bytes:
    """An XMP packet that holds an orientation and nothing else."""
    description = f'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="{orientation}"/>'
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF>{description}</rdf:RDF></x:xmpmeta>'.encode()


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """The stored pixels that EXIF `orientation` turns into `pixels`."""
    turn = _STORED.get(orientation)
    return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))


def chunk(kind: bytes, body: bytes) -> bytes:
    """One chunk of a PNG."""
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def png(samples: NDArray[np.generic], colour: int, depth: int, *chunks: bytes) -> bytes:
    """A PNG with the given rows of big-endian samples, of a colour type and depth that Pillow does not write."""
    height, width = samples.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in samples)
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, colour, 0, 0, 0])
    body = (chunk(b"IHDR", head), *chunks, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def tiff(
    samples: bytes,
    bits: int,
    kind: int = 1,
    order: str = "<",
    span: tuple[float, float] | tuple[()] = (),
    **tags: int,
) -> bytes:
    """A TIFF of 64 x 48 gray samples of a `kind` (1 unsigned, 2 signed, 3 floating point) that Pillow may not write.

    `span` is declared as SMinSampleValue and SMaxSampleValue. `tags`: compression, photometric.
    """
    entries = [(256, 3, WIDTH), (257, 3, HEIGHT), (258, 3, bits), (259, 3, tags.get("compression", 1))]
    entries += [(262, 3, tags.get("photometric", 1)), (273, 4, 8), (277, 3, 1), (278, 3, HEIGHT)]
    entries += [(279, 4, len(samples)), (339, 3, kind)]
    doubles = list(zip((340, 341), span, strict=False))
    samples += bytes(len(samples) % 2)
    directory = struct.pack(order + "H", len(entries) + len(doubles))
    for tag, form, value in entries:
        directory += struct.pack(order + ("HHIHH" if form == 3 else "HHII"), tag, form, 1, value, *[0] * (form == 3))
    behind = 8 + len(samples) + 2 + 12 * (len(entries) + len(doubles)) + 4
    for number, (tag, _) in enumerate(doubles):
        directory += struct.pack(order + "HHII", tag, 12, 1, behind + 8 * number)
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8 + len(samples))
    return head + samples + directory + bytes(4) + b"".join(struct.pack(order + "d", value) for _, value in doubles)


def twelve(samples: NDArray[np.generic]) -> bytes:
    """Samples of 12 bits, two in three bytes."""
    first, second = samples.reshape(-1, 2).astype(np.uint16).T
    parts = first >> 4, (first & 15) << 4 | second >> 8, second & 255
    return np.stack(parts, 1).astype(np.uint8).tobytes()
