"""A web server of a folder, in a process of its own, with a latency and a bandwidth of all answers.

Run it: `python web_server.py FOLDER ADDRESS PORT LATENCY_S BYTES_PER_S [PEM]` (0 = none). It answers HEAD and GET with
ranges, ETags and If-Match, by `sendfile`, so that it takes little of the machine it shares with what is measured. With
PEM, a file of key and certificate, it uses TLS. `GET /-/counts` returns requests and bytes so far as JSON, `GET
/-/sent` one `Sent` for each answer with a body.
"""

import contextlib
import email.utils
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from object_store import Handler, free_port, served
from object_store import Server as Quiet

_PIECE = 64 << 10


class Sent(NamedTuple):
    """Bytes [start, stop) of an object that were sent to a client: its address, the path in the URL."""

    client: str
    path: str
    start: int
    stop: int


class Server(Quiet):
    def __init__(self, folder: Path, place: tuple[str, int], latency: float, rate: float, pem: str = "") -> None:
        self.folder, self.latency, self.rate = folder, latency, rate
        self.counts, self.sent = {"HEAD": 0, "GET": 0, "bytes": 0}, list[Sent]()
        self._lock, self._free = threading.Lock(), time.monotonic()
        super().__init__(place, _Files)
        if pem:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            # the handshake waits for the client, so the thread of the connection has it
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def count(self, name: str, number: int) -> None:
        with self._lock:
            self.counts[name] += number

    def wait(self, size: int) -> None:
        """Wait until so many bytes may be sent: all answers together send at most `rate` a second."""
        if not self.rate:
            return
        with self._lock:
            now = time.monotonic()
            # a sleep may take too long: up to 5 ms are made up for
            self._free = max(self._free, now - 0.005) + size / self.rate
            pause = self._free - now
        if pause > 0:
            time.sleep(pause)


class _Files(Handler):
    server: Server

    def answer(self) -> None:
        found = {"/-/counts": self.server.counts, "/-/sent": self.server.sent}.get(self.path)
        if found is not None:
            text = json.dumps(found).encode()
            self.head(200, {"Content-Length": str(len(text))})
            self.wfile.write(text)
            return
        time.sleep(self.server.latency)
        self.server.count(self.command, 1)
        path = self.server.folder / urllib.parse.unquote(self.path).lstrip("/")
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            self.head(404, {"Content-Length": "0"})
            return
        try:
            self._answer(fd)
        finally:
            os.close(fd)

    do_GET = do_HEAD = answer  # noqa: N815 - the server's names

    def _answer(self, fd: int) -> None:
        status = os.fstat(fd)
        etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        if self.headers.get("If-Match", etag) != etag:
            self.head(412, {"Content-Length": "0"})
            return
        start, stop = 0, status.st_size
        headers = {"ETag": etag, "Last-Modified": email.utils.formatdate(status.st_mtime, usegmt=True)}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found:
            start, stop = int(found[1]), min(stop, int(found[2]) + 1 if found[2] else stop)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{status.st_size}"
        if start >= stop:
            self.head(416, {"Content-Length": "0"})
            return
        self.head(206 if found else 200, {**headers, "Content-Length": str(stop - start)})
        if self.command == "GET":
            self.wfile.flush()
            self._send(fd, start, stop)

    def _send(self, fd: int, start: int, stop: int) -> None:
        place = start
        try:
            while place < stop:
                size = min(_PIECE, stop - place)
                self.server.wait(size)
                # before they are sent: the client that has them may ask for the counts at once
                self.server.count("bytes", size)
                sent = 0
                try:
                    sent = self._sent(fd, place, size)
                    place += sent
                finally:
                    self.server.count("bytes", sent - size)
        finally:
            self.server.sent.append(Sent(self.client_address[0], self.path, start, place))

    def _sent(self, fd: int, start: int, size: int) -> int:
        if not isinstance(self.connection, ssl.SSLSocket):
            return os.sendfile(self.connection.fileno(), fd, start, size)
        data = os.pread(fd, size, start)
        self.connection.sendall(data)
        return len(data)


@contextlib.contextmanager
def web_server(
    folder: Path,
    latency: float = 0.0,
    rate: float = 0.0,
    certificate: Path | None = None,
) -> Iterator[str]:
    """The URL of such a server; `rate` in bytes a second. With a `certificate` it begins with https."""
    port = free_port()
    command = [sys.executable, __file__, os.fspath(folder), "127.0.0.1", str(port), str(latency), str(rate)]
    with served([*command, *([] if certificate is None else [os.fspath(certificate)])], port) as url:
        yield url if certificate is None else url.replace("http:", "https:")


def counts(url: str) -> dict[str, int]:
    """Requests and bytes of such a server so far."""
    with urllib.request.urlopen(f"{url}/-/counts") as answer:
        found: dict[str, int] = json.load(answer)
        return found


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of loopback with openssl's program: its file, and one of the key with it.

    Programs that `SSL_CERT_FILE` tells the first trust the second: Python's, and obstore.
    """
    trusted, key, both = (folder / name for name in ("trusted.pem", "key.pem", "server.pem"))
    curve, days = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"], ["-days", "2"]
    command = ["openssl", "req", "-x509", *curve, *days, "-subj", "/CN=server", "-keyout", key, "-out", trusted]
    extensions = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, *extensions], check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + trusted.read_bytes())
    return trusted, both


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    place, numbers = (sys.argv[2], int(sys.argv[3])), map(float, sys.argv[4:6])
    Server(Path(sys.argv[1]), place, *numbers, *sys.argv[6:]).serve_forever()
