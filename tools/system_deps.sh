#!/usr/bin/env bash
# The system packages that the kernel's build needs: a C compiler, Python's and libjpeg-turbo's headers, and Debian's
# separate venv module.   usage: system_deps.sh PYTHON install|offer [pillow]
#   install   install what is missing (apt, root)
#   offer     the same where that is possible; else name the command and go on, since all but the venv can be missing
#   pillow    also what building Pillow-SIMD needs, so that it reads every format that the tests use
set -euo pipefail
python=$1
action=$2
purpose=${3-kernel}

has_header() {  # HEADER NAME: does the compiler find the header, and does it declare NAME?
  printf '#include <stdio.h>\n#include <%s>\nint found = sizeof(%s);\n' "$1" "$2" |
    "${CC:-cc}" -fsyntax-only -x c - 2>/dev/null
}

missing=()
command -v "${CC:-cc}" >/dev/null || missing+=(gcc libc6-dev)
if command -v "$python" >/dev/null; then
  # Debian keeps these two apart from python3; a Python from elsewhere brings them along.
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$version-venv")
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -e "$include/Python.h" ] || missing+=("python$version-dev")
else
  missing+=(python3 python3-venv python3-dev)
fi
# libjpeg-turbo and no other libjpeg. libjpeg-dev stands for libjpeg62-turbo-dev on Debian, libjpeg-turbo8-dev on Ubuntu.
has_header jpeglib.h LIBJPEG_TURBO_VERSION_NUMBER || missing+=(libjpeg-dev)
if [ "$purpose" = pillow ]; then
  has_header zlib.h z_stream || missing+=(zlib1g-dev)
  has_header webp/encode.h WebPPicture || missing+=(libwebp-dev)
  has_header lcms2.h cmsHPROFILE || missing+=(liblcms2-dev)
fi

[ ${#missing[@]} -gt 0 ] || exit 0
command="apt-get install ${missing[*]}"
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "iofast: installing system packages that are missing: ${missing[*]}  (SYSTEM_DEPS=0 keeps hands off)"
  export DEBIAN_FRONTEND=noninteractive
  if apt-get -qq update </dev/null && apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null; then
    exit 0
  fi
  echo "iofast: $command failed" >&2
elif ! command -v apt-get >/dev/null; then
  command="install, with your system's package manager: a C compiler, Python's headers, libjpeg-turbo's headers"
fi

if [ "$action" = install ]; then
  echo "iofast: needed and missing; as root: $command" >&2
  exit 1
fi
if [ "$purpose" = pillow ]; then
  without="a Pillow-SIMD that reads and writes fewer formats; tests of those will fail"
else
  without="no native kernel: everything works, several times slower"
fi
cat >&2 <<END
****************************************************************************************************
iofast: missing: ${missing[*]}
        as root: $command
        Going on without. That means $without.
****************************************************************************************************
END
