"""An S3 server on loopback (moto), and a proxy before any server that delays, refuses, breaks and damages answers."""

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
from collections import Counter
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
def served(command: list[str], port: int) -> Iterator[str]:
    """The URL of a server that `command` runs on a port of loopback."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, f"{command[0]} ended"
                assert time.monotonic() < end, f"{command[0]} does not listen"
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
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


REFUSED = Fault(status=403, body=b"<Error><Code>AccessDenied</Code></Error>")


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # with the query
    headers: dict[str, str]  # names in lower case
    number: int  # among the requests for this method and path


Plan = Callable[[Request], Fault | None]


class Handler(http.server.BaseHTTPRequestHandler):
    """Keeps connections open, and prints nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None: ...

    def begin(self) -> str:
        """Serve in a thread of this process; the URL."""
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{self.server_address[1]}"


class FaultProxy(Server):
    """A server that passes requests on to `target`, with the faults of `plan`."""

    def __init__(self, target: str) -> None:
        self.plan: Plan = lambda _: None
        self.requests: list[Request] = []
        self.most = self.present = 0  # requests at one time
        self.counts = Counter[tuple[str, str]]()
        self.lock, self.connections = threading.Lock(), set[socket.socket]()
        self.target = urllib.parse.urlsplit(target).netloc
        super().__init__(("127.0.0.1", 0), _Passing)
        self.url = self.begin()

    def close(self) -> None:
        """Stop, and end the connections that clients keep open: each has a thread, which would outlive the test."""
        self.shutdown()
        self.server_close()
        for connection in tuple(self.connections):
            with contextlib.suppress(OSError):  # it ends by itself just now
                connection.shutdown(socket.SHUT_RDWR)

    def count(self, method: str, part: str = "") -> int:
        return sum(each.method == method and part in each.path for each in self.requests)


class _Passing(Handler):
    server: FaultProxy

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        own, headers = self.server, {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        with own.lock:
            request = Request(self.command, self.path, headers, own.counts[self.command, self.path])
            own.counts[self.command, self.path] += 1
            own.requests.append(request)
            own.present += 1
            own.most = max(own.most, own.present)
        try:
            self._answer(request, own.plan(request) or Fault(), body)
        finally:
            with own.lock:
                own.present -= 1

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the server's names

    def _answer(self, request: Request, fault: Fault, body: bytes) -> None:
        if fault.stall is None:
            time.sleep(fault.delay)
        if fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif fault.status:
            self._send(fault, fault.status, {"Content-Length": str(len(fault.body))}, fault.body)
        else:
            self._send(fault, *self._passed_on(request, fault, body))

    def _passed_on(self, request: Request, fault: Fault, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the target's answer, damaged."""
        asked = {**request.headers, "connection": "close"}
        if fault.whole:
            asked.pop("range", None)
        with contextlib.closing(http.client.HTTPConnection(self.server.target, timeout=60)) as upstream:
            upstream.request(self.command, self.path, body, asked)
            answer = upstream.getresponse()
            data = bytearray(answer.read())
        for place in fault.flips if data else ():
            data[place % len(data)] ^= 1 << place % 8
        kept = {name.title(): value for name, value in answer.getheaders() if name.lower() not in _OF_CONNECTIONS}
        if self.command != "HEAD" and answer.status not in (204, 304):
            kept["Content-Length"] = str(len(data))
        return answer.status, kept, bytes(data)

    def _send(self, fault: Fault, status: int, headers: dict[str, str], data: bytes) -> None:
        self.head(status, headers | {name.title(): value for name, value in fault.headers.items()})
        if self.command == "HEAD":
            return
        ends = fault.cut if fault.stall is None else fault.stall
        self.wfile.write(data[:ends])
        if ends is None:
            return
        self.wfile.flush()
        if fault.stall is not None:
            time.sleep(fault.delay)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


_OF_CONNECTIONS = ("connection", "transfer-encoding", "keep-alive", "server", "date")


def first(times: int, fault: Fault, *, method: str = "GET", part: str = "") -> Plan:
    """The fault for the first requests with this method, for each path that has `part`."""
    return lambda request: (
        fault if request.method == method and part in request.path and request.number < times else None
    )
