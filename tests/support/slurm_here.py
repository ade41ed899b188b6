"""A SLURM of one node: Debian's slurmctld, slurmd and munged, with their files and keys in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from object_store import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scontrol")
_CONF = """
ClusterName=iofast
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


class Slurm:
    """The commands of a running SLURM whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.daemons = folder, list[subprocess.Popen[bytes]]()
        for name in ("state", "spool"):
            (folder / name).mkdir()
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        values = {"host": socket.gethostname().split(".")[0], "ports": [free_port() for _ in range(2)]}
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder, **values))
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = [f"--{kind}-file={folder / f'munge.{kind}'}" for kind in ("pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket", *files)
        self._start("slurmctld", "-D", "-i")
        self._start("slurmd", "-D")

    def _start(self, *command: str) -> None:
        null = subprocess.DEVNULL
        self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=null, stderr=null))

    def run(self, *command: str) -> str:
        """The output of a command that must succeed."""
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def wait_until_ready(self, seconds: float = 60) -> None:
        """Wait for the node."""
        end = time.monotonic() + seconds
        while True:
            ended = subprocess.run(["sinfo", "-h", "-o", "%t"], env=self.environment, capture_output=True, text=True)
            if ended.stdout.strip() in ("idle", "mix", "alloc"):
                return
            assert time.monotonic() < end, (ended, self.logs())
            time.sleep(0.2)

    def wait_for(self, job: str, seconds: float = 180) -> None:
        """Wait until no task of a job is left."""
        end = time.monotonic() + seconds
        while left := self.run("squeue", "-h", "-j", job):
            assert time.monotonic() < end, (left, self.logs())
            time.sleep(0.2)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """End all processes, also those of jobs."""
        for daemon in reversed(self.daemons):
            with contextlib.suppress(psutil.NoSuchProcess):
                steps = psutil.Process(daemon.pid).children(recursive=True)
                for each in steps:
                    each.kill()
            daemon.kill()
            daemon.wait()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() == "slurmstepd" and str(self.folder) in process.environ().get("SLURM_CONF", ""):
                    process.kill()


@contextlib.contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    """Start SLURM, or skip the test if it is not installed or would not have the rights it needs."""
    if missing := [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]:
        pytest.skip(f"SLURM is not installed here: {', '.join(missing)} not found")
    if os.geteuid():
        pytest.skip("only root may start slurmd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", _path())
        slurm = Slurm(folder)
        try:
            slurm.wait_until_ready()
            yield slurm
        finally:
            slurm.close()


def _path() -> str:
    return os.pathsep.join((os.environ["PATH"], "/usr/sbin"))
