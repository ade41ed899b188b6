#!/usr/bin/env bash
# Something on a build of the kernel with address and undefined-behaviour sanitizers.
#   usage: sanitize.sh PYTHON [PYTEST ARGUMENTS]      default: the kernel's tests
#          sanitize.sh PYTHON -- SCRIPT [ARGUMENTS]   another script
set -euo pipefail
python=$1
shift
build=build/sanitize
rm -rf "$build"
IOFAST_SANITIZE=address,undefined IOFAST_REQUIRE_NATIVE=1 \
  "$python" setup.py --quiet build --build-base "$build" --build-lib "$build/lib"

# Python itself is not instrumented, so the runtime has to be there before it.
runtime=$("${CC:-gcc}" -print-file-name=libasan.so)
# Leaks: CPython frees little at its end, so a report would be all noise; memory is watched by its own test. Pillow and
# NumPy are not instrumented either, and allocate with functions that the runtime would otherwise complain about.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH=$PWD/$build/lib IOFAST_KERNEL=native PYTHONMALLOC=malloc
# -s: a report that pytest had captured would be lost with the process.
# -P and no `-m`: the build in $PYTHONPATH must be found before the checkout.
LD_PRELOAD=$runtime "$python" -P -c '
import sys, iofast.kernel
native = sys.modules.get("iofast.kernel._native")
assert native is not None and "/sanitize/" in native.__file__, native
print("sanitizers on", native.__file__)'
if [ "${1-}" = -- ]; then
  shift
else
  [ $# -gt 0 ] || set -- tests/test_kernel*.py
  set -- -m pytest -q -s -p no:cacheprovider "$@"
fi
LD_PRELOAD=$runtime exec "$python" -P "$@"
