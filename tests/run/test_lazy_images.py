"""Whatever is done to an opened JPEG gives what it gives with Pillow alone: pixels, metadata, errors."""

import copy
import gc
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFile, ImageFilter, ImageOps

from iofast.run import images, notes, parts
from iofast.run.images import LazyImage, LazyJpeg
from iofast.run.noting import is_lazy

Use = Callable[[Path], Any]
RGB = "RGB"


def pixels(image: Image.Image) -> tuple[str, tuple[int, int], bytes]:
    return image.mode, image.size, image.tobytes()


def rgb(path: Path) -> Image.Image:
    return Image.open(path).convert(RGB)


def _resized(path: Path) -> Any:
    return [pixels(rgb(path).crop((10, 20, 250, 201)).resize((97, 61), each)) for each in Image.Resampling]


def _transposed(path: Path) -> Any:
    turned = [Image.open(path).transpose(each) for each in Image.Transpose]
    return [pixels(image) for image in turned], [
        pixels(image.crop((3, 4, 60, 70)).resize((40, 30))) for image in turned
    ]


def _changed(path: Path) -> Any:
    image, part = Image.open(path), rgb(path).crop((3, 3, 99, 99))
    before = np.asarray(part).copy()
    ImageDraw.Draw(image).rectangle((5, 5, 50, 50), fill=0)
    ImageDraw.Draw(part).ellipse((5, 5, 50, 50), fill=(9, 8, 7))
    part.putpixel((0, 0), (1, 2, 3))
    return pixels(image), pixels(part), before.tobytes()


def _array(path: Path) -> Any:
    array = np.asarray(Image.open(path))
    return array.shape, array.tobytes(), array.flags.writeable, np.array(rgb(path)).flags.writeable


def _loaded(path: Path) -> Any:
    image = Image.open(path)
    access = image.load()
    return access[3, 4], image.readonly, pixels(image), image.load()[1, 1]  # type: ignore[index]


def _metadata(path: Path) -> Any:
    image = Image.open(path)
    facts = image.format, image.mode, image.size, image.filename, image.get_format_mimetype(), image.tell()  # type: ignore[attr-defined]
    own = image.quantization, image.layers, image.layer, sorted(image.app)  # type: ignore[attr-defined]
    return facts, own, dict(image.getexif()), sorted(rgb(path).crop((0, 0, 9, 9)).info)


def _copies(path: Path) -> Any:
    image = Image.open(path)
    copied = [copy.copy(image), copy.deepcopy(image), image.copy(), pickle.loads(pickle.dumps(image.convert(RGB)))]
    return [(pixels(each), each.format) for each in copied]


def _upright(path: Path) -> Any:
    upright, same = ImageOps.exif_transpose(Image.open(path)), Image.open(path)
    ImageOps.exif_transpose(same, in_place=True)
    part = upright.convert(RGB).crop((0, 0, 50, 60)).resize((20, 20))
    return pixels(upright), dict(upright.getexif()), pixels(part), pixels(same), dict(same.getexif())


def _thumbnail(path: Path) -> Any:
    image, draft = Image.open(path), Image.open(path)
    image.thumbnail((100, 100))
    return pixels(image), draft.draft(RGB, (80, 60)), pixels(draft)


def _thumbnail_later(path: Path) -> Any:
    changed, loaded, draft = (Image.open(path) for _ in range(3))
    ImageDraw.Draw(changed).rectangle((5, 5, 150, 150), fill=0)
    changed.thumbnail((100, 100))
    loaded.load()
    loaded.thumbnail((100, 100))
    draft.load()
    return pixels(changed), pixels(loaded), draft.draft(RGB, (80, 60)), pixels(draft)


def _own_attributes(path: Path) -> Any:
    opened, part = Image.open(path), rgb(path).crop((0, 0, 50, 50))
    opened.info["own"] = opened.label = part.label = 5  # type: ignore[attr-defined]
    part.putpixel((0, 0), 0)
    opened.putpixel((0, 0), 0)
    return opened.label, part.label, sorted(opened.info), sorted(part.info), type(part).__name__  # type: ignore[attr-defined]


def _saved(path: Path) -> bytes:
    out = io.BytesIO()
    Image.open(path).save(out, "JPEG", quality="keep")
    return out.getvalue()


def _parsed(path: Path) -> Any:
    parser = ImageFile.Parser()
    parser.feed(path.read_bytes())
    return pixels(parser.close())


def _with(path: Path) -> Any:
    with Image.open(path) as image:
        image.load()
        part = image.convert(RGB).crop((5, 5, 55, 50))
    return pixels(part), image.fp


def _equal(path: Path) -> Any:
    one, other = Image.open(path), Image.open(path)
    return (
        one == other,
        one.convert(RGB) == other.convert(RGB),
        one.convert(RGB) == Image.fromarray(np.asarray(rgb(path))),
    )


def _class_assigned(path: Path) -> Any:
    class Own(Image.Image):
        pass

    image = rgb(path)
    image.__class__ = Own  # type: ignore[assignment]
    return pixels(image.resize((20, 20))), type(image).__name__


def _split(path: Path) -> Any:
    image = rgb(path)
    return [pixels(band) for band in image.split()], image.histogram(), image.getextrema(), pixels(image.rotate(13))


USES: dict[str, Use] = {
    "convert": lambda path: pixels(rgb(path)),
    "modes": lambda path: [
        pixels(Image.open(path).convert(mode)) for mode in ("L", "RGBA", "CMYK", "YCbCr", "1", "P", "F")
    ],
    "crops": lambda path: pixels(rgb(path).crop((10, 20, 200, 180)).crop((5, 5, 100, 100)).transpose(0)),
    "crop of floats": lambda path: pixels(rgb(path).crop((10.4, 20.5, 100.5, 99.5))),
    "crop outside": lambda path: pixels(rgb(path).crop((-10, -5, 100, 100))),
    "crop reversed": lambda path: pixels(rgb(path).crop((10, 10, 5, 30))),
    "crop of nothing": lambda path: rgb(path).crop((10, 10, 10, 30)).size,
    "resizes": _resized,
    "resize to the same": lambda path: pixels(rgb(path).resize(rgb(path).size)),
    "resize twice": lambda path: pixels(rgb(path).resize((100, 80)).resize((60, 60))),
    "resize, crop": lambda path: pixels(rgb(path).resize((100, 80)).crop((5, 6, 77, 70)).transpose(0)),
    "mirror, crop": lambda path: pixels(rgb(path).transpose(0).crop((5, 6, 77, 70))),
    "mirror, resize": lambda path: pixels(rgb(path).transpose(0).crop((5, 6, 77, 70)).resize((33, 44), 0)),
    "resize of a box": lambda path: pixels(rgb(path).resize((64, 64), 2, box=(10.5, 20, 200, 150.25))),
    "resize with a gap": lambda path: pixels(rgb(path).resize((64, 64), 3, reducing_gap=2.0)),
    "resize, unknown filter": lambda path: pixels(rgb(path).resize((64, 64), 77)),
    "resize to nothing": lambda path: pixels(rgb(path).resize((0, 10))),
    "transposes": _transposed,
    "mirrors": lambda path: pixels(rgb(path).transpose(1).transpose(0).transpose(2)),
    "change": _changed,
    "array": _array,
    "load": _loaded,
    "metadata": _metadata,
    "copies": _copies,
    "upright": _upright,
    "thumbnail": _thumbnail,
    "save as it is": _saved,
    "parser": _parsed,
    "with": _with,
    "bytes": lambda path: pixels(Image.open(io.BytesIO(path.read_bytes())).convert(RGB)),
    "equal": _equal,
    "class assigned": _class_assigned,
    "split": _split,
    "thumbnail later": _thumbnail_later,
    "own attributes": _own_attributes,
    "filter": lambda path: pixels(rgb(path).filter(ImageFilter.GaussianBlur(1.5))),
    "paste": lambda path: pixels(ImageOps.expand(rgb(path).resize((50, 50)), 10, fill=(3, 4, 5))),
    "no such attribute": lambda path: Image.open(path).nonsense,  # type: ignore[attr-defined]
}


def outcome(use: Use, path: Path) -> Any:
    try:
        return use(path)
    except Exception as error:
        return type(error), str(error)


# Files that a use leaves open are closed when their images are collected, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("kind", ["rgb", "exif", "gray", "cmyk", "progressive", "444", "truncated"])
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
def test_uses_are_equal(photos: dict[str, Path], kind: str, checked: bool, by_iofast: Callable[[bool], None]) -> None:
    for name, use in USES.items():
        by_iofast(False)
        expected = outcome(use, photos[kind])
        by_iofast(True)
        notes.notes().counts["checked"] = 0 if checked else 1000
        assert outcome(use, photos[kind]) == expected, name
    gc.collect()
    assert notes.notes().counts["differences"] == 0
    assert (notes.notes().counts["lazy"] > 0) == (kind not in ("cmyk", "truncated"))


class TestLaziness:
    def test_only_the_part_is_decoded(self, photos: dict[str, Path], by_iofast: Callable[[bool], None]) -> None:
        by_iofast(True)
        image = Image.open(photos["rgb"])
        part = image.convert(RGB).crop((10, 10, 50, 50)).resize((20, 20)).transpose(0)
        assert (type(image), type(part)) == (LazyJpeg, LazyImage)
        assert isinstance(part, Image.Image)
        assert (notes.notes().counts["part"], notes.notes().counts["whole"]) == (0, 0)
        part.tobytes()
        assert (notes.notes().counts["part"], notes.notes().counts["whole"]) == (1, 0)
        part.rotate(5).tobytes()
        assert (notes.notes().counts["part"], notes.notes().counts["whole"]) == (1, 0), "its pixels are known"

    def test_a_list_that_changes_later(self, photos: dict[str, Path], by_iofast: Callable[[bool], None]) -> None:
        """Pillow repeats the calls of checked images later: with the values that they had."""

        def crops() -> list[np.ndarray]:
            image, box, made = Image.open(photos["rgb"]), [0, 0, 20, 20], []
            for left in (0, 20):
                box[::2] = left, left + 20
                made += [image.crop(box), image.crop(box=box)]
            return [np.asarray(each) for each in made]

        by_iofast(False)
        expected = crops()
        by_iofast(True)
        np.testing.assert_array_equal(crops(), expected)
        assert notes.notes().counts["differences"] == 0

    def test_threads_share_an_image(self, photos: dict[str, Path], by_iofast: Callable[[bool], None]) -> None:
        by_iofast(True)
        notes.notes().counts["checked"] = 1000
        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):
                part = rgb(photos["rgb"]).crop((0, 0, 300, 200))
                made = [threads.submit(part.histogram) for _ in range(4)]
                assert all(each.result() == part.histogram() for each in made)

    def test_the_line_that_needs_whole_images_is_named(
        self, photos: dict[str, Path], by_iofast: Callable[[bool], None]
    ) -> None:
        by_iofast(True)
        np.array(Image.open(photos["rgb"]))
        (line,) = notes.notes().decoded_whole_by_line
        assert line.rpartition(":")[0] == __file__

    def test_what_is_only_opened_is_not_checked(
        self, photos: dict[str, Path], by_iofast: Callable[[bool], None]
    ) -> None:
        by_iofast(True)
        opened = [rgb(photos["rgb"]).crop((0, 0, 9, 9)) for _ in range(20)]
        assert notes.notes().counts["checked"] == 0
        for image in opened:
            image.tobytes()
        assert notes.notes().counts["checked"] == 16

    def test_kept_images_are_decoded_once(self, photos: dict[str, Path], by_iofast: Callable[[bool], None]) -> None:
        by_iofast(True)
        opened, damaged, loaded = (Image.open(photos["rgb"]) for _ in range(3))
        loaded.load()
        small = loaded.resize((20, 20))
        damaged.load()
        damaged.__dict__["_pending"].source.data = b""
        images.decode_kept()  # as a loop over a DataLoader does, before it starts workers
        lazy = [is_lazy(image) for image in (opened, damaged, loaded, small)]
        assert lazy == [True, True, False, False]
        assert pixels(small) == pixels(Image.open(photos["rgb"]).resize((20, 20)))

    def test_a_second_part_is_cut_from_the_whole(
        self, photos: dict[str, Path], by_iofast: Callable[[bool], None]
    ) -> None:
        by_iofast(True)
        image = rgb(photos["rgb"])
        for _ in range(3):
            image.crop((10, 10, 50, 50)).tobytes()
        assert image.__dict__["_pending"].source.pixels is not None


def test_pixels_read_twice_are_decoded_once(
    photos: dict[str, Path], by_iofast: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = parts.decode, list[int]()
    monkeypatch.setattr(parts, "decode", lambda rows, *more: (calls.append(len(rows)), decode(rows, *more)))
    by_iofast(True)
    notes.notes().counts["checked"] = 1000
    image = rgb(photos["rgb"]).resize((40, 30))
    assert np.array_equal(np.asarray(image), np.asarray(image))
    assert calls == [1]


def test_a_difference_leaves_the_rest_to_pillow(
    photos: dict[str, Path], by_iofast: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_iofast(False)
    expected = pixels(rgb(photos["rgb"]).crop((10, 10, 50, 50)))
    by_iofast(True)
    monkeypatch.setattr("iofast.run.parts.Part.box", lambda part: (0, 0, 40, 40, 40, 40, 0, 0))
    part, later = (rgb(photos["rgb"]).crop((10, 10, 50, 50)) for _ in range(2))
    assert pixels(part) == pixels(later) == expected
    assert list(notes.notes().left_alone) == ["all further images"]
    assert type(Image.open(photos["rgb"])) is not LazyJpeg
