"""COCO: images with their boxes, masks and captions as fields.

    SOURCE/train2017/*.jpg, SOURCE/val2017/*.jpg
    SOURCE/annotations/instances_train2017.json, captions_train2017.json, …     (either may be missing)

Fields: `boxes.json`, a list of [left, top, right, bottom] in pixels; `categories.json`, the index of each box's
category; `objects.json`, for each box COCO's id, area, iscrowd and segmentation (polygons, or run lengths); and
`captions.json`, a list of texts. `categories.json` counts from 0 in the order of COCO's ids, whose gaps are closed; the
names stand in the manifest's recipe as `categories`. Images without annotations are packed too. Nothing is resized, so
coordinates stay true.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from iofast import open_writer
from iofast.errors import SourceError
from tools.recipes.listed import image_record, images_in, parser

SPLITS = ("train", "val")


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, pixels=False)
    options.add_argument("--year", default="2017")
    args = options.parse_args(argv)
    pack_coco(args.source, args.target, args.year, overwrite=args.overwrite)
    return 0


def pack_coco(source: Path, target: Path, year: str = "2017", *, overwrite: bool = False) -> None:
    """Splits train and val, images in the order of their names. Raises `SourceError` for a file that is not COCO's."""
    splits = [split for split in SPLITS if (source / f"{split}{year}").is_dir()]
    if not splits:
        raise SourceError(f"{source} has no folder train{year} or val{year}")
    instances = {split: _read(source / "annotations" / f"instances_{split}{year}.json") for split in splits}
    captions = {split: _read(source / "annotations" / f"captions_{split}{year}.json") for split in splits}
    names = {each["id"]: each["name"] for said in instances.values() for each in said.get("categories", ())}
    numbers = {identity: number for number, identity in enumerate(sorted(names))}
    recipe = {"categories": [names[identity] for identity in sorted(names)]}
    with open_writer(target, recipe=recipe, overwrite=overwrite) as writer:
        for split in splits:
            folder = source / f"{split}{year}"
            fields = _fields(instances[split], captions[split], numbers)
            for path in images_in(folder):
                said = {"json": {"path": f"{folder.name}/{path.name}"}, **fields[path.name]}
                writer.write({**image_record(path.read_bytes()), **said}, split)


def _fields(instances: Any, captions: Any, numbers: dict[int, int]) -> dict[str, dict[str, Any]]:
    """The fields of each image, by its file's name."""
    kinds = ["boxes.json", "categories.json", "objects.json"] if instances else []
    kinds += ["captions.json"] if captions else []
    fields: dict[str, dict[str, Any]] = defaultdict(lambda: {kind: [] for kind in kinds})
    images = {each["id"]: each["file_name"] for said in (instances, captions) for each in said.get("images", ())}
    for each in sorted(instances.get("annotations", ()), key=lambda one: int(one["id"])):
        own = fields[images[each["image_id"]]]
        left, top, width, height = each["bbox"]
        own["boxes.json"].append([left, top, left + width, top + height])
        own["categories.json"].append(numbers[each["category_id"]])
        kept = ("id", "area", "iscrowd", "segmentation")
        own["objects.json"].append({name: each[name] for name in kept if name in each})
    for each in sorted(captions.get("annotations", ()), key=lambda one: int(one["id"])):
        fields[images[each["image_id"]]]["captions.json"].append(each["caption"])
    return fields


def _read(file: Path) -> Any:
    """What an annotation file says, {} where there is none."""
    if not file.is_file():
        return {}
    said = json.loads(file.read_bytes())
    if not isinstance(said, dict) or not {"images", "annotations"} <= set(said):
        raise SourceError(f"{file} has no images and annotations, as COCO's files do")
    return said


if __name__ == "__main__":
    sys.exit(main())
