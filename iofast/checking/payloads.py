"""`PayloadCheck`: read payloads, compare them with their checksums, and decode every image, slice by slice."""

import contextlib

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.checking.problems import Findings
from iofast.containers.base import Failures, Located, Reader
from iofast.containers.columns import ABSENT
from iofast.errors import DecodeError
from iofast.kernel import memory
from iofast.kernel.contract import Header, TranscodeRecipe
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, RAW_FIELDS, image_field, raw_length

SLICE_BYTES = 16 << 20  # bytes of payloads that one thread reads before it decodes them
SLICE_RECORDS = 256

_KEPT = TranscodeRecipe(format="keep")  # decodes without any change
_MASKS = ("png", "jpg", "jpeg", "webp")  # the last part of names such as `seg.png`


class PayloadCheck:
    """Checks slices of records, in any number of threads. `own`: iofast wrote the container."""

    def __init__(self, reader: Reader, findings: Findings, *, decode: bool, own: bool) -> None:
        self._reader, self._findings, self._decode, self._strict = reader, findings, decode, own

    def check(self, indices: NDArray[np.int64]) -> int:
        """Check all payloads of these records; returns the bytes that were read."""
        image, read = image_field(self._reader.manifest.fields), 0
        for name in self._reader.manifest.fields:
            located, failed = None, Failures()
            with contextlib.suppress(KeyError):  # in no file, like path and label of a plain folder
                located = self._reader.locate(indices, name)
            values = self._reader.values(indices, name, failed=failed)
            for row, error in sorted(failed.items()):
                offset = None if located is None else int(located.offset[row])
                self._findings.add(str(error), int(indices[row]), name, offset)
            if located is None:
                continue
            size = sum(len(value) for value in values if value is not None)
            there = int((located.file != ABSENT).sum())
            sums = 0 if located.crc is None else there
            self._findings.count(checked=sums, unchecked=there - sums, bytes=size)
            read += size
            self._look(name, located, values, image)
        return read

    def _look(self, name: str, located: Located, values: list[bytes | None], image: str | None) -> None:
        """Compare labels and raw pixels with the index, and decode images."""
        decodes = self._decode and (name in IMAGE_FIELDS or name.rpartition(".")[2] in _MASKS)
        own = self._own(located, name, image) if decodes and name in IMAGE_FIELDS else None
        for row, value in enumerate(values):
            reason, offset = "", int(located.offset[row])
            if value is None:
                continue
            if name == LABEL_FIELD:
                label = int(located.label[row])
                if self._strict and value != b"%d" % label:  # in other programs' containers it need not be a number
                    reason = f"{LABEL_FIELD} is {value!r:.40}, but the index has label {label}"
            elif name in RAW_FIELDS:
                width, height = int(located.width[row]), int(located.height[row])
                if len(value) != (expected := raw_length(width, height)):
                    reason = f"{name} has {len(value)} bytes, {width}×{height} needs {expected}"
            elif decodes and (wrong := self._decoded(value, located, row, own is not None and bool(own[row]))):
                reason = f"{name} at offset {offset}: {wrong}"
            if reason:
                self._findings.add(reason, int(located.indices[row]), name, offset)

    def _own(self, located: Located, name: str, image: str | None) -> NDArray[np.bool_]:
        """Which of these payloads are their record's image: the index has the size of this one."""
        if name == image:
            return np.ones(len(located.indices), np.bool_)
        best = self._reader.locate(located.indices)
        same: NDArray[np.bool_] = (best.offset == located.offset) & (best.file == located.file)
        return same

    def _decoded(self, value: bytes, located: Located, row: int, is_image: bool) -> str:
        """Decode an image, and return what is wrong with it, or with the index's size if it is the record's image."""
        try:
            header = kernel.read_header(value)
            if is_image and (reason := _contradiction(header, located, row)):
                return reason
            with memory.reserved(memory.of_whole(header)):
                kernel.transcode(value, _KEPT)
        except DecodeError as error:
            return str(error)
        self._findings.count(images=1)
        return ""


def _contradiction(header: Header, located: Located, row: int) -> str:
    """The difference between the image's header and the index; empty if there is none."""
    index = tuple(int(column[row]) for column in (located.width, located.height, located.orientation))
    found = (header.width, header.height, header.orientation)
    if index == found or index[:2] == (0, 0):  # unknown
        return ""
    words = [f"{width}×{height} pixels, orientation {orientation}" for width, height, orientation in (found, index)]
    return f"the image has {words[0]}, but the index has {words[1]}"
