"""Virtual environments of other programs, made when they are first used, with the versions that a table names."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 1_800  # seconds for one environment: torch with CUDA takes a quarter of an hour on a slow line


class Missing(Exception):  # noqa: N818 (it is a fact about this machine, and the table says it)
    """The environment cannot be made here; the message gives the reason and the remedy."""


@dataclass(frozen=True)
class Environment:
    """What a program needs.

    `requirements` of pip; `alone`: installed after them and without what they require themselves; `system`: libraries
    by pkg-config's names; `packages`: the Debian packages that have them and a compiler; `flags`: for the C compiler.
    """

    folder: Path
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    packages: str = ""
    flags: str = ""

    def python(self) -> Path:
        """The interpreter of the environment, which is made if needed. Raises `Missing`."""
        wanted, stamp = " ".join((*self.requirements, *self.alone)), self.folder / ".installed"
        if not stamp.exists() or stamp.read_text() != wanted:
            self._check_system()
            subprocess.run([sys.executable, "-m", "venv", "--clear", self.folder], check=True, timeout=120)
            self._install(*self.requirements)
            if self.alone:
                self._install("--no-deps", *self.alone)
            stamp.write_text(wanted)
        return self.folder / "bin" / "python"

    def pinned(self, package: str) -> str:
        """The version of a package that the requirements name; "" without one."""
        wanted = (each.partition("==") for each in (*self.requirements, *self.alone))
        return next((version for name, _, version in wanted if name == package), "")

    def versions(self) -> dict[str, str]:
        """What is installed: package to version."""
        program = (
            "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
        )
        listed = subprocess.run([self.python(), "-c", program], capture_output=True, text=True, check=True, timeout=60)
        found: dict[str, str] = json.loads(listed.stdout)
        return {package.lower().replace("_", "-"): version for package, version in found.items()}

    def _check_system(self) -> None:
        if not self.system:
            return
        if shutil.which("pkg-config") is None:
            absent = ["pkg-config"]
        else:
            absent = [each for each in self.system if subprocess.run(["pkg-config", "--exists", each]).returncode]
            absent += [] if shutil.which(os.environ.get("CXX", "c++")) else ["a C++ compiler"]
        if absent:
            verb = "is" if len(absent) == 1 else "are"
            raise Missing(f"{', '.join(absent)} {verb} not there; as root: apt-get install {self.packages}")

    def _install(self, *requirements: str) -> None:
        options = ["--quiet", "--disable-pip-version-check", *shlex.split(os.environ.get("PIP_ARGS", ""))]
        options += ["--no-cache-dir"] if self.flags else []  # pip keeps what it has built, with whatever flags
        try:
            made = subprocess.run(
                [self.folder / "bin" / "python", "-m", "pip", "install", *options, *requirements],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                env=os.environ | ({"CC": f"cc {self.flags}"} if self.flags else {}),  # CFLAGS would replace -O3
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"not installed within {TIMEOUT // 60} minutes") from None
        if made.returncode:
            errors = [line for line in made.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise Missing(errors[-1].removeprefix("ERROR: "))
