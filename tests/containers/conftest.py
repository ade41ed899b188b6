"""One container of each kind for all tests of this folder."""

from pathlib import Path

import pytest
import tar_sets
from container_sets import SUFFIXES
from lmdb_containers import samples


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Suffix → 300 records with holes in their keys, two splits, large and small payloads. Do not change them."""
    paths = {suffix: tmp_path_factory.mktemp(suffix[1:]) / f"out{suffix}" for suffix in SUFFIXES}
    for path in paths.values():
        tar_sets.build(path, samples(), tar_sets.CLASSES)
    return paths


@pytest.fixture(scope="session", params=SUFFIXES)
def each_container(request: pytest.FixtureRequest, containers: dict[str, Path]) -> Path:
    return containers[request.param]


@pytest.fixture(scope="session")
def lmdb_file(containers: dict[str, Path]) -> Path:
    return containers[".lmdb"]


@pytest.fixture(scope="session")
def tar_set(containers: dict[str, Path]) -> Path:
    return containers[".tar"]


@pytest.fixture(scope="session")
def tfrecord_set(containers: dict[str, Path]) -> Path:
    return containers[".tfrecord"]
