"""Turn errors of `obstore` into errors of iofast. Their texts quote URLs with signatures and what a server answered.

A reason is put together from known words alone: the status of HTTP, a server's error code, the kind of a transport
failure. Nothing else of the text is passed on.
"""

import re
from http import HTTPStatus
from typing import NamedTuple

from iofast.errors import IofastError, ObjectConflictError, ObjectMissingError, SourceError, StorageError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
# attempts: for credentials some, 10 seconds, since their server may be busy, but mostly there is none
_ONE, _FEW, _MANY = 1, 8, 1 << 30
# (what the text has, the reason, attempts that make sense); the first that fits
_TRANSPORT = (
    (r"169\.254\.|TokenRequest|security-credentials|Missing(Account|\w*Key)", "no credentials were found", _FEW),
    (r"kind: Timeout", "no answer in time", _MANY),
    (r"dns error", "host name not found", _MANY),
    (r"InvalidCertificate", "the server's certificate is not trusted", _ONE),
    (r"certificate|InvalidContentType|TLS", "the secure connection failed", _ONE),
    (r"ConnectionRefused", "connection refused", _MANY),
    (r"kind: Connect\b", "connection failed", _MANY),
    (r"kind: Interrupted|kind: Body|Content-Range", "the connection broke", _MANY),
    (r"BadScheme", "plain HTTP is refused", _ONE),
    (r"redirect|incorrectly configured region", "redirected: the region may be wrong", _ONE),
    (r"", "the request failed", _MANY),
)
_PHRASES = {int(each): each.phrase.lower() for each in HTTPStatus} | dict.fromkeys(
    (301, 307), "the region may be wrong"
)
_NO_STORE = ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted")  # a 404 that is not an object's
_TRANSIENT_CODES = ("SlowDown", "RequestTimeout", "InternalError", "ServerBusy", "OperationTimedOut")
_TRANSIENT = (408, 429)
_CREDENTIALS = re.compile(_TRANSPORT[0][0])  # requests for credentials have a status of their own


class FailureCause(NamedTuple):
    """Why a request failed: HTTP status (0 without an answer), reason, and how many attempts make sense.

    `lacks_store`: the bucket or container itself does not exist.
    """

    status: int
    reason: str
    attempts: int
    lacks_store: bool = False


def cause_of(error: BaseException) -> FailureCause:
    """The cause of an error of `obstore`."""
    text = str(error)
    status, found = _STATUS.search(text), _CODE.search(text)
    code = found[1] if found else ""
    after = f", {code}" if code else ""
    if status is None or _CREDENTIALS.search(text):
        reason, attempts = next((words, most) for pattern, words, most in _TRANSPORT if re.search(pattern, text))
        return FailureCause(0, reason + after, attempts)
    number = int(status[1])
    transient = code in _TRANSIENT_CODES or number in _TRANSIENT or number >= 500
    return FailureCause(
        number, f"{number} {_PHRASES.get(number, '')}".strip() + after, _MANY if transient else _ONE, code in _NO_STORE
    )


class ShortAnswerError(Exception):
    """An answer ended before its length."""


def failure_of(error: Exception, url: str, what: str, patience: float) -> tuple[IofastError, int]:
    """The error to raise for one of obstore, and after how many attempts.

    `what` says what failed ("cannot be read"), `patience` for how many seconds it was tried.
    """
    from obstore import exceptions

    cause = cause_of(error)
    if isinstance(error, FileNotFoundError) and not cause.lacks_store:
        return ObjectMissingError(f"{url} does not exist"), _ONE
    if isinstance(error, exceptions.PreconditionError | exceptions.NotModifiedError):
        return ObjectConflictError(f"{url} has changed"), _ONE
    if isinstance(error, exceptions.AlreadyExistsError):
        return ObjectConflictError(f"{url} exists already"), _ONE
    if cause.status == 416:
        return ObjectConflictError(f"{url} has fewer bytes"), _ONE
    if isinstance(error, exceptions.InvalidPathError) or type(error) is ValueError:
        return SourceError(f"{url} {what}: a name in it is no path (an empty part, . or ..)"), _ONE
    if isinstance(error, ShortAnswerError):
        return StorageError(f"{url} {what}: its answers are too short, for {patience:g} s"), _MANY
    if cause.lacks_store:
        return StorageError(f"{url} {what}: the bucket or container does not exist"), _ONE
    more = f", for {patience:g} s" if cause.attempts == _MANY else ""
    return StorageError(f"{url} {what}: {cause.reason}{more}"), cause.attempts
