"""Nodes on this machine: network namespaces on one bridge, each with a link of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import psutil


def kill(processes: list[psutil.Process]) -> None:
    """Kill processes, as far as they still exist."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def ip(*words: str) -> None:
    """Run `ip`. Raises `OSError` and `CalledProcessError`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(count: int, network: str) -> Iterator[list[str] | None]:
    """Network namespaces on one bridge; None if they cannot be made (only root may).

    With the network "10.213.7" the first has the address 10.213.7.1, and this machine has 10.213.7.254.
    """
    bridge, names = f"iofast{os.getpid()}"[:14], [f"iofast-{os.getpid()}-{number + 1}" for number in range(count)]
    try:
        try:
            ip("link", "add", bridge, "type", "bridge")
            ip("addr", "add", f"{network}.254/24", "dev", bridge)
            ip("link", "set", bridge, "up")
            for number, name in enumerate(names, 1):
                ip("netns", "add", name)
                ip("link", "add", link(number), "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("link", "set", link(number), "master", bridge, "up")
                ip("-n", name, "addr", "add", f"{network}.{number}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        yield names
    finally:
        for name in names:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                kill(inside(name))
                ip("netns", "del", name)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            ip("link", "del", bridge)


def link(number: int) -> str:
    """The device of this machine that leads to namespace 1, 2, …"""
    return f"io{os.getpid()}v{number}"


def limit(count: int, megabytes: int) -> bool:
    """Let each namespace receive at most so many megabytes a second; False if this kernel cannot."""
    try:
        for number in range(1, count + 1):
            rate = ["tbf", "rate", f"{8 * megabytes}mbit", "burst", "256kb", "latency", "50ms"]
            command = ["tc", "qdisc", "add", "dev", link(number), "root", *rate]
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def inside(name: str) -> list[psutil.Process]:
    """The processes of a network namespace."""
    ended = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
    return [psutil.Process(int(pid)) for pid in ended.stdout.split() if psutil.pid_exists(int(pid))]
