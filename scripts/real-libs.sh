#!/bin/sh
# Fetches the published libraries that `make check NAME=real-libs` calls into: wheels from PyPI, unpacked below the directory
# given, each once. Prints nothing when all are there. Needs python3 with pip, and the network.
set -eu
into=${1:?usage: real-libs.sh DIRECTORY}
fetch() { # package version
  at="$into/$1-$2"
  [ -e "$at/complete" ] && return
  rm -rf "$at" && mkdir -p "$at"
  echo "fetching $1 $2" >&2
  if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$at" "$1==$2"; then
    echo "real-libs.sh: cannot fetch $1 $2 from PyPI: this test needs the network and pip" \
      "(apt-get install python3-pip); nothing was tested" >&2
    exit 1
  fi
  python3 -m zipfile -e "$at"/*.whl "$at"
  rm -f "$at"/*.whl
  touch "$at/complete"
}
fetch nvidia-nccl-cu12 2.18.3
fetch nvidia-nccl-cu12 2.21.5
fetch nvidia-nccl-cu12 2.27.5
fetch nvidia-nccl-cu12 2.32.3
fetch nvidia-cuda-runtime-cu12 12.9.79
fetch nvidia-cuda-runtime 13.0.96
