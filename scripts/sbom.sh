#!/bin/sh
# What the released binary is made of, as CycloneDX 1.5: every crate with version, licence and hash.
#     sbom.sh FILE
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?usage: sbom.sh FILE}
cd "$root"
scripts/tools.sh cargo-cyclonedx
PATH=$PATH:$root/target/tools/bin
# It writes one beside each manifest of the workspace: only the binary's is wanted.
name=rankmesh-sbom-$$
trap 'find . -path ./target -prune -o -name "$name*" -exec rm -f {} +' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} cargo-cyclonedx cyclonedx --quiet --format json --spec-version 1.5 \
    --features vendored --target x86_64-unknown-linux-gnu --override-filename "$name" --manifest-path node/Cargo.toml
mkdir -p "$(dirname "$out")"
# Paths of this machine and the random serial number are no part of it: the same commit, the same file.
python3 - "node/$name.json" "$out" "$root" <<'PYTHON'
import json, sys
source, out, root = sys.argv[1:]
text = open(source).read().replace(f"path+file://{root}", "path+file:///rankmesh")
bom = json.loads(text)
bom.pop("serialNumber", None)
assert bom["bomFormat"] == "CycloneDX" and len(bom["components"]) > 100, len(bom.get("components", []))
without = [c["name"] for c in bom["components"] if not c.get("licenses")]
assert not without, f"no licence is known of {without}"
json.dump(bom, open(out, "w"), indent=1, sort_keys=True)
PYTHON
