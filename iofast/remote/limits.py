"""How long requests to object stores may take: the one place of time-outs and retries."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from iofast.errors import OptionError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

VARIABLE = "IOFAST_STORAGE_LIMITS"
_UPLOAD_RETRIES = 10  # of an upload's part in `obstore`; without them the whole upload would begin anew
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 15.0  # seconds between attempts


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits in seconds. Raises `OptionError` for values that are not above 0.

    `connect`: to reach a server. `read`: until more bytes of an answer arrive. `write`: until a server answers to an
    upload, a copy or the end of an upload. `patience`: from the first attempt until an operation fails.
    """

    connect: float = 5.0
    read: float = 10.0
    write: float = 120.0
    patience: float = 300.0

    def __post_init__(self) -> None:
        for each in fields(self):
            if not 0 < getattr(self, each.name) < 1e6:
                raise OptionError(f"{VARIABLE}: {each.name} must be a number of seconds above 0")

    @classmethod
    def of_environment(cls) -> Self:
        """The limits in `IOFAST_STORAGE_LIMITS`, such as `patience=60,read=20`; others have their defaults."""
        names, values = {each.name for each in fields(cls)}, dict[str, float]()
        for part in filter(None, os.environ.get(VARIABLE, "").split(",")):
            name, _, number = part.strip().partition("=")
            try:
                values[name] = float(number)
            except ValueError:
                values[name] = -1
            if name not in names:
                raise OptionError(f"{VARIABLE}: expected {', '.join(sorted(names))}, found {name!r}")
        return cls(**values)

    def wait(self, attempt: int, chance: float) -> float:
        """Seconds to wait after failed attempt 0, 1, …: exponential, with a jitter from `chance` in [0, 1)."""
        return min(_LONGEST_WAIT, _FIRST_WAIT * float(2 ** min(attempt, 10))) * (0.5 + chance / 2)

    def client(self, *, writes: bool, allow_http: bool) -> ClientConfig:
        """Options of the HTTP client. The time of a whole request is bounded by the patience alone."""
        return {
            "connect_timeout": timedelta(seconds=self.connect),
            "read_timeout": timedelta(seconds=self.write if writes else self.read),
            "timeout": timedelta(seconds=max(self.patience, self.write)),
            "allow_http": allow_http,
        }

    def retries(self, *, repeats: bool) -> RetryConfig:
        """Options for attempts within `obstore`; without `repeats` there is one attempt, as `Store` counts them."""
        return {
            "max_retries": _UPLOAD_RETRIES if repeats else 0,
            "retry_timeout": timedelta(seconds=self.patience),
            "backoff": {
                "init_backoff": timedelta(seconds=_FIRST_WAIT),
                "max_backoff": timedelta(seconds=_LONGEST_WAIT),
                "base": 2,
            },
        }
