#!/bin/sh
# Tarball, .deb, .rpm, checksums, SBOM and licences of the binaries that scripts/dist.sh has built.
#     TARGET=DIR VERSION=V package.sh OUT ARCH…
# SIGN_KEY=FILE also signs (scripts/checksums.sh).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
out=$1
shift
: "${VERSION:?}" "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
mtime=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

for arch in "$@"; do
    stage=$out/rankmesh-$VERSION-$arch
    # Manual pages and completions are the same for every machine: of one that runs here.
    program=$out/rankmesh-$VERSION-$(uname -m)/bin/rankmesh
    [ -x "$program" ] || { echo "package.sh needs the binary of this machine's kind, too: $program" >&2; exit 1; }
    mkdir -p "$stage/share/man/man1" "$stage/share/bash-completion/completions" "$stage/share/zsh/site-functions" \
        "$stage/share/fish/vendor_completions.d" "$stage/share/doc/rankmesh/slurm" "$stage/lib/systemd/system" \
        "$stage/lib/sysusers.d" "$stage/etc/default"
    "$program" man --out "$stage/share/man/man1"
    "$program" completions bash >"$stage/share/bash-completion/completions/rankmesh"
    "$program" completions zsh >"$stage/share/zsh/site-functions/_rankmesh"
    "$program" completions fish >"$stage/share/fish/vendor_completions.d/rankmesh.fish"
    cp LICENSE NOTICE CHANGELOG.md README.md "$stage/share/doc/rankmesh/"
    cp packaging/slurm/* "$stage/share/doc/rankmesh/slurm/"
    sed 's|/usr/local/bin/rankmesh|/usr/bin/rankmesh|' packaging/rankmesh.service >"$stage/lib/systemd/system/rankmesh.service"
    cp packaging/sysusers.conf "$stage/lib/sysusers.d/rankmesh.conf"
    cp packaging/default "$stage/etc/default/rankmesh"
    cp packaging/install.sh "$stage/install.sh"
    chmod -R u=rwX,go=rX "$stage"

    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$out" -cf - "$(basename "$stage")" |
        gzip -9n >"$out/rankmesh-$VERSION-$arch.tar.gz"
    case $arch in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; *) debian=$arch ;; esac
    # nfpm fills in variables of the environment in some fields only: all are put in here.
    for packager in deb rpm; do
        sed -e "s|\${STAGE}|$stage|; s|\${ARCH}|$debian|; s|\${VERSION}|$VERSION|; s|\${MTIME}|$mtime|; s|\${PACKAGING}|$root/packaging|" \
            packaging/nfpm.yaml >"$out/nfpm-$arch.yaml"
        nfpm package --config "$out/nfpm-$arch.yaml" --packager $packager --target "$out" >&2
        rm "$out/nfpm-$arch.yaml"
    done
done

# What is inside, and under which licences.
scripts/tools.sh cargo-cyclonedx cargo-about
PATH=$PATH:$root/target/tools/bin
export PATH
scripts/sbom.sh "$out/rankmesh-$VERSION.cdx.json"
# Texts from the packages themselves (about.toml: not below their first folder, which takes minutes), SPDX's where one has none.
(cd node && cargo-about about generate --locked --offline --features vendored -c ../about.toml ../packaging/about.hbs) \
    >"$out/rankmesh-$VERSION-licences.html"

scripts/checksums.sh "$out"
