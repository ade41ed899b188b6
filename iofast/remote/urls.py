"""URLs of objects. Credentials in a URL are refused, because URLs get into plans, manifests, reports and logs."""

import os
import posixpath
import re
from typing import NamedTuple, Self
from urllib.parse import unquote

from iofast.errors import OptionError

SCHEMES = ("s3", "gs", "az", "https", "http")
WEB = ("https", "http")  # servers of single files: their URLs are percent-encoded, and they have no listing

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
_SHORTENED = re.compile(r"(s3|gs|az|https?):/[^/]", re.ASCII | re.IGNORECASE)  # by pathlib
_SIGNED = re.compile(
    r"[?&](sig|sv|se|st|skoid|signature|token|access_token|api_?key|awsaccesskeyid|googleaccessid|"
    r"(x-amz|x-goog)-[a-z-]+|(aws_)?(access_key_id|secret_access_key|session_token)|password)=",
    re.IGNORECASE,
)


class RemotePath(NamedTuple):
    """An object, or a prefix of objects: its store (`s3://bucket`) and the key there, without a `/` at either end."""

    store: str
    key: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Read a URL. Raises `OptionError`, which never quotes a secret, for credentials and unknown schemes."""
        match = _URL.match(url)
        scheme = match[1].lower() if match else ""
        if match is None or scheme not in SCHEMES:
            raise OptionError(f"{redacted(url)}: expected a URL of {', '.join(f'{each}://' for each in SCHEMES)}")
        place, _, key = url[match.end() :].partition("/")
        if "@" in place or _SIGNED.search(url):
            raise OptionError(
                f"{redacted(url)}: credentials in a URL are refused, since URLs get stored; set environment variables"
            )
        if scheme in WEB and ("?" in url or "#" in url):
            raise OptionError(f"{redacted(url)}: a URL of a web server must end with its path, found a query after it")
        if not place:
            raise OptionError(f"{redacted(url)}: expected the name of a bucket, container or host after {scheme}://")
        key = unquote(key, errors="surrogateescape") if scheme in WEB else key
        return cls(f"{scheme}://{place.lower() if scheme in WEB else place}", _normal(key, url))

    @property
    def scheme(self) -> str:
        """One of `SCHEMES`."""
        return self.store.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.store}/{self.key}"


def is_url(path: str | os.PathLike[str] | bytes) -> bool:
    """Whether a path is a URL, of any scheme."""
    return _URL.match(os.fsdecode(path)) is not None


def require_text(path: str | os.PathLike[str]) -> None:
    """Raise `OptionError` for a URL that was shortened to a path, as `Path("s3://bucket/key")` is."""
    if _SHORTENED.match(os.fspath(path)):
        raise OptionError(f"{redacted(os.fspath(path))}: expected a URL with // after the scheme; a Path loses one /")


def absolute(path: str | os.PathLike[str]) -> str:
    """An absolute path, or a URL as it is."""
    return os.fspath(path) if is_url(path) else os.path.abspath(os.fspath(path))


def join(root: str, path: str) -> str:
    """The place of `path`, which is relative to a folder or URL `root` unless it is a URL or an absolute path."""
    if is_url(path):
        return path
    if is_url(root) and not os.path.isabs(path):
        return f"{root.rstrip('/')}/{path}"
    return os.path.join(root, path)


def redacted(url: str) -> str:
    """A URL without user name, password, query and fragment, for messages."""
    match = _URL.match(url)
    start = match.end() if match else 0
    place, slash, path = url[start:].partition("/")
    plain = re.split(r"[?#]", place.rpartition("@")[2] + slash + path)[0]
    return f"{url[:start]}{plain}{'?…' if re.search(r'[?#]', url) else ''}"


def _normal(key: str, url: str) -> str:
    """The key without `.` and `..`. Raises `OptionError` if it leaves the store."""
    key = key.strip("/")
    if not any(part in (".", "..") for part in key.split("/")):
        return key
    normal = posixpath.normpath(key)
    if normal.startswith(".."):
        raise OptionError(f"{redacted(url)}: its path leads out of the store")
    return "" if normal == "." else normal
