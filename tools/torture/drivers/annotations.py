"""Boxes and keypoints in JSON that follow their image, and the orientation in EXIF blocks."""

import io
import json
import random
from pathlib import Path

from PIL import Image

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import exif, other_formats
from iofast.places import Geometry, move
from tools.torture.drivers import Driver, damage

_SOUND = (
    {"boxes": [[1, 2, 3, 4], [5, 5, 6, 6]], "n": [1, 2], "objects": [{"bbox": [1, 2, 3, 4]}, {"bbox": [90, 9, 99, 9]}]},
    [[1, 2, 30, 40]],
    [1, 2, 2, 30, 40, 1],
    {"keypoints": [[1, 2, 2], [3, 4, 0]], "annotations": [{"keypoints": [1, 2, 2], "segmentation": [[1, 2, 3, 4]]}]},
    {"instances": [{"box": [1, 2, 3, 4], "points": [[1, 2]]}], "bboxes": [], "note": "a"},
)  # fmt: skip
_TAG = 0x0112


class Annotations(Driver):
    """JSON of any shape: it is moved, or refused with a `DecodeError`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        out = io.BytesIO()
        Image.new("RGB", (16, 8)).save(out, "jpeg")
        self.jpeg = out.getvalue()

    def step(self, chance: random.Random) -> str:
        return self.orientation(chance) if chance.random() < 0.3 else self.moved(chance)

    def moved(self, chance: random.Random) -> str:
        """One JSON."""
        value = chance.choice(_SOUND)
        for _ in range(chance.randint(0, 3)):
            value = damage.value(chance, value)
        text = damage.text(chance, value)
        text = damage.anywhere(chance, text) if chance.random() < 0.1 else text
        mode = chance.choice(("short", "crop", "pad", "exact"))
        recipe = kernel.TranscodeRecipe(size=chance.choice((16, 50)), mode=mode)
        size = chance.choice(((100, 60), (1, 7), (65_535, 3)))
        image = kernel.Header("jpeg", *size, chance.randint(1, 8), 3, False)
        geometry = Geometry.of(recipe, image, upright=chance.random() < 0.5)
        both = chance.choice(((True, True), (True, False), (False, True)))
        try:
            found = move(text, geometry, boxes=both[0], points=both[1], box_format=chance.choice(("xyxy", "xywh")))
        except DecodeError:
            return "refused"
        json.loads(found)
        return "moved"

    def orientation(self, chance: random.Random) -> str:
        """An EXIF block, alone and in a JPEG, by both readers of it."""
        order = chance.choice(("little", "big"))
        entries = chance.choice((0, 1, 3))
        block = bytearray(b"II*\0" if order == "little" else b"MM\0*")
        block += (8).to_bytes(4, order) + entries.to_bytes(2, order)
        for _ in range(entries):
            tag = chance.choice((_TAG, _TAG, 0x010F))
            kind, value = chance.choice((3, 3, 4, 2, 0)), chance.choice((1, 6, 8, 0, 9, 65_536))
            block += tag.to_bytes(2, order) + kind.to_bytes(2, order) + (1).to_bytes(4, order)
            block += (value & 0xFFFF).to_bytes(2, order) + bytes(2) if kind == 3 else value.to_bytes(4, order)
        block += bytes(4)
        if chance.random() < 0.6:
            at = chance.choice((0, 4, 8, 10, chance.randrange(len(block))))
            block[at : at + 2] = damage.number(chance, 2, len(block)).to_bytes(2, order)
        if chance.random() < 0.2:
            block = block[: chance.randrange(len(block))]
        body = b"Exif\0\0" * chance.choice((1, 1, 1, 2, 0)) + bytes(block)
        found = exif.orientation(body)
        assert 1 <= found <= 8, found
        segment = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
        data = self.jpeg[:2] + segment + self.jpeg[2:]
        headers = [each.read_header(data).orientation for each in (kernel, other_formats)]
        assert headers[0] == headers[1], headers
        return "orientation"
