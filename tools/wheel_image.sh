#!/usr/bin/env bash
# In the containers that wheels are built in (AlmaLinux, Alpine): what libjpeg-turbo is built with, then libjpeg-turbo.
set -euo pipefail
version=3.1.3
digest=3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5
if command -v apk >/dev/null; then apk add --no-cache cmake nasm curl; else dnf -y -q install cmake nasm; fi
archive=/tmp/libjpeg-turbo.tar.gz
curl -fsSL "https://github.com/libjpeg-turbo/libjpeg-turbo/releases/download/$version/libjpeg-turbo-$version.tar.gz" -o $archive
echo "$digest  $archive" | sha256sum -c -
"$(dirname "$0")/build_libjpeg.sh" $archive /opt/libjpeg-turbo
