"""A stand-in for the NVIDIA driver's library, built from standin.c (which documents the scripts that drive it)."""

import subprocess
from pathlib import Path


def build(folder: Path) -> Path:
    """`folder`/libnvidia-ml.so.1, compiled. Raises CalledProcessError where there is no compiler that can."""
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("standin.c")
    command = ["cc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return library


def write(script: Path, text: str) -> None:
    """Put `text` into `script` in one step: a watcher that reads it meanwhile sees the old or the new one."""
    fresh = script.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(script)
