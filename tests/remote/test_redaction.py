"""URLs of objects and of targets; credentials are refused without being repeated, and are in no error of obstore."""

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from object_store import ENVIRONMENT, Bucket, Fault, FaultProxy
from obstore import exceptions

from iofast import open_reader
from iofast.errors import IofastError, OptionError, SourceError, StorageError
from iofast.packing import pack
from iofast.remote.failures import ShortAnswerError, cause_of, failure_of
from iofast.remote.limits import RequestLimits
from iofast.remote.store import Store
from iofast.remote.urls import RemotePath
from iofast.source import SourceOptions
from iofast.source.scan import scan

SECRET = "S3CR3TdeadBEEF"

TEXTS = [
    f"Error performing GET https://a.blob.core.windows.net/c/x?sv=1&sig={SECRET} - status code: 500 Internal Server: ",
    f"Error performing GET https://b/x?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET} - error sending request",
    f"status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{SECRET}</AWSAccessKeyId>"
    f"<StringToSign>{SECRET}</StringToSign><SignatureProvided>{SECRET}</SignatureProvided></Error>",
    f"status code: 401: <Error><Code>{SECRET}!</Code></Error>",
    f"Error performing token request: Authorization: Bearer {SECRET}",
    f'reqwest::Error {{ kind: Request, url: "https://user:{SECRET}@host/x", source: TimedOut }} kind: Timeout',
    f"{SECRET}\n{SECRET}",
]
KINDS = [getattr(exceptions, name) for name in dir(exceptions) if name.endswith("Error")]


@pytest.mark.parametrize("kind", [*KINDS, FileNotFoundError, ValueError])
def test_no_secret_of_an_error(kind: type[Exception]) -> None:
    for text in TEXTS:
        failure, _ = failure_of(kind(text), "s3://bucket/x", "cannot be read", 300)
        assert isinstance(failure, IofastError)
        assert "s3://bucket/x" in str(failure)
        assert SECRET not in str(failure)
        assert SECRET not in repr(failure.__dict__)


@pytest.mark.parametrize(
    ("text", "reason", "transient"),
    [
        ("status code: 503 Service Unavailable: <Code>SlowDown</Code>", "503 service unavailable, SlowDown", True),
        ("status code: 499 Odd", "499", False),
        ("status code: 403: <Code>RequestTimeTooSkewed</Code>", "403 forbidden, RequestTimeTooSkewed", False),
        ("status code: 400: <Code>RequestTimeout</Code>", "400 bad request, RequestTimeout", True),
        ("kind: Timeout", "no answer in time", True),
        ('ConnectError("dns error"', "host name not found", True),
        ("InvalidContentType", "the secure connection failed", False),
        ("kind: Connect, error: InvalidCertificate(UnknownIssuer)", "the server's certificate is not trusted", False),
        ("error response: <Error><Code>InternalError</Code>", "the request failed, InternalError", True),
        ("http://169.254.169.254/x status code: 403", "no credentials were found", False),
        ("retries: 0, retry_timeout: 180s", "the request failed", True),
    ],
)
def test_reasons(text: str, reason: str, transient: bool) -> None:
    cause = cause_of(exceptions.GenericError(text))
    assert (cause.reason, cause.attempts > 8) == (reason, transient)


def test_short_answers() -> None:
    failure, attempts = failure_of(ShortAnswerError(), "s3://bucket/x", "cannot be read", 300)
    assert "too short, for 300 s" in str(failure)
    assert attempts > 8


def test_a_traceback_has_no_secret(bucket: Bucket, proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the error nor what it came from; the server repeats the key, as S3 does."""
    body = f"<Error><Code>SignatureDoesNotMatch</Code><StringToSign>{SECRET}</StringToSign></Error>".encode()
    proxy.plan = lambda _: Fault(status=403, body=body)
    with caplog.at_level(logging.DEBUG), pytest.raises(StorageError) as caught:
        Store.of(f"s3://{bucket.name}", RequestLimits(patience=1)).get("x")
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "403 forbidden, SignatureDoesNotMatch" in shown
    for secret in (SECRET, *(value for name, value in ENVIRONMENT.items() if "KEY" in name)):
        assert secret not in shown
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


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


SIGNED = f"https://account.blob.core.windows.net/c/a.jpg?sv=2024&sig={SECRET}"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIA:{SECRET}@bucket/photos",
        f"https://user:{SECRET}@host/a.jpg",
        SIGNED,
        f"az://container/a.jpg?sig={SECRET}",
        f"s3://bucket/a.jpg?x-amz-security-token={SECRET}",
        f"s3://bucket/a.jpg?AWSAccessKeyId={SECRET}",
        f"https://storage.googleapis.com/b/a.jpg?X-Goog-Signature={SECRET}",
        f"https://host/a.jpg?anything={SECRET}",
        f"https://host/a.jpg#{SECRET}",
        f"ftp://user:{SECRET}@host/a.jpg",
    ],
)
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        RemotePath.of(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("way", ["source", "target", "manifest", "mask", "reader", "shards"])
def test_credentials_are_refused_everywhere(tmp_path: Path, way: str) -> None:
    manifest, out = tmp_path / "list.csv", tmp_path / "out.lmdb"
    manifest.write_text(f"path,mask\n{SIGNED},\n" if way == "manifest" else f"path,mask\nx.jpg,{SIGNED}\n")
    calls: dict[str, Callable[[], object]] = {
        "source": lambda: pack(SIGNED, out),
        "target": lambda: pack(tmp_path, f"s3://a:{SECRET}@b/x.tar"),
        "manifest": lambda: pack(manifest, out),
        "mask": lambda: scan(manifest, SourceOptions(mask_column="mask")),
        "reader": lambda: open_reader(f"https://host/x.tar?sig={SECRET}"),
        "shards": lambda: open_reader(f"s3://a:{SECRET}@b/x-[01].tar"),
    }
    with pytest.raises(OptionError) as caught:
        calls[way]()
    assert SECRET not in "".join(traceback.format_exception(caught.value, limit=0))
    assert ("list.csv, line 2" in str(caught.value)) == (way in ("manifest", "mask"))
    assert list(tmp_path.iterdir()) == [manifest]


@pytest.mark.parametrize(
    ("source", "target", "options", "words"),
    [
        ("s3:///key", "x.lmdb", {}, "bucket"),
        ("s3://bucket/../other", "x.lmdb", {}, "other"),
        (Path("s3://bucket/photos"), "x.lmdb", {}, "a Path loses one"),
        ("s3://bucket/train.tar", "x.lmdb", {}, r"s3://bucket/train\.tar is a container"),
        ("https://host/photos/", "x.lmdb", {}, "no listing; name its files in a manifest"),
        ("", "s3://bucket/x.lmdb", {}, "an LMDB file is not made in an object store: expected .tar, .tfrecord"),
        ("", "s3://bucket/x.tar", {"on": "ray"}, "on=ray needs a local target"),
        ("", "s3://bucket/x.zip", {}, "the suffix of 'x.zip' does not say what to make"),
        ("", "https://host/x.tar", {}, "a web server takes no files"),
        ("", "ftp://host/x.tar", {}, "expected a URL of s3://"),
    ],
)
def test_refusals(tmp_path: Path, source: str | Path, target: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((OptionError, SourceError), match=words):
        pack(source or tmp_path, target if "://" in target else tmp_path / target, **options)
