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
export PYTHONMALLOC=malloc PYTHONSAFEPATH=1
# PYTHONSAFEPATH, and not the `pythonpath` of pyproject.toml: the build must be found before the checkout, which has tools and
# benchmarks. Whoever imports another build than IOFAST_BUILD fails (tests/conftest.py, tools/torture/drivers).
export PYTHONPATH=$PWD/$build/lib:$PWD IOFAST_BUILD=$PWD/$build/lib
if [ "${1-}" = -- ]; then
  shift
else
  [ $# -gt 0 ] || set -- tests/kernel/test_kernel*.py
  # By several processes: the report of one that died stands in the output, which pytest has not captured.
  set -- -m pytest -q -n auto --dist loadfile -p no:cacheprovider -o pythonpath=tests/support "$@"
fi
LD_PRELOAD=$runtime exec "$python" "$@"
