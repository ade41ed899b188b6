"""Transform boxes, keypoints and polygons in JSON like their image, which is turned, resized, cropped or warped.

Coordinates are in pixels and continuous: 0 is the left or upper edge of the image, its width or height the other edge.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from iofast.errors import DecodeError
from iofast.kernel.contract import Header, TranscodeRecipe

BOX_FORMATS = ("xyxy", "xywh")
_BOX, _BOXES = ("bbox", "box"), ("boxes", "bboxes", "bbox", "box")
_POINTS, _POLYGONS = ("keypoints", "points"), "segmentation"
_LISTS = ("objects", "annotations", "instances")
_DIGITS = 3  # after the decimal point

Point = tuple[float, float]


class Places(Protocol):
    """A map from points of an annotated image to points of the new image."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the new image."""

    def point(self, x: float, y: float) -> Point:
        """The place of a point of the annotated image in the new image."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The places of points of the annotated image in the packed image."""

    orientation: int
    annotated: tuple[int, int]  # width and height of the annotated image: stored, or upright
    scale: Point
    shift: Point
    size: tuple[int, int]

    @classmethod
    def of(cls, recipe: TranscodeRecipe, image: Header, *, upright: bool) -> Geometry:
        """The effect of `recipe` on an image with this header. `upright`: annotations belong to the upright image."""
        shown = (image.width, image.height)
        orientation = 1 if upright else image.orientation
        framing = recipe.framing(*shown)
        goal, (x0, y0, x1, y1), canvas = framing.size, framing.box, framing.canvas
        return cls(
            orientation,
            shown[::-1] if orientation >= 5 else shown,
            (goal[0] / shown[0], goal[1] / shown[1]),
            ((canvas[0] - x1 + x0) // 2 - x0, (canvas[1] - y1 + y0) // 2 - y0),
            canvas,
        )

    def point(self, x: float, y: float) -> Point:
        """The place of a point of the annotated image in the packed image."""
        width, height = self.annotated
        x, y = (
            (x, y),
            (width - x, y),
            (width - x, height - y),
            (x, height - y),
            (y, x),
            (height - y, x),
            (height - y, width - x),
            (y, width - x),
        )[self.orientation - 1]
        return x * self.scale[0] + self.shift[0], y * self.scale[1] + self.shift[1]


@dataclass(slots=True)
class _Walk:
    """One pass over the JSON of a field, for its boxes, its keypoints or both."""

    geometry: Places
    boxes: bool
    points: bool
    format: str
    found: bool = False

    def value(self, value: Any) -> Any:
        """`value` with all its places moved; None instead of an object whose box has left the image."""
        if isinstance(value, dict):
            return self._mapping(value)
        if is_numbers(value) and self.points:
            return self._keypoints(value)
        if is_numbers(value) and self.boxes:
            moved = self._box(value)
            return [] if moved is None else moved
        if not isinstance(value, list):
            return value
        if value and all(map(is_numbers, value)):
            return [box for box in map(self._box, value) if box is not None] if self.boxes else self._keypoints(value)
        moved = [self.value(each) for each in value]
        return [new for old, new in zip(value, moved, strict=True) if new is not None or old is None]

    def _mapping(self, value: dict[str, Any]) -> Any:
        result = dict(value)
        # lists of boxes last: for each box that goes, the entries of the lists beside them go too
        for name, own in sorted(value.items(), key=lambda item: item[0] in _BOXES):
            if self.boxes and name in _BOX and is_numbers(own):
                result[name] = self._box(own)
                if result[name] is None:
                    return None
            elif self.boxes and name in _BOXES and isinstance(own, list):
                kept = self._many(own)
                result |= {
                    other: _beside(result[other], kept, other)
                    for other, same in value.items()
                    if other != name and isinstance(same, list) and len(same) == len(own)
                }
                result[name] = [box for box in kept if box is not None]
            elif self.points and name in _POINTS and isinstance(own, list):
                result[name] = self._keypoints(own)
            elif name == _POLYGONS:
                result[name] = self._polygons(own)
            elif isinstance(own, dict | list) and name not in (*_BOXES, *_POINTS):
                self.found |= name in _LISTS and not own
                if isinstance(own, dict) or any(isinstance(each, dict) for each in own):
                    result[name] = self.value(own)
        return {name: result[name] for name in value}

    def _many(self, boxes: list[Any]) -> list[Any]:
        self.found = True
        return [self._box(box) for box in boxes]

    def _box(self, box: Any) -> list[float] | None:
        """The part of a box inside the image, None if it is empty."""
        if not is_numbers(box) or len(box) != 4:
            raise DecodeError(f"a box has four numbers, found {box!r:.60}")
        self.found = True
        x, y, right, low = box
        if self.format == "xywh":
            right, low = x + right, y + low
        if right < x or low < y:
            advice = ": is it xywh, as in COCO (--box-format)?" if self.format == "xyxy" else ""
            raise DecodeError(f"the box {box!r:.60} ends before it begins, as {self.format}{advice}")
        corners = [self.geometry.point(*corner) for corner in ((x, y), (right, y), (x, low), (right, low))]
        width, height = self.geometry.size
        across, down = [corner[0] for corner in corners], [corner[1] for corner in corners]
        left, right = (min(max(each(across), 0), width) for each in (min, max))
        top, low = (min(max(each(down), 0), height) for each in (min, max))
        if right <= left or low <= top:
            return None
        ends = (right - left, low - top) if self.format == "xywh" else (right, low)
        return [_rounded(each) for each in (left, top, *ends)]

    def _keypoints(self, points: list[Any]) -> list[Any]:
        self.found = True
        if points and is_numbers(points):
            if len(points) in (2, 3) and len(points) % 3:
                return self._keypoint(points)
            if len(points) % 3:
                raise DecodeError(f"a list of keypoints: expected x, y, v for each, found {len(points)} numbers")
            return [own for at in range(0, len(points), 3) for own in self._keypoint(points[at : at + 3])]
        if not all(isinstance(each, list) for each in points):
            raise DecodeError(f"keypoints: expected lists of numbers, found {points!r:.60}")
        return [
            self._keypoint(each) if is_numbers(each) and len(each) <= 3 else self._keypoints(each) for each in points
        ]

    def _keypoint(self, point: list[float]) -> list[float]:
        """A point outside the image becomes 0, 0, 0 if it has a visibility; otherwise it keeps its place outside."""
        if len(point) not in (2, 3):
            raise DecodeError(f"a keypoint: expected x, y or x, y, v, found {point!r:.60}")
        if len(point) == 3 and point[2] == 0:
            return point
        (width, height), (x, y) = self.geometry.size, self.geometry.point(point[0], point[1])
        if len(point) == 3 and not (0 <= x <= width and 0 <= y <= height):
            return [0, 0, 0]
        return [_rounded(x), _rounded(y), *point[2:]]

    def _polygons(self, polygons: Any) -> Any:
        """Polygons, not clipped."""
        if not isinstance(polygons, list):
            raise DecodeError("a run-length segmentation cannot follow its image: store it as a mask")
        if polygons and is_numbers(polygons):
            if len(polygons) % 2:
                raise DecodeError(f"a polygon: expected x, y for each point, found {len(polygons)} numbers")
            pairs = zip(polygons[::2], polygons[1::2], strict=True)
            return [_rounded(own) for x, y in pairs for own in self.geometry.point(x, y)]
        return [self._polygons(each) for each in polygons]


def follow(value: Any, places: Places, *, boxes: bool, points: bool, box_format: str = "xyxy") -> Any:
    """`move` for parsed JSON: a value of the same form, [] if nothing is left. Raises `DecodeError`."""
    try:
        return _walked(value, _Walk(places, boxes, points, box_format))
    except RecursionError:
        raise DecodeError("its JSON is nested too deeply") from None
    except OverflowError:
        raise DecodeError("a number is too large for a place in an image") from None


def move(payload: bytes, geometry: Places, *, boxes: bool, points: bool, box_format: str) -> bytes:
    """The JSON `payload` with its boxes or keypoints, and the polygons beside them, at their places in the new image.

    Boxes are clipped to the image. If nothing is left of a box, its object is removed, or its entry in all lists of the
    same length. Unchanged JSON stays byte for byte. Raises `DecodeError`.
    """
    try:
        value = json.loads(payload, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON ({error})") from None
    moved = follow(value, geometry, boxes=boxes, points=points, box_format=box_format)
    try:
        if moved == value:
            return payload
    except RecursionError:
        raise DecodeError("its JSON is nested too deeply") from None
    try:
        return json.dumps(moved, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can contain only as an escape
        return json.dumps(moved, separators=(",", ":")).encode()


def _walked(value: Any, walk: _Walk) -> Any:
    moved = walk.value(value)
    if not walk.found and value:
        names = [name for name, wanted in ((_BOXES, walk.boxes), (_POINTS, walk.points)) if wanted]
        raise DecodeError(f"no list of numbers and no member {', '.join(each for own in names for each in own)} in it")
    return [] if moved is None else moved


def _beside(entries: list[Any], kept: list[Any], name: str) -> list[Any]:
    """The entries whose boxes stay."""
    left = sum(box is not None for box in kept)
    if len(entries) == len(kept):
        return [entry for entry, box in zip(entries, kept, strict=True) if box is not None]
    if len(entries) != left:  # they are objects with boxes of their own, and others of them have left the image
        raise DecodeError(
            f"the list {name!r:.40} lost {len(kept) - len(entries)} entries, the boxes beside it {len(kept) - left}"
        )
    return entries


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text[:40])


def is_numbers(value: Any) -> bool:
    """Whether a value of JSON is a list of numbers, at least one."""
    return isinstance(value, list) and bool(value) and all(type(each) in (int, float) for each in value)


def _rounded(value: float) -> float:
    rounded = round(value, _DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded
