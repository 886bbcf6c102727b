#!/bin/sh
# SHA256SUMS of the files of a folder; signed where SIGN_KEY names an OpenSSH private key, or checked.
#     checksums.sh DIR                    writes DIR/SHA256SUMS, and SHA256SUMS.sig with SIGN_KEY
#     checksums.sh --verify DIR SIGNERS   fails where the signature is not of a key of SIGNERS ("NAME ssh-ed25519 AAAA..." a line), or a file
#                                         is not what was signed, or lies there unsigned
# Needs ssh-keygen of OpenSSH 8.1 or later for signatures.
set -eu
if [ "${1:-}" = --verify ]; then
    cd "${2:?which folder}"
    signers=${3:?which file of allowed signers}
    [ -f SHA256SUMS.sig ] || { echo "checksums: SHA256SUMS is not signed" >&2; exit 1; }
    name=$(ssh-keygen -Y find-principals -f "$signers" -s SHA256SUMS.sig) ||
        { echo "checksums: signed by a key that is not in $signers" >&2; exit 1; }
    ssh-keygen -Y verify -f "$signers" -I "$name" -n rankmesh -s SHA256SUMS.sig <SHA256SUMS
    sha256sum --check --quiet --strict SHA256SUMS
    for file in *; do
        case $file in SHA256SUMS | SHA256SUMS.sig) continue ;; esac
        [ ! -f "$file" ] || awk -v file="$file" '$2 == file {found = 1} END {exit !found}' SHA256SUMS ||
            { echo "checksums: $file is not among the files that were signed" >&2; exit 1; }
    done
    exit 0
fi
cd "${1:?which folder}"
find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
rm -f SHA256SUMS.sig
[ -z "${SIGN_KEY:-}" ] || ssh-keygen -Y sign -q -f "$SIGN_KEY" -n rankmesh SHA256SUMS
cat SHA256SUMS
