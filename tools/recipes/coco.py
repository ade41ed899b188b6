"""COCO: images with their boxes, masks and captions as fields.

    SOURCE/train2017/*.jpg, SOURCE/val2017/*.jpg
    SOURCE/annotations/instances_train2017.json, captions_train2017.json, …     (either may be missing)

Fields: `objects.json`, lists with an entry for each object: `boxes`, [left, top, right, bottom] in pixels;
`categories`, numbers from 0 in the order of COCO's ids, whose gaps are closed; `id`, `area` and `iscrowd` as COCO has
them; `segmentation`, its polygons; `rle`, instead of polygons for crowds, COCO's run lengths, else null. And
`captions.json`, a list of texts. The names of the categories stand in the manifest's recipe as `categories`. Images
without annotations are packed too. With --resize boxes and polygons are scaled with their images; areas and run lengths
(which say of what size they are) stay as COCO has them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from iofast.errors import SourceError
from iofast.packing.report import PackReport
from tools.recipes.listed import Row, finish, images_in, pack_listed, pack_options, parser, read_json

SPLITS = ("train", "val")
_OBJECT = ("boxes", "categories", "id", "area", "iscrowd", "segmentation", "rle")


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, pixels=True)
    options.add_argument("--year", default="2017")
    args = options.parse_args(argv)
    return finish(lambda: pack_coco(args.source, args.target, args.year, **pack_options(args)))


def pack_coco(source: Path, target: Path, year: str = "2017", **options: Any) -> PackReport:
    """Pack train and val, images in the order of their names. Raises `SourceError` for a file that is not COCO's."""
    splits = [split for split in SPLITS if (source / f"{split}{year}").is_dir()]
    if not splits:
        raise SourceError(f"{source} has no folder train{year} or val{year}")
    instances = {split: _read(source / "annotations" / f"instances_{split}{year}.json") for split in splits}
    captions = {split: _read(source / "annotations" / f"captions_{split}{year}.json") for split in splits}
    names = {each["id"]: each["name"] for file in instances.values() for each in file.get("categories", ())}
    numbers = {identity: number for number, identity in enumerate(sorted(names))}
    rows: list[Row] = []
    for split in splits:
        fields = _fields(instances[split], captions[split], numbers)
        paths = images_in(source / f"{split}{year}")
        rows += [{"path": path.relative_to(source).as_posix(), "split": split, **fields[path.name]} for path in paths]
    if any(instances.values()):
        options["boxes"] = "objects.json"
    return pack_listed(rows, source, target, notes={"categories": [names[each] for each in numbers]}, **options)


def _fields(instances: Any, captions: Any, numbers: dict[int, int]) -> dict[str, dict[str, Any]]:
    """The fields of each image, by its file's name."""
    fields: dict[str, dict[str, Any]] = defaultdict(
        lambda: {
            **({"objects.json": {name: [] for name in _OBJECT}} if instances else {}),
            **({"captions.json": []} if captions else {}),
        }
    )
    images = {each["id"]: each["file_name"] for file in (instances, captions) for each in file.get("images", ())}
    for file in (instances, captions):
        if unknown := {each["image_id"] for each in file.get("annotations", ())} - set(images):
            named = ", ".join(map(str, sorted(unknown)[:5]))
            raise SourceError(f"annotations are of images that are not listed: {named}")
    for each in sorted(instances.get("annotations", ()), key=lambda one: int(one["id"])):
        left, top, width, height = each["bbox"]
        shape = each.get("segmentation", [])
        entry = {
            **{name: each.get(name) for name in _OBJECT},
            "boxes": [left, top, left + width, top + height],
            "categories": numbers[each["category_id"]],
            "segmentation": shape if isinstance(shape, list) else [],
            "rle": None if isinstance(shape, list) else shape,
        }
        objects = fields[images[each["image_id"]]]["objects.json"]
        for name in _OBJECT:
            objects[name].append(entry[name])
    for each in sorted(captions.get("annotations", ()), key=lambda one: int(one["id"])):
        fields[images[each["image_id"]]]["captions.json"].append(each["caption"])
    return fields


def _read(file: Path) -> Any:
    """The content of an annotation file, {} without one."""
    if not file.is_file():
        return {}
    content = read_json(file)
    if not isinstance(content, dict) or not {"images", "annotations"} <= set(content):
        raise SourceError(f"{file} is not a file of COCO's: expected images and annotations")
    return content


if __name__ == "__main__":
    sys.exit(main())
