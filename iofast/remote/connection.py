"""Make obstore's stores: one for each process, place and purpose, with credentials from the environment or a role."""

from __future__ import annotations

import functools
import ipaddress
import os
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from iofast.errors import OptionError, StorageError
from iofast.remote.failures import cause_of
from iofast.remote.limits import RequestLimits

if TYPE_CHECKING:
    from obstore.store import ObjectStore

READ, WRITE, ONCE = "read", "write", "once"  # ONCE: a write that must not be repeated without a look at the result

# by scheme: the variables that name a server, the first one that is set; the one that allows plain HTTP
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": (),
}
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "http": "IOFAST_ALLOW_HTTP"}
_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "IOFAST_ALLOW_HTTP")


def connect(store: str, limits: RequestLimits, purpose: str) -> ObjectStore:
    """The store of `RemotePath.store`. Raises `OptionError`, and `StorageError` without an account.

    It belongs to this process: never pass it to another one.
    """
    given = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_PREFIXES)))
    return _connect(store, limits, purpose, hash(given))


@functools.lru_cache(maxsize=64)
def _connect(store: str, limits: RequestLimits, purpose: str, environment: int) -> ObjectStore:  # noqa: ARG001 - of the cache
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    scheme, _, name = store.partition("://")
    endpoint = store if scheme == "http" else _endpoint(scheme)
    options: dict[str, Any] = {
        "client_options": limits.client(writes=purpose != READ, allow_http=_allows_http(scheme, endpoint)),
        "retry_config": limits.retries(repeats=purpose == WRITE),
    }
    if endpoint and scheme in _ENDPOINTS:
        options["config"] = {"endpoint": endpoint}
    reason = ""
    try:
        kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}.get(scheme)
        return HTTPStore.from_url(store, **options) if kind is None else cast("ObjectStore", kind(name, **options))
    except (BaseError, OSError, ValueError) as error:
        reason = cause_of(error).reason
    raise StorageError(f"{store} cannot be opened: {reason}")  # outside of `except`: the error's text may have secrets


def _endpoint(scheme: str) -> str:
    return next((value for name in _ENDPOINTS.get(scheme, ()) if (value := os.environ.get(name))), "")


def _allows_http(scheme: str, endpoint: str) -> bool:
    """Whether requests may be sent without TLS. Raises `OptionError` if they may not, but the server's URL says so."""
    emulated = scheme == "az" and _is_true("AZURE_STORAGE_USE_EMULATOR")  # on this machine
    variable = _ALLOW_HTTP.get(scheme, "")
    if emulated or (variable and _is_true(variable)):
        return True
    parts = urlsplit(endpoint)
    if parts.scheme != "http":
        return False
    if not _is_loopback(parts.hostname or ""):
        raise OptionError(f"plain HTTP to {parts.hostname} is refused: use https, or set {variable}=true to allow it")
    return True


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
