"""An S3 server on loopback (moto), and a proxy before any server that delays, refuses, breaks and damages answers."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_HEADERS = {
    "Content-Type": "application/octet-stream",  # else moto takes the body for a form
    "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=",
}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_REGION": "us-east-1",
    "IOFAST_STORAGE_LIMITS": "connect=2,read=20,write=20,patience=40",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server that checks no signature."""

    endpoint: str  # of the server
    name: str

    def request(self, method: str, key: str = "", data: bytes | None = None, query: str = "") -> bytes:
        url = f"{self.endpoint}/{self.name}{'/' if key else ''}{urllib.parse.quote(key)}{query}"
        with urllib.request.urlopen(urllib.request.Request(url, data, _HEADERS, method=method), timeout=60) as answer:
            return bytes(answer.read())

    def put(self, key: str, data: bytes) -> None:
        self.request("PUT", key, data)

    def upload(self, folder: Path, prefix: str) -> str:
        """Put all files of a folder, and return the URL of the prefix."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{self.name}/{prefix}/"

    def unfinished_uploads(self) -> int:
        return self.request("GET", query="?uploads=").count(b"<UploadId>")


@contextlib.contextmanager
def served(command: list[str], port: int, address: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server that `command` runs on a port of `address`."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection((address, port), 1).close()
                break
            except OSError:
                assert process.poll() is None, f"{command[0]} ended"
                assert time.monotonic() < end, f"{command[0]} does not listen"
                time.sleep(0.05)
        yield f"http://{address}:{port}"
    finally:
        process.kill()
        process.wait()


def moto() -> contextlib.AbstractContextManager[str]:
    port = free_port()
    program = "import sys; from moto.server import main; main(sys.argv[1:])"
    return served([sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)], port)


@dataclass(frozen=True)
class Fault:
    """What happens to one answer: a delay, then one of the others.

    `status`: an error instead of the answer. `reset`: the connection breaks before it. `cut`: it ends after so many
    bytes of its body, `stall`: it stops there for `delay` seconds. `headers` replace those of the answer. `flips`:
    these bytes of its body (modulo its length) have a wrong bit. `whole`: it is the whole object, whatever the Range.
    """

    delay: float = 0.0
    status: int = 0
    body: bytes = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
    reset: bool = False
    cut: int | None = None
    stall: int | None = None
    flips: tuple[int, ...] = ()
    whole: bool = False
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # with the query
    headers: dict[str, str]  # names in lower case
    number: int  # among the requests for this method and path


Plan = Callable[[Request], Fault | None]


class FaultProxy:
    """A server that passes requests on to `target`, with the faults of `plan`."""

    def __init__(self, target: str) -> None:
        self.plan: Plan = lambda _: None
        self.requests: list[Request] = []
        self.most = self._present = 0  # requests at one time
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._target = urllib.parse.urlsplit(target).netloc
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def setup(self) -> None:
                super().setup()
                proxy._connections.add(self.connection)

            def finish(self) -> None:
                proxy._connections.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                proxy._answer(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the server's names

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None: ...

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop, and end the connections that clients keep open: each has a thread, which would outlive the test."""
        self._server.shutdown()
        self._server.server_close()
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):  # it ends by itself just now
                connection.shutdown(socket.SHUT_RDWR)

    def count(self, method: str, part: str = "") -> int:
        return sum(each.method == method and part in each.path for each in self.requests)

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        body = handler.rfile.read(int(headers.get("content-length", 0)))
        with self._lock:
            number = self._counts.get((handler.command, handler.path), 0)
            self._counts[handler.command, handler.path] = number + 1
            request = Request(handler.command, handler.path, headers, number)
            self.requests.append(request)
            self._present += 1
            self.most = max(self.most, self._present)
        try:
            self._pass_on(handler, request, body)
        finally:
            with self._lock:
                self._present -= 1

    def _pass_on(self, handler: http.server.BaseHTTPRequestHandler, request: Request, body: bytes) -> None:
        fault = self.plan(request) or Fault()
        if fault.stall is None:
            time.sleep(fault.delay)
        if fault.reset:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            handler.connection.close()
        elif fault.status:
            self._send(handler, fault, fault.status, {"Content-Length": str(len(fault.body))}, fault.body)
        else:
            asked = {**request.headers, "connection": "close"}
            if fault.whole:
                asked.pop("range", None)
            with contextlib.closing(http.client.HTTPConnection(self._target, timeout=60)) as upstream:
                upstream.request(handler.command, handler.path, body, asked)
                answer = upstream.getresponse()
                data = bytearray(answer.read())
            for place in fault.flips if data else ():
                data[place % len(data)] ^= 1 << place % 8
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _OF_CONNECTIONS}
            if handler.command != "HEAD" and answer.status not in (204, 304):
                kept = {name: value for name, value in kept.items() if name.lower() != "content-length"}
                kept["Content-Length"] = str(len(data))
            self._send(handler, fault, answer.status, kept, data)

    def _send(
        self,
        handler: http.server.BaseHTTPRequestHandler,
        fault: Fault,
        status: int,
        headers: dict[str, str],
        data: bytes | bytearray,
    ) -> None:
        handler.send_response_only(status)
        replaced = {name.lower() for name in fault.headers}
        for name, value in headers.items():
            if name.lower() not in replaced:
                handler.send_header(name, value)
        for name, value in fault.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if fault.cut is None and fault.stall is None:
            handler.wfile.write(data)
            return
        handler.wfile.write(data[: fault.cut if fault.cut is not None else fault.stall])
        handler.wfile.flush()
        if fault.stall is not None:
            time.sleep(fault.delay)
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)


_OF_CONNECTIONS = ("connection", "transfer-encoding", "keep-alive", "server", "date")


def first(times: int, fault: Fault, *, method: str = "GET", part: str = "") -> Plan:
    """The fault for the first requests with this method, for each path that has `part`."""
    return lambda request: (
        fault if request.method == method and part in request.path and request.number < times else None
    )
