"""Targets and options that packing into an object store refuses, before it sends a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iofast.errors import OptionError
from iofast.packing import pack


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("s3://bucket/x.lmdb", {}, "an LMDB file is not made in an object store: expected .tar, .tfrecord"),
        ("s3://bucket/x.tar", {"on": "ray"}, "on=ray needs a local target"),
        ("s3://bucket/x.zip", {}, "the suffix of 'x.zip' does not say what to make"),
        ("s3://bucket/", {}, "the suffix of '' does not say"),
        ("https://host/x.tar", {}, "a web server takes no files"),
        ("s3://user:secret@bucket/x.tar", {}, "credentials in a URL are refused"),
        ("ftp://host/x.tar", {}, "expected a URL of s3://"),
    ],
)
def test_refusals(tmp_path: Path, url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        pack(tmp_path, url, **options)
    assert "secret" not in str(raised.value)
