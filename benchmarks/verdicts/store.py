"""An object store on a loopback socket: answers each request, a number of seconds, after that long with 100 KB.

    python -m benchmarks.verdicts.store FOLDER

`FOLDER/port` has the port. Runs until it is terminated.
"""

import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Final

_ANSWER: Final = bytes(100_000)


def serve(folder: Path) -> None:
    """Never returns."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        (folder / "port.part").write_text(str(server.getsockname()[1]))
        (folder / "port.part").rename(folder / "port")
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    while request := connection.recv(8, socket.MSG_WAITALL):
        time.sleep(struct.unpack("<d", request)[0])
        connection.sendall(struct.pack("<I", len(_ANSWER)) + _ANSWER)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
