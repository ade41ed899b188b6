"""Fixtures of the tests of meters and telemetry pages."""

from collections.abc import Callable

import pytest
from stall_loaders import Time

from iofast.meter import LoaderReport, pages


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """A clock that the test sets, on a system that does not count how long a thread waits for a processor."""
    monkeypatch.setattr("iofast.meter.clock._queued_ns", lambda: None)
    return Time()


@pytest.fixture
def reported(own_page: object, monkeypatch: pytest.MonkeyPatch) -> Callable[[], LoaderReport]:
    """Returns the only loader of the only page, which is written at the end of every epoch, however short."""
    monkeypatch.setattr("iofast.meter.clock.END_NS", 0)

    def only_loader() -> LoaderReport:
        ((loader,),) = (page.loaders for page in pages())
        return loader

    return only_loader
