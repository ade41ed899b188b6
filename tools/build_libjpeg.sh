#!/usr/bin/env bash
# libjpeg-turbo with its SIMD, as a static library that goes into the kernel: for wheels, whose users have none.
#   usage: build_libjpeg.sh SOURCE.tar.gz PREFIX
# It needs a C compiler and cmake, and on x86-64 nasm; without nasm it fails, since decoding would be several times slower.
set -euo pipefail
archive=$1
prefix=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xzf "$archive" -C "$work" --strip-components=1
cmake -S "$work" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
  -DENABLE_SHARED=OFF -DENABLE_STATIC=ON -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON -DCMAKE_POSITION_INDEPENDENT_CODE=ON
cmake --build "$work/build" --parallel 2
cmake --install "$work/build" >/dev/null
