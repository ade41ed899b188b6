"""Programs of tests, each in a process of its own that is forked from one which has imported torch and iofast.

A new interpreter takes 1.75 s to import torch; such a process 30 ms. Exit status, signals, descriptors, environment and
working directory are real. What a program's last moments depend on (`__del__` at exit, daemon threads) needs a new
interpreter: finalisation is cut short here, as in every forked child.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    input: str | None = None,
    timeout: float = 60,
    check: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    ranks: int = 0,
    trains: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run(command, capture_output=True, text=True)`, for this interpreter with -W, -c, -m or a file.

    With `ranks` there are so many processes, with the variables that torchrun gives them. `trains`: it has an
    optimizer, of which the first of a process imports torch._dynamo, in 1.7 s.
    """
    words = [os.fspath(word) for word in command]
    assert words[0] == sys.executable
    own = dict(os.environ if env is None else env)
    request = {"words": words[1:], "env": own, "cwd": str(cwd or os.getcwd()), "ranks": ranks, "trains": trains}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        given.write((input or "").encode())
        given.seek(0)
        status = _ended(json.dumps(request).encode(), [given.fileno(), said.fileno(), errors.fileno()], timeout, words)
        said.seek(0)
        errors.seek(0)
        ended = subprocess.CompletedProcess(words, status, said.read().decode(), errors.read().decode())
    if check:
        ended.check_returncode()
    return ended


_server: list[socket.socket] = []  # of this process


def _ended(request: bytes, descriptors: list[int], timeout: float, words: list[str]) -> int:
    if not _server:
        _server.append(_start())
    (server,) = _server
    server.settimeout(60)  # to import torch on a busy machine
    socket.send_fds(server, [len(request).to_bytes(4, "little")], descriptors)
    server.sendall(request)
    child = int.from_bytes(server.recv(4), "little")
    server.settimeout(timeout)
    try:
        return int.from_bytes(server.recv(4), "little", signed=True)
    except TimeoutError:
        os.killpg(child, signal.SIGKILL)
        server.settimeout(60)
        server.recv(4)
        raise subprocess.TimeoutExpired(words, timeout) from None


def _start() -> socket.socket:
    ours, theirs = socket.socketpair()
    command = [sys.executable, __file__, str(theirs.fileno())]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))  # this package, if any is installed
    own = os.environ | {"PYTHONPATH": path}
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=own)
    theirs.close()
    atexit.register(server.wait)  # runs after the next: the server ends when its socket does
    atexit.register(ours.close)
    return ours


def serve(connection: socket.socket) -> None:
    """Fork a process for each request, one at a time, and say its number and its exit status, until no more come."""
    while True:
        length, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        if not length:
            return
        request = json.loads(connection.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL))
        if request["trains"]:
            importlib.import_module("torch._dynamo")
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            connection.close()
            _become(request, descriptors)
        for each in descriptors:
            os.close(each)
        connection.sendall(child.to_bytes(4, "little"))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(status.to_bytes(4, "little", signed=True))


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be `python WORDS…`; never return."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115 - these stay open
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["ranks"]:
        _become_a_rank(request["ranks"])
    _use_path(os.environ.get("PYTHONPATH", ""))
    if threads := os.environ.get("OMP_NUM_THREADS"):  # which OpenMP read when torch was imported
        sys.modules["torch"].set_num_threads(int(threads))
    status = 0
    try:
        _execute(request["words"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            sys.stderr.write(f"{error.code}\n")
    except KeyboardInterrupt:
        status = -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _become_a_rank(ranks: int) -> None:
    """Return in each of `ranks` processes; end this one with them, and them with the first that fails."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        if not (child := os.fork()):
            os.environ.update(dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)), MASTER_ADDR="127.0.0.1")
            os.environ.update(dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)), MASTER_PORT=str(port))
            return
        children.append(child)
    status = 0
    while children:
        child, ended = os.wait()
        children.remove(child)
        if ended and not status:
            status = abs(os.waitstatus_to_exitcode(ended))
            for other in children:
                os.kill(other, signal.SIGKILL)
    os._exit(status)


def _use_path(path: str) -> None:
    """Do what an interpreter does with PYTHONPATH."""
    sys.path[1:1] = filter(None, path.split(os.pathsep))
    if path:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")


def _execute(words: list[str]) -> None:
    while words[0] == "-W":
        warnings._processoptions([words[1]])
        words = words[2:]
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        main.__file__ = words[0]
        exec(compile(Path(words[0]).read_text(), words[0], "exec"), main.__dict__)


if __name__ == "__main__":
    import torch  # noqa: F401 - for the processes that it becomes

    import iofast

    iofast.FastLoader, iofast.FastDataset, iofast.pack  # noqa: B018 - imported at their first use
    serve(socket.socket(fileno=int(sys.argv[1])))
