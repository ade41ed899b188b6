#!/usr/bin/env bash
# Is this Python good enough to make the environment? Says in one line what to do if not.
set -euo pipefail
python=$1
if ! command -v "$python" >/dev/null; then
  echo "iofast: $python is not there; install Python 3.11 or later (apt-get install python3), or say make PYTHON=..." >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "iofast: $("$python" --version) is too old, 3.11 or later is needed; say make PYTHON=python3.12" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "iofast: $python cannot make environments; as root: make system-deps (or apt-get install python3-venv)" >&2
  exit 1
fi
