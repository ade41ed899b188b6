"""The NVIDIA driver's library, asked through nvidia-ml-py: every question answers None where the driver does not.

What went wrong is kept as notes, one line for each GPU and reason, and goes away when the same question is answered
again. A question that a GPU does not support is put once. A driver that was restarted is opened anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, _IS_LOST = 3, 4, 13, 15
_NO_ANSWER_YET = {6, 21}  # not found, no data: an idle GPU has no samples
_DRIVER_GONE = {1, 9, 18}  # uninitialised, not loaded, another version than the library's
_ABSENT = {_IS_LOST, 16, 28, *_DRIVER_GONE}  # nothing else needs to be asked in this interval
_WORDS = {
    1: "the driver was restarted",
    _NOT_SUPPORTED: "not supported by this GPU or its mode",
    _NO_PERMISSION: "no permission",
    9: "the driver is not loaded",
    12: "libnvidia-ml.so.1 is not there (in a container: start it with --gpus all)",
    _FUNCTION_NOT_FOUND: "the driver is too old",
    _IS_LOST: "the GPU is lost (it fell off the bus, or was reset)",
    16: "the GPU needs a reset",
    18: "driver and library are of different versions (after an update: reboot)",
}
_RETRY_S = 5.0  # between attempts to open a driver that went away: opening takes it a second


@dataclass(frozen=True)
class Unit:
    """A GPU, or one MIG instance of it: then `whole` is the GPU's handle and `instance` the GPU instance's number."""

    index: int  # of the GPU, as the driver counts
    name: str
    uuid: str
    handle: Any
    whole: Any
    instance: int | None = None

    @property
    def label(self) -> str:
        return f"GPU {self.index}" if self.instance is None else f"GPU {self.index} instance {self.instance}"


class Driver:
    """An open driver library. Raises `DriverError` at the start only."""

    def __init__(self) -> None:
        try:
            import pynvml  # type: ignore[import-untyped]  # here: only who watches GPUs pays for it
        except ImportError:
            raise DriverError("GPUs are not seen: nvidia-ml-py is not installed") from None
        self.nvml: Any = pynvml
        self.openings = 1  # how often it was opened: handles and samples of an earlier one must not be used
        self._notes: dict[tuple[str, str], str] = {}  # (GPU, figure): reason
        self._refused: set[tuple[str, str]] = set()  # (uuid, function) that need not be asked again
        self._absent: set[str] = set()  # labels of GPUs that stopped answering in this enumeration
        self._known: dict[int, tuple[Unit, ...]] = {}  # by index of the GPU, as last seen
        self._gone = False
        self._retry_at = 0.0
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverError(f"GPUs are not seen: {reason(error)}") from None

    def notes(self) -> tuple[str, ...]:
        """A line for each GPU and reason: what it does not tell, and why."""
        lines: dict[tuple[str, str], list[str]] = {}
        for (label, figure), text in self._notes.items():
            lines.setdefault((label, text), []).append(figure)
        return tuple(f"{label}: no {', '.join(figures)}: {text}" for (label, text), figures in lines.items())

    def units(self) -> tuple[Unit, ...]:
        """What there is to ask now. A GPU that vanished stays in the list, answers nothing, and has its note."""
        self._absent.clear()
        if self._gone:
            self._reopen()
        count = None if self._gone else self.ask(None, "list of GPUs", "nvmlDeviceGetCount")
        if count is not None:
            for index in range(count):
                self._look_at(index)
        for index, units in self._known.items():
            if count is None or index >= count:
                self._absent.update(unit.label for unit in units)
        return tuple(unit for index in sorted(self._known) for unit in self._known[index])

    def ask(self, unit: Unit | None, figure: str, function: str, *arguments: Any) -> Any:
        """What `function` of nvidia-ml-py answers, or None. `figure` is what a note calls it."""
        label, key = ("the driver", ("", function)) if unit is None else (unit.label, (unit.uuid, function))
        if key in self._refused or label in self._absent:
            return None
        call = getattr(self.nvml, function, None)
        if call is None:  # an older nvidia-ml-py
            self._refused.add(key)
            self._notes[label, figure] = "nvidia-ml-py is too old"
            return None
        try:
            answer = call(*arguments)
        except self.nvml.NVMLError as error:
            self._failed(label, figure, key, error)
            return None
        except ValueError:  # text that is no UTF-8
            return None
        self._notes.pop((label, figure), None)
        return answer

    def note(self, unit: Unit, figure: str, text: str) -> None:
        """Say why `figure` is missing."""
        self._notes[unit.label, figure] = text

    def settle(self, unit: Unit, figure: str) -> None:
        """`figure` is not missing any more."""
        self._notes.pop((unit.label, figure), None)

    def absent(self, unit: Unit) -> bool:
        """Whether the GPU has stopped answering."""
        return unit.label in self._absent

    def close(self) -> None:
        """Let the library go. It may already be gone."""
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError:
            return

    def _failed(self, label: str, figure: str, key: tuple[str, str], error: Any) -> None:
        code = error.value
        if code in _NO_ANSWER_YET:
            return
        if code in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND):
            self._refused.add(key)
        if code in _DRIVER_GONE:
            self._gone = True
        if code in _ABSENT:
            self._absent.add(label)
            figure = "figures at all"
        self._notes[label, figure] = reason(error)

    def _reopen(self) -> None:
        if time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + _RETRY_S
        self.close()
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            self._notes["the driver", "figures at all"] = reason(error)
            return
        self._gone = False
        self.openings += 1
        self._refused.clear()
        self._notes.clear()

    def _look_at(self, index: int) -> None:
        """Note what the GPU with this index consists of now; where it does not answer, what it was stays known."""
        known = self._known.get(index, ())
        label = f"GPU {index}"
        unit = known[0] if known and known[0].instance is None else Unit(index, "", f"#{index}", None, None)
        handle = self.ask(unit, "handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            self._absent.update([label, *(one.label for one in known)])
            return
        self._notes.pop((label, "figures at all"), None)
        whole = Unit(index, unit.name, unit.uuid, handle, handle)
        name = self.ask(whole, "name", "nvmlDeviceGetName", handle) or unit.name or "GPU"
        uuid = self.ask(whole, "uuid", "nvmlDeviceGetUUID", handle) or unit.uuid
        whole = Unit(index, name, uuid, handle, handle)
        parts = self._instances(whole)
        if not self.absent(whole):
            self._known[index] = (whole,) if parts is None else parts

    def _instances(self, whole: Unit) -> tuple[Unit, ...] | None:
        """Its MIG instances; None where MIG is off, or unknown to the GPU."""
        try:
            if not self.nvml.nvmlDeviceGetMigMode(whole.handle)[0]:
                return None
        except self.nvml.NVMLError:  # GPUs without MIG say "not supported", which is worth no note
            return None
        found = []
        for number in range(self.ask(whole, "MIG instances", "nvmlDeviceGetMaxMigDeviceCount", whole.handle) or 0):
            handle = self.ask(whole, "MIG instances", "nvmlDeviceGetMigDeviceHandleByIndex", whole.handle, number)
            if handle is None:  # numbers have gaps
                continue
            instance = self.ask(whole, "MIG instances", "nvmlDeviceGetGpuInstanceId", handle)
            name = self.ask(whole, "name", "nvmlDeviceGetName", handle) or whole.name
            uuid = self.ask(whole, "uuid", "nvmlDeviceGetUUID", handle) or f"{whole.uuid}/{number}"
            if instance is not None:
                found.append(Unit(whole.index, name, uuid, handle, whole.handle, instance))
        return tuple(found)


class DriverError(Exception):
    """There is no driver to ask. The message is the line to show."""


def reason(error: Any) -> str:
    """An NVMLError in words."""
    return _WORDS.get(error.value, f"the driver answers {type(error).__name__}, code {error.value}")
