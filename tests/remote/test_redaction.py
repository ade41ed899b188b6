"""Nothing of an error of obstore gets through but known words."""

from __future__ import annotations

import logging
import traceback

import pytest
from object_store import ENVIRONMENT, Bucket, Fault, FaultProxy

from iofast.errors import IofastError, StorageError
from iofast.remote.failures import ShortAnswerError, cause_of, failure_of
from iofast.remote.limits import RequestLimits
from iofast.remote.store import Store

pytest.importorskip("obstore")
from obstore import exceptions

SECRET = "S3CR3TdeadBEEF"

TEXTS = [
    f"Generic MicrosoftAzure error: Error performing GET https://a.blob.core.windows.net/c/x?sv=1&sig={SECRET} - "
    "Server returned non-2xx status code: 500 Internal Server Error: ",
    f"Generic S3 error: Error performing GET https://b/x?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET} - "
    "HTTP error: error sending request",
    f"status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{SECRET}</AWSAccessKeyId>"
    f"<StringToSign>{SECRET}</StringToSign><SignatureProvided>{SECRET}</SignatureProvided></Error>",
    f"status code: 400 Bad Request: <Error><Code>InvalidToken</Code><Token-0>{SECRET}</Token-0></Error>",
    f"status code: 401: <Error><Code>{SECRET}!</Code></Error>",
    f"Error performing token request: Authorization: Bearer {SECRET}",
    f'reqwest::Error {{ kind: Request, url: "https://user:{SECRET}@host/x", source: TimedOut }} kind: Timeout',
    f"{SECRET}\n{SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
]
KINDS = [
    exceptions.GenericError,
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.PreconditionError,
    exceptions.AlreadyExistsError,
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    FileNotFoundError,
    ValueError,
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_of_an_error(kind: type[Exception], text: str) -> None:
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
        (
            "status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>",
            "403 forbidden, RequestTimeTooSkewed",
            False,
        ),
        ("status code: 400: <Code>RequestTimeout</Code>", "400 bad request, RequestTimeout", True),
        ("kind: Timeout", "no answer in time", True),
        ('ConnectError("dns error"', "host name not found", True),
        ("InvalidContentType", "the secure connection failed", False),
        ("kind: Connect, error: InvalidCertificate(UnknownIssuer)", "the server's certificate is not trusted", False),
        (
            "Server returned error response: <Error><Code>InternalError</Code>",
            "the request failed, InternalError",
            True,
        ),
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
