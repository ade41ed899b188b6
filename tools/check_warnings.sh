#!/usr/bin/env bash
# Compile the kernel with warnings as errors, into a folder that is thrown away.   usage: check_warnings.sh PYTHON
set -euo pipefail
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
IOFAST_WERROR=1 IOFAST_REQUIRE_NATIVE=1 "$1" setup.py --quiet build_ext --build-temp "$build/temp" --build-lib "$build/lib"
echo "C: no warnings"
