#!/usr/bin/env bash
# Compile tests/native/compare_loops.c and run it.   usage: compare_loops.sh native|neon ROUNDS
#   native   the instruction sets of this machine, with this machine's compiler
#   neon     64-bit ARM, cross-compiled and run under qemu; CROSS_CC and QEMU name other programs
# It needs no libjpeg: the pixel loops and the axes alone.
set -euo pipefail
kind=$1 rounds=$2 runner=
case $kind in
  native) cc=${CC:-cc} ;;
  neon) cc=${CROSS_CC:-aarch64-linux-gnu-gcc} runner=${QEMU:-qemu-aarch64} ;;
  *) echo "compare_loops.sh: native or neon, not $kind" >&2; exit 2 ;;
esac
for program in "$cc" $runner; do
  if ! command -v "$program" >/dev/null; then
    echo "compare_loops.sh: no $program (Debian, Ubuntu: apt-get install gcc-aarch64-linux-gnu qemu-user)" >&2
    exit 127
  fi
done
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
source=iofast/kernel/src
static=()
[ "$kind" = native ] || static=(-static) # so that qemu needs no libraries of that machine
"$cc" -std=gnu11 -O2 -ffp-contract=off -Wall -Wextra -Werror ${static[@]+"${static[@]}"} -I"$source" \
  tests/native/compare_loops.c "$source"/axis.c "$source"/resample*.c -lm -o "$build/compare_loops"
$runner "$build/compare_loops" "$rounds"
