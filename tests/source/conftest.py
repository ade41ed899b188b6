"""Every test here has an empty cache folder of its own."""

from pathlib import Path

import pytest
from folder_images import make_folder


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of cached indexes; it does not exist yet."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "iofast"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """See `make_folder`."""
    return make_folder(tmp_path)
