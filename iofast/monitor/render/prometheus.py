"""A Prometheus endpoint with the newest interval of every live job, on the loopback by default."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from iofast.errors import OptionError, because
from iofast.monitor.render.moment import Moment, MomentView
from iofast.monitor.render.wording import plain
from iofast.monitor.snapshot import own_devices

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONGEST = 120  # characters of a label whose text comes from a watched program
_SLOWEST_S = 10.0  # a silent client is disconnected after so long

HELP = {
    "iofast_jobs": "training processes watched",
    "iofast_verdict": "1 for the current verdict, with its cause and severity",
    "iofast_stall_low_ratio": "lower bound of the exposed stall, a share of training time",
    "iofast_stall_high_ratio": "upper bound of the exposed stall",
    "iofast_interference_low_ratio": "lower bound of how much longer a step takes beside the loader",
    "iofast_interference_high_ratio": "upper bound of how much longer a step takes beside the loader",
    "iofast_wait_ratio": "share of training time that the training thread spends at the line where it waits longest",
    "iofast_images_per_second": "images that training took in the last interval",
    "iofast_loader_cpu_cores": "cores that loader processes and threads used",
    "iofast_main_cpu_cores": "cores that the training process used",
    "iofast_disk_read_bytes_per_second": "bytes read from disks",
    "iofast_phase_ratio": "share of the judged time that was spent in each phase",
    "iofast_device_busy_ratio": "share of the interval in which a kernel ran",
    "iofast_device_sm_active_ratio": "mean share of multiprocessors at work",
    "iofast_device_memory_used_bytes": "device memory in use, by everybody",
    "iofast_device_power_watts": "power drawn",
}


def exposition(moments: Sequence[Moment]) -> str:
    """Metrics of live jobs in the text format; a figure that is not available has no line."""
    live = [moment for moment in moments if not moment.ended]
    series = {"iofast_jobs": [f" {float(len(live))!r}"]}
    for name, labels, value in (one for moment in live for one in _samples(moment)):
        if value is not None:
            text = ",".join(f'{key}="{label(each)}"' for key, each in labels)
            series.setdefault(name, []).append(f"{{{text}}} {float(value)!r}")
    return "".join(
        f"# HELP {name} {HELP[name]}\n# TYPE {name} gauge\n" + "".join(f"{name}{one}\n" for one in each)
        for name, each in series.items()
    )


def label(text: str) -> str:
    """`text` for the value of a label, without quotes."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


def _samples(moment: Moment) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float | None]]:
    """Name, labels and value of each metric."""
    job, verdict, now = moment.job, moment.verdict, moment.figures
    rank = "" if job.rank is None else str(job.rank)
    own = (("pid", str(job.pid)), ("rank", rank), ("command", job.command[:_LONGEST]))
    cause = "" if verdict.cause is None else verdict.cause.value
    judged = (("verdict", verdict.bound.value), ("cause", cause), ("severity", verdict.severity.value))
    yield "iofast_verdict", own + judged, 1
    tier = () if verdict.stall is None else (("tier", verdict.stall.tier.value),)
    for name, band, more in (("stall", verdict.stall, tier), ("interference", verdict.interference, ())):
        if band is not None:
            yield f"iofast_{name}_low_ratio", own + more, band.low
            yield f"iofast_{name}_high_ratio", own + more, band.high
    if (site := verdict.waits) is not None:
        place = (("file", site.file[-_LONGEST:]), ("line", str(site.line)), ("function", site.function[:_LONGEST]))
        yield "iofast_wait_ratio", (*own, *place, ("call", site.call[:_LONGEST]), ("source", site.source)), site.share
    yield "iofast_images_per_second", own, now.images_per_s
    yield "iofast_loader_cpu_cores", own, now.loader_cores
    yield "iofast_main_cpu_cores", own, now.main_cores
    yield "iofast_disk_read_bytes_per_second", own, now.disk_bytes_per_s
    total = sum(verdict.phases.values())
    for phase, seconds in verdict.phases.items() if total else ():
        yield "iofast_phase_ratio", (*own, ("phase", phase.value)), seconds / total
    for device in own_devices(moment.snapshot.devices):
        labels = (*own, ("gpu", str(device.index)), ("uuid", device.uuid), ("name", device.name))
        yield "iofast_device_busy_ratio", labels, device.busy
        yield "iofast_device_sm_active_ratio", labels, device.sm_active
        yield "iofast_device_memory_used_bytes", labels, device.memory_used
        yield "iofast_device_power_watts", labels, device.power_w


def address(text: str) -> tuple[str, int]:
    """Host and port of `9100`, `0.0.0.0:9100` or `[::1]:9100`; without a host 127.0.0.1. Raises OptionError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not port.isascii() or not 0 <= int(port) <= 65535:
        raise OptionError(f"--prometheus takes [HOST:]PORT with a port from 0 to 65535, found {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


class Endpoint(MomentView):
    """Serves `moments` at `/metrics`, from a thread of its own. Raises OptionError if the address cannot be bound."""

    def __init__(self, host: str, port: int, moments: Callable[[], Sequence[Moment]]) -> None:
        self._moments, self._text = moments, exposition([])
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _SLOWEST_S

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] in ("/metrics", "/")
                body = endpoint._text.encode() if found else b"the metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Do not log scrapes."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise OptionError(f"--prometheus cannot listen on {host}:{port}: {because(error)}") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="iofast-metrics", daemon=True)
        self._thread.start()

    def update(self, _moment: Moment) -> None:
        """Format the text for the next scrape, so that a scrape never sees a mixture."""
        self._text = exposition(self._moments())

    def close(self, _moments: Sequence[Moment]) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
