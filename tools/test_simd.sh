#!/usr/bin/env bash
# The tests on Pillow-SIMD in Pillow's place, in an environment of its own.   usage: test_simd.sh PYTHON [PYTEST...]
set -euo pipefail
python=$1
shift
venv=.venv-simd
pip="$venv/bin/python -m pip --quiet --disable-pip-version-check install"
if [ "$0" -nt "$venv/.installed" ] || [ pyproject.toml -nt "$venv/.installed" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  $pip -c constraints.txt pytest hypothesis setuptools
  IOFAST_NO_NATIVE=1 $pip -c constraints.txt -e '.[torch,parquet]'
  # The same import package as Pillow: one has to go before the other comes.
  "$venv/bin/python" -m pip --quiet uninstall --yes pillow
  if grep -q avx2 /proc/cpuinfo; then flags=-mavx2; else flags=-msse4; fi
  CC="${CC:-cc} $flags" $pip --no-cache-dir --no-binary pillow-simd pillow-simd
  touch "$venv/.installed"
fi
"$venv/bin/python" - <<'END'
import PIL
from PIL import Image
assert PIL.__version__.count("post") == 1, f"this is Pillow {PIL.__version__}, not Pillow-SIMD"
print("Pillow-SIMD", PIL.__version__)
END
rm -f iofast/kernel/_native*.so
"$venv/bin/python" setup.py --quiet build_ext --inplace
"$venv/bin/pytest" -q "$@"
