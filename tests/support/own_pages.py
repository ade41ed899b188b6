"""The telemetry page of this process, for tests that begin without one."""

from iofast.meter import page_files


def close_page() -> None:
    """Remove this process's page. A loader that publishes later makes a new one."""
    page_files._process.end()
    page_files._begin()
