"""URLs of objects, and that credentials in them are refused without being repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from iofast.errors import OptionError, SourceError
from iofast.packing import pack
from iofast.remote.urls import RemotePath, is_url, join, redacted
from iofast.source import SourceOptions
from iofast.source.scan import scan

SECRET = "S3CR3T"


@pytest.mark.parametrize(
    ("url", "store", "key"),
    [
        ("s3://bucket/photos/", "s3://bucket", "photos"),
        ("s3://bucket", "s3://bucket", ""),
        ("S3://bucket/a b/ü?#%41.jpg", "s3://bucket", "a b/ü?#%41.jpg"),
        ("gs://bucket/a", "gs://bucket", "a"),
        ("az://container/a/../b", "az://container", "b"),
        ("https://Host.example:8080/a%20b/%C3%BC.jpg", "https://host.example:8080", "a b/ü.jpg"),
    ],
)
def test_urls(url: str, store: str, key: str) -> None:
    assert RemotePath.of(url) == (store, key)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIA:{SECRET}@bucket/photos",
        f"https://user:{SECRET}@host/a.jpg",
        f"https://{SECRET}@host/a.jpg",
        f"https://account.blob.core.windows.net/c/a.jpg?sv=2024&sig={SECRET}",
        f"az://container/a.jpg?sig={SECRET}",
        f"https://b.s3.amazonaws.com/a.jpg?X-Amz-Signature={SECRET}&X-Amz-Credential=AKIA",
        f"s3://bucket/a.jpg?x-amz-security-token={SECRET}",
        f"s3://bucket/a.jpg?AWSAccessKeyId={SECRET}",
        f"https://storage.googleapis.com/b/a.jpg?X-Goog-Signature={SECRET}",
        f"https://host/a.jpg?token={SECRET}",
        f"https://host/a.jpg?anything={SECRET}",
        f"https://host/a.jpg#{SECRET}",
        f"ftp://user:{SECRET}@host/a.jpg",
    ],
)
@pytest.mark.parametrize("way", ["url", "source", "manifest", "manifest_mask"])
def test_credentials_are_refused_and_not_repeated(tmp_path: Path, url: str, way: str) -> None:
    manifest, out = tmp_path / "list.csv", tmp_path / "out.lmdb"
    manifest.write_text(f"path,mask\n{url},\n" if way == "manifest" else f"path,mask\nx.jpg,{url}\n")
    calls: dict[str, Callable[[], object]] = {
        "url": lambda: RemotePath.of(url),
        "source": lambda: pack(url, out),
        "manifest": lambda: pack(manifest, out),
        "manifest_mask": lambda: scan(manifest, SourceOptions(mask_columns=("mask",))),
    }
    with pytest.raises(OptionError) as caught:
        calls[way]()
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or SECRET not in str(caught.value.__context__)
    if way.startswith("manifest"):
        assert "list.csv, line 2" in str(caught.value)
    assert not [path for path in tmp_path.iterdir() if path != manifest]


@pytest.mark.parametrize("url", ["s3:///key", "s3://bucket/../other", "abc://bucket/x"])
def test_what_is_no_url_of_an_object(url: str) -> None:
    with pytest.raises(OptionError):
        RemotePath.of(url)


def test_a_path_that_lost_a_slash(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a Path loses one"):
        pack(Path("s3://bucket/photos"), tmp_path / "out.lmdb")


def test_containers_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"s3://bucket/train\.tar is a container"):
        pack("s3://bucket/train.tar", tmp_path / "out.lmdb")


@pytest.mark.parametrize(
    ("root", "path", "joined"),
    [
        ("/data", "a/b.jpg", "/data/a/b.jpg"),
        ("/data", "/x/b.jpg", "/x/b.jpg"),
        ("/data", "s3://bucket/b.jpg", "s3://bucket/b.jpg"),
        ("s3://bucket/data", "a/b.jpg", "s3://bucket/data/a/b.jpg"),
        ("s3://bucket/data/", "/x/b.jpg", "/x/b.jpg"),
    ],
)
def test_join(root: str, path: str, joined: str) -> None:
    assert join(root, path) == joined


def test_small_things() -> None:
    assert is_url("s3://b/k")
    assert not is_url("/a/b")
    assert not is_url(b"c:/x")
    assert redacted("https://u:p@h/a?sig=x#y") == "https://h/a?…"
    assert str(RemotePath.of("s3://b/k/")) == "s3://b/k"
