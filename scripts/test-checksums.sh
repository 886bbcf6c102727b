#!/bin/sh
# What checksums.sh accepts and refuses. Needs ssh-keygen.
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/out"
for key in ours other; do ssh-keygen -q -t ed25519 -N '' -C "$key" -f "$dir/$key"; done
echo "release $(cut -d' ' -f1,2 "$dir/ours.pub")" >"$dir/signers"
echo binary >"$dir/out/rankmesh.tar.gz"
echo list >"$dir/out/rankmesh.cdx.json"
is() {
    want=$1 what=$2
    if scripts/checksums.sh --verify "$dir/out" "$dir/signers" >"$dir/said" 2>&1; then got=accepted; else got=refused; fi
    [ "$got" = "$want" ] || { echo "$what: $got"; cat "$dir/said"; exit 1; }
    echo "$what: $got"
}
scripts/checksums.sh "$dir/out" >/dev/null
is refused "without a signature"
SIGN_KEY=$dir/ours scripts/checksums.sh "$dir/out" >/dev/null
is accepted "signed"
echo more >>"$dir/out/rankmesh.tar.gz"
is refused "a changed file"
(cd "$dir/out" && sha256sum rankmesh* >SHA256SUMS)
is refused "a changed file with its sums"
SIGN_KEY=$dir/other scripts/checksums.sh "$dir/out" >/dev/null
is refused "signed by another key"
SIGN_KEY=$dir/ours scripts/checksums.sh "$dir/out" >/dev/null
echo new >"$dir/out/rankmesh.deb"
is refused "a file that was not signed"
rm "$dir/out/rankmesh.deb" "$dir/out/rankmesh.cdx.json"
is refused "a file that is missing"
