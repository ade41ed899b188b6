#!/usr/bin/env bash
# bench_gpu.py on a machine that has PyTorch, a GPU and no network.
#   usage: [WHEELS=wheels] [PYTHON=python3] [IOFAST_COMMIT=...] [MODULE=...] tools/gpu_session.sh [OPTIONS OF bench_gpu, or of MODULE]
# WHEELS is a folder of what that machine lacks. iofast's own wheel (`make wheel`) in it is taken apart: its kernel, with
# libjpeg-turbo beside it, where this checkout's cannot be loaded or built. The others are installed into a folder of
# their own, which goes at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON-python3}
wheels=${WHEELS-wheels}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

others=()
for wheel in "$wheels"/*.whl; do
  case ${wheel##*/} in
    iofast-* | '*.whl') ;;
    *) others+=("$wheel") ;;
  esac
done
if [ ${#others[@]} -gt 0 ]; then
  if "$python" -m pip --version > /dev/null 2>&1; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" "${others[@]}"
  else
    for wheel in "${others[@]}"; do "$python" -m zipfile -e "$wheel" "$site"; done  # which is nearly the same
  fi
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi

lacking=$("$python" -c '
from importlib.util import find_spec
wanted = {"numpy": "numpy", "PIL": "pillow", "lmdb": "lmdb", "google_crc32c": "google-crc32c", "tqdm": "tqdm", "psutil": "psutil"}
print(*[package for module, package in wanted.items() if find_spec(module) is None])')
if [ -n "$lacking" ]; then
  echo "iofast cannot run without: $lacking (bring their wheels in $wheels/)" >&2
  exit 1
fi

native() { "$python" -W ignore -c 'from iofast import kernel; raise SystemExit(kernel.backend != "native")' 2>/dev/null; }
native || "$python" setup.py --quiet build_ext --inplace --force || true
if ! native; then
  for wheel in "$wheels"/iofast-*.whl; do
    [ -e "$wheel" ] || continue
    rm -f iofast/kernel/_native*.so
    "$python" - "$wheel" <<'EOF'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():  # the kernel finds its libjpeg in ../../iofast.libs
        if name.startswith(("iofast.libs/", "iofast/kernel/_native")):
            wheel.extract(name, ".")
EOF
  done
fi
if ! native; then
  rm -f iofast/kernel/_native*.so  # one that cannot be loaded would end every import
  echo "no native kernel here: most parts cannot run" >&2
fi
"$python" -m "${MODULE-benchmarks.bench_gpu}" "$@"
