"""An S3 server for all tests of this folder, a bucket for each, and a proxy with faults before it."""

import itertools
from collections.abc import Iterator

import pytest
from object_store import ENVIRONMENT, Bucket, FaultProxy, moto

pytest.importorskip("obstore", reason="needs iofast[remote]")
pytest.importorskip("moto", reason="needs moto[s3,server]")

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    with moto() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, to which the environment points."""
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": s3}.items():
        monkeypatch.setenv(name, value)
    made = Bucket(s3, f"bucket-{next(_numbers)}")
    made.request("PUT")
    return made


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the bucket's server, to which the environment points."""
    made = FaultProxy(bucket.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    yield made
    made.close()
