"""Where a loader decodes its JPEGs: the choice, and the device's decoder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch

from iofast.errors import OptionError, StateError, reason_of, shown
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.libraries import lacking, open_decoder
from iofast.gpu.decode.share import WHOLE, Rates, Split, balanced, chosen, explained
from iofast.machine import cores_of_rank

Wanted = Literal["cpu", "gpu", "split", "auto"] | Split

_CORES_PER_THREAD = 4  # the library gets one thread per so many cores; the others decode or launch training's kernels

_log = logging.getLogger("iofast")


class Decoding:
    """The choice for one loader, and its decoder on the device.

    `share` is the CPU's part of each batch in thousandths, None until measured. `description` says where the loader
    decodes and why, in one line. `obstacles` are reasons why this loader cannot decode on a device.
    """

    def __init__(self, wanted: Wanted, device: torch.device, obstacles: Iterator[str]) -> None:
        self._wanted: Wanted = wanted
        self._device = device
        self._decoder: DeviceDecoder | None = None
        self._opening, self._settling = threading.Lock(), threading.Lock()
        self.share: int | None = WHOLE
        self._reason = "on the CPU"
        if wanted == "cpu":
            return
        obstacle = lacking(device) or next(obstacles, None)
        if obstacle is not None:
            if wanted != "auto":
                raise OptionError(f"decode={wanted!r} is not available: {obstacle}")
            self._reason = f"on the CPU: {obstacle}"
            return
        self.share = 0 if wanted == "gpu" else self._split.share
        self._reason = "still to be measured"
        if self.share is not None:
            self._reason = f"{self.share / WHOLE:.1%} on the CPU, as given" if self.share else "on the device"

    @property
    def on_device(self) -> bool:
        """Whether the device decodes anything, as far as is known by now."""
        return self.share != WHOLE

    @property
    def description(self) -> str:
        """Where decoding is done, and why, in one line."""
        return f"{self._reason} ({self._decoder.backend.name})" if self._decoder and self.on_device else self._reason

    @property
    def splits(self) -> bool:
        """Whether each batch is divided by a fixed share."""
        return self._wanted == "split" or isinstance(self._wanted, Split)

    @property
    def _split(self) -> Split:
        return self._wanted if isinstance(self._wanted, Split) else Split()

    def option(self) -> Wanted:
        """Return the option for a copy of the loader: a measured share stays."""
        if not self.splits or self.share is None:
            return self._wanted
        return Split(self.share / WHOLE, self._split.cores)

    def workers(self, cores: int) -> int:
        """Return how many of `cores` may decode."""
        return max(1, int(cores * self._split.cores)) if self.splits else cores

    def decoder(self) -> DeviceDecoder:
        """Return the device's decoder, opened at the first call. Its device must be the current one."""
        with self._opening:
            if self._decoder is None:
                threads = max(1, cores_of_rank() // _CORES_PER_THREAD)
                self._decoder = open_decoder(self._device, threads)
            return self._decoder

    def settle(self, measure: Callable[[], Rates]) -> None:
        """Determine the share before the first batch, once; concurrent consumers wait for the result."""
        with self._settling:
            if self.share is not None:
                return
            try:
                rates = measure()
            except Exception as error:  # no library works, or the device has too little memory
                if self.splits:
                    raise
                self._reason, self.share = f"on the CPU: {reason_of(error)}", WHOLE
            else:
                share = balanced(rates) if self.splits else chosen(rates)
                self._reason, self.share = explained(rates, share), share
            _log.info("decode=%r: %s", self._wanted, self.description)

    def state(self) -> dict[str, Any]:
        """Return the part of a loader's state: a share that is known, because pixels depend on it."""
        return {"split": self.share} if self.splits and self.share is not None else {}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take the share of a state. Raises `StateError` if it is invalid or differs from this loader's option."""
        if not self.splits or "split" not in state:
            return
        share = state["split"]
        if not isinstance(share, int) or isinstance(share, bool) or not 0 <= share <= WHOLE:
            raise StateError(f"split of a loader's state must be a whole number up to {WHOLE}, found {shown(share)}")
        if self._split.share not in (None, share):
            raise StateError(
                f"the state has another split: expected {self._split.share} of {WHOLE} positions on the CPU, "
                f"found {share}"
            )
        self.share, self._reason = share, f"{share / WHOLE:.1%} on the CPU, as in the state"
