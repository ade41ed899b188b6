"""Pack COCO with boxes, masks and captions as fields: a list of images for `iofast.pack`. Adapt it to your annotations.

    python examples/pack_coco.py ./coco coco.tar --resize 640

    ./coco/train2017/*.jpg, ./coco/val2017/*.jpg
    ./coco/annotations/instances_train2017.json, captions_train2017.json, …     (either may be missing)

The field `objects.json` has lists with an entry for each object: `boxes`, [left, top, right, bottom] in pixels;
`categories`, numbers from 0 in the order of COCO's ids, whose gaps are closed; `segmentation`, its polygons, and `rle`,
COCO's run lengths of crowds, which keep their own size. Boxes and polygons are scaled with their images. The field
`captions.json` is a list of texts. The categories' names stand in the manifest's recipe.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from iofast import pack

LISTS = ("boxes", "categories", "iscrowd", "segmentation", "rle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, help="coco.lmdb, coco.tar or coco.tfrecord")
    parser.add_argument("--year", default="2017")
    parser.add_argument("--resize", type=int, help="short side in pixels (default: keep files as they are)")
    args = parser.parse_args()
    rows, names = [], list[str]()
    for split in ("train", "val"):
        found, names = listed(args.source, split, args.year, names)
        rows += found
    manifest = args.source / "iofast-list.jsonl"  # paths are relative to it
    manifest.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    boxes = "objects.json" if any("objects.json" in row for row in rows) else None
    print(pack(manifest, args.target, resize=args.resize, boxes=boxes, notes={"categories": names}).to_json())


def listed(source: Path, split: str, year: str, names: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The images of a split with their fields, and the names of the categories."""
    kinds = (f"{kind}_{split}{year}.json" for kind in ("instances", "captions"))
    instances, captions = (read(source / "annotations" / kind) for kind in kinds)
    if instances:
        names = [each["name"] for each in sorted(instances["categories"], key=lambda own: int(own["id"]))]
    identities = sorted(each["id"] for each in instances.get("categories", ()))
    objects: dict[int, dict[str, list[Any]]] = defaultdict(lambda: {name: [] for name in LISTS})
    texts = defaultdict[int, list[str]](list)
    for each in instances.get("annotations", ()):
        (left, top, width, height), shape = each["bbox"], each.get("segmentation", [])
        polygons, lengths = (shape, None) if isinstance(shape, list) else ([], shape)
        box = [left, top, left + width, top + height]
        entry = (box, identities.index(each["category_id"]), each["iscrowd"], polygons, lengths)
        for name, value in zip(LISTS, entry, strict=True):
            objects[each["image_id"]][name].append(value)
    for each in captions.get("annotations", ()):
        texts[each["image_id"]].append(each["caption"])
    known = {each["file_name"]: each["id"] for file in (instances, captions) for each in file.get("images", ())}
    rows = []
    for path in sorted((source / f"{split}{year}").glob("*.jpg")):
        fields: dict[str, Any] = {"objects.json": objects[known.get(path.name, -1)]} if instances else {}
        fields |= {"captions.json": texts[known.get(path.name, -1)]} if captions else {}
        rows.append({"path": f"{split}{year}/{path.name}", "split": split, **fields})
    return rows, names


def read(file: Path) -> dict[str, Any]:
    """An annotation file; empty without one."""
    return json.loads(file.read_text()) if file.is_file() else {}


if __name__ == "__main__":
    main()
