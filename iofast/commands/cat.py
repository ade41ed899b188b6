"""Show the fields of one record, or write the bytes of one field to stdout.

examples:
  iofast cat out.lmdb 42                          the fields of record 42, counted from 0
  iofast cat out.lmdb 00000042                    the record with this key
  iofast cat out.lmdb 42 --field jpg > 42.jpg     the image, byte by byte
  iofast cat out.lmdb 42 --field json | jq .path
"""

import argparse
import sys
from typing import Any

import numpy as np

from iofast.commands.shared import add_foreign, add_output, answer, foreign_given, refuse_beside, say, size
from iofast.containers.base import Reader
from iofast.containers.changed import follow
from iofast.containers.located import steps
from iofast.errors import OptionError
from iofast.opening import open_reader
from iofast.record import Record, image_field

_SHOWN = 200  # characters of a text field in the listing


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("path", metavar="CONTAINER", help="a container, or a folder of images")
    parser.add_argument("record", metavar="INDEX|KEY", help="place in the order, from 0, or a key (00000042)")
    parser.add_argument("--field", metavar="NAME", help="write the bytes of this field to stdout")
    add_foreign(parser)
    as_json = "print the record as JSON, text fields with their values"
    add_output(parser, as_json, "print nothing; exit status 0 if the record can be read")


def run(args: argparse.Namespace) -> int:
    """Print the record, or write the field."""
    refuse_beside(args, "field", ("json",))
    with open_reader(args.path, foreign_given(args)) as reader:
        index = find(reader, args.record)
        if args.field is not None:
            try:
                payload = bytes(reader.view(index, args.field))
            except KeyError:
                fields = ", ".join(reader.record(index).fields)
                raise OptionError(f"{reader.name(index)} has no field {args.field!r}, only {fields}") from None
            if not args.quiet:
                _write(payload, args.field)
            return 0
        record = reader.record(index)
        facts = describe(reader, index, record)
    answer(args, facts, lambda: _show(facts, record))
    return 0


def find(reader: Reader, text: str) -> int:
    """Return the dense index of a record by its place or its key. Raises `OptionError` if there is none."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
    is_place = number >= 0 and text == str(number)
    if is_place and len(text) < reader.manifest.key_width:
        if number < len(reader):
            return number
        raise OptionError(f"record {number} is not in 0 … {len(reader) - 1} of {reader.manifest.count} records")
    if (index := _index_of_key(reader, text)) is not None:
        return index
    if is_place and number < len(reader):
        return number
    if not len(reader):
        raise OptionError("there are no records")
    raise OptionError(f"no record has the key {text!r:.80}; the first is {reader.record(0).key!r}")


def _index_of_key(reader: Reader, text: str) -> int | None:
    """Search all keys, which takes a quarter of a second for a million."""
    for indices in steps(0, len(reader)):
        keys = reader.keys(reader.columns(indices))
        if text in keys:
            return int(indices[keys.index(text)])
    return None


def describe(reader: Reader, index: int, record: Record) -> dict[str, Any]:
    """Return a record's JSON: its row of the index, and its fields with their sizes, and with their text."""
    located = reader.columns(np.array([index], np.int64))
    if (image := image_field(record.fields)) is not None:
        follow(reader, located, 0, record.fields[image])
    label = int(located.label[0])
    classes = reader.manifest.classes
    split = next((name for name, own in reader.manifest.splits.items() if any(a <= index < b for a, b in own)), None)
    fields = {}
    for name, payload in record.fields.items():
        text = _text(payload)
        fields[name] = {"bytes": len(payload)} | ({} if text is None else {"text": text})
    return {
        "index": index,
        "key": record.key,
        "name": reader.name(index),
        "split": split,
        "label": label if label >= 0 else None,
        "class": classes[label] if classes is not None and 0 <= label < len(classes) else None,
        "width": int(located.width[0]) or None,
        "height": int(located.height[0]) or None,
        "orientation": int(located.orientation[0]),
        "fields": fields,
    }


def _show(facts: dict[str, Any], record: Record) -> None:
    lines = [("key", facts["key"]), ("index", f"{facts['index']:,}"), ("split", facts["split"])]
    if facts["label"] is not None:
        lines.append(("label", f"{facts['label']}" + ("" if facts["class"] is None else f" ({facts['class']})")))
    if facts["width"]:
        turned = "" if facts["orientation"] == 1 else f", orientation {facts['orientation']} still to be applied"
        lines.append(("image", f"{facts['width']} x {facts['height']} pixels{turned}"))
    say(*(f"{name:<12}{value}" for name, value in lines))
    width = max(map(len, record.fields), default=0) + 2
    for name, payload in record.fields.items():
        text = facts["fields"][name].get("text")
        shown = "" if text is None else "  " + text[:_SHOWN] + (" …" if len(text) > _SHOWN else "")
        say(f"  {name:<{width}}{size(len(payload)):>8}{shown}")


def _write(payload: bytes, field: str) -> None:
    """Write to stdout. A terminal gets printable text only: other bytes may be commands to it."""
    if sys.stdout.isatty():
        text = _text(payload)
        if text is None or any(not character.isprintable() and character not in "\n\t" for character in text):
            raise OptionError(f"field {field} is not text: write it to a file (… --field {field} > FILE)")
        print(text)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(payload)
    sys.stdout.buffer.flush()


def _text(payload: bytes) -> str | None:
    """Decode UTF-8 without NUL; None for binary payloads."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
