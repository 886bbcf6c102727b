#!/bin/sh
# The .deb on an old Debian, as a user meets it: install, start, ask, upgrade while it runs, remove, purge; and the tarball. In a
# chroot that debootstrap makes once (SUITE=bullseye: glibc 2.31). Root. Nothing of this host changes but DIR.
#     test-package.sh DIST DIR        DIST: what scripts/dist.sh made
set -eu
dist=$(cd "${1:?usage: test-package.sh DIST DIR}" && pwd)
mkdir -p "${2:?usage: test-package.sh DIST DIR}"
dir=$(cd "$2" && pwd)
suite=${SUITE:-bullseye}
root=$dir/$suite
[ "$(id -u)" = 0 ] || { echo "test-package.sh needs root (chroot)" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "test-package.sh needs debootstrap: apt-get install debootstrap" >&2; exit 1; }

if ! [ -e "$root/.made" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$dir/debootstrap.log" 2>&1 || {
        tail -n 5 "$dir/debootstrap.log" >&2
        exit 1
    }
    touch "$root/.made"
fi
agent="" old=""
cleanup() {
    for one in $agent $old; do kill "$one" 2>/dev/null || true; done
    for at in proc dev; do mountpoint -q "$root/$at" && umount "$root/$at"; done
}
trap cleanup EXIT
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/dev" || mount --bind /dev "$root/dev"
in_root() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
step() { echo "test-package: $*" >&2; }
fail() { echo "test-package: FAILED: $*" >&2; exit 1; }

in_root dpkg --purge rankmesh >/dev/null 2>&1 || true
deb=$(ls "$dist"/rankmesh_*_amd64.deb | tail -n 1)
cp "$deb" "$root/tmp/rankmesh.deb"
version=$(dpkg-deb -f "$deb" Version)

step "install $(basename "$deb") on $suite ($(in_root ldd --version | head -n 1))"
in_root dpkg -i /tmp/rankmesh.deb
[ "$(in_root getent group rankmesh | cut -d: -f1)" = rankmesh ] || fail "no group rankmesh"
in_root rankmesh --version
for file in /usr/share/man/man1/rankmesh.1 /usr/share/bash-completion/completions/rankmesh /lib/systemd/system/rankmesh.service \
    /usr/share/doc/rankmesh/NOTICE /etc/default/rankmesh; do
    [ -s "$root$file" ] || fail "no $file"
done
grep -q '^ExecStart=/usr/bin/rankmesh ' "$root/lib/systemd/system/rankmesh.service" || fail "the unit starts another program"

start() {
    # no function: what is killed later is the agent, not a shell around it
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" rankmesh up --name packaged --listen 127.0.0.1:0 --identity /var/lib/rankmesh/identity --store /var/lib/rankmesh/trace.db \
        --socket /run/rankmesh/agent.sock --capture off "$@" >"$dir/agent.log" 2>&1 &
    agent=$!
}
stop() {
    kill "$agent"
    wait "$agent" || fail "the agent ended with an error"
    agent=""
}
ask() { in_root rankmesh query --socket /run/rankmesh/agent.sock --format csv "$@"; }
wait_for_answer() {
    tries=0
    until [ "$(ask 'SELECT count(*) FROM sessions' 2>/dev/null | tail -n 1)" = "$1" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { cat "$dir/agent.log" >&2; fail "no answer of $1 sessions"; }
        sleep 0.1
    done
}
step "start and ask"
mkdir -p "$root/run/rankmesh" "$root/var/lib/rankmesh"
start
wait_for_answer 1

step "upgrade in place, with a setting of the site's; the newer agent takes the running one's place"
echo 'RANKMESH_FLAGS=--allow-group staff' >"$root/etc/default/rankmesh"
rm -rf "$dir/newer"
dpkg-deb -R "$deb" "$dir/newer"
sed -i "s/^Version: .*/Version: $version+newer/" "$dir/newer/DEBIAN/control"
dpkg-deb --root-owner-group -b "$dir/newer" "$root/tmp/newer.deb" >/dev/null
in_root dpkg -i --force-confold /tmp/newer.deb
grep -q 'allow-group staff' "$root/etc/default/rankmesh" || fail "the site's settings are gone"
old=$agent
start --replace
wait_for_answer 2
! kill -0 "$old" 2>/dev/null || fail "two agents run"
gap=$(ask 'SELECT max(start_ns) - max(stop_ns) FROM sessions' | tail -n 1)
step "from one store's closing to the other's opening: $((gap / 1000000)) ms"

step "remove: the identity, the store and the settings stay"
kill "$agent"
wait "$agent" || true
agent="" old=""
in_root dpkg -r rankmesh
[ ! -e "$root/usr/bin/rankmesh" ] || fail "the program is still there"
[ -s "$root/var/lib/rankmesh/trace.db" ] && [ -d "$root/var/lib/rankmesh/identity" ] || fail "remove took the store"
[ -e "$root/etc/default/rankmesh" ] || fail "remove took the settings"

step "install again: the same store goes on"
in_root dpkg -i /tmp/rankmesh.deb >/dev/null
start
wait_for_answer 3
stop old=""

step "purge: nothing stays but the group"
in_root dpkg --purge rankmesh
left=$(cd "$root" && find etc usr var/lib/rankmesh run/rankmesh -name '*rankmesh*' ! -name 'agent.sock' ! -path 'run/rankmesh' ! -path 'usr/share/doc*' 2>/dev/null || true)
[ -z "$left" ] || fail "purge left: $left"
in_root getent group rankmesh >/dev/null || fail "the group is gone"

step "the tarball below a prefix of its own"
tarball=$(ls "$dist"/rankmesh-*-x86_64.tar.gz | tail -n 1)
tar -xzf "$tarball" -C "$root/tmp"
folder=/tmp/$(basename "$tarball" .tar.gz)
in_root "$folder/install.sh" /opt/rankmesh
in_root /opt/rankmesh/bin/rankmesh --version >/dev/null
in_root sh -c 'xargs rm < /opt/rankmesh/share/doc/rankmesh/FILES'
[ -z "$(find "$root/opt/rankmesh" -type f)" ] || fail "files stay that FILES does not name"
rm -rf "$root/opt/rankmesh" "$root$folder" "$root/tmp/"*.deb

if command -v rpm >/dev/null; then
    # rpm's database lies within the chroot, whose own packages it does not know: what is needed is looked at, not resolved.
    package=$(ls "$dist"/rankmesh-*.x86_64.rpm | tail -n 1)
    rpm -qp --requires "$package" | grep -q 'glibc >= 2.28' || fail "the .rpm does not say which glibc it needs"
    rpms() { rpm --root "$root" --dbpath /var/lib/rpm-test "$@"; }
    rm -rf "$root/var/lib/rpm-test"
    mkdir -p "$root/var/lib/rpm-test"
    rpms --initdb
    step "the .rpm: install"
    rpms -i --nodeps --nosignature "$package" | tee "$dir/rpm.log"
    grep -q 'systemctl enable --now' "$dir/rpm.log" || fail "the .rpm does not say how to go on"
    cmp "$root/usr/bin/rankmesh" "$dir/newer/usr/bin/rankmesh" || fail "the two packages hold different programs"
    rpms -V --nodeps rankmesh || fail "what is installed is not what the .rpm says"
    [ -s "$root/usr/lib/systemd/system/rankmesh.service" ] || fail "no unit"
    in_root rankmesh --version >/dev/null
    mkdir -p "$root/run/rankmesh" "$root/var/lib/rankmesh"
    start
    wait_for_answer 1

    step "the .rpm: upgrade in place, with a setting of the site's"
    echo 'RANKMESH_FLAGS=--allow-group staff' >"$root/etc/default/rankmesh"
    stage=$(ls -d "$dist"/rankmesh-*-x86_64 | tail -n 1)
    packaging=$(cd "$(dirname "$0")/../packaging" && pwd)
    sed -e "s|\${STAGE}|$stage|; s|\${ARCH}|amd64|; s|\${VERSION}|$version|; s|\${MTIME}|2026-01-01T00:00:00Z|; s|\${PACKAGING}|$packaging|" \
        -e 's/^release: .*/release: "9"/; s/^version: \([0-9.]*\).*/version: \1/' "$packaging/nfpm.yaml" >"$dir/nfpm.yaml"
    PATH=$PATH:$(dirname "$packaging")/target/dist-tools/bin nfpm package --config "$dir/nfpm.yaml" --packager rpm --target "$dir/newer.rpm" >&2
    rpms -U --nodeps --nosignature "$dir/newer.rpm"
    [ "$(rpms -q --qf '%{RELEASE}' rankmesh)" = 9 ] || fail "not upgraded"
    grep -q 'allow-group staff' "$root/etc/default/rankmesh" || fail "the site's settings are gone"
    old=$agent
    start --replace
    wait_for_answer 2

    step "the .rpm: remove: the identity, the store and changed settings stay"
    stop
    old=""
    rpms -e rankmesh
    [ ! -e "$root/usr/bin/rankmesh" ] || fail "the program is still there"
    [ -s "$root/var/lib/rankmesh/trace.db" ] && [ -d "$root/var/lib/rankmesh/identity" ] || fail "removing took the store"
    grep -q 'allow-group staff' "$root/etc/default/rankmesh.rpmsave" || fail "removing took the settings"
    rm -rf "$root/var/lib/rankmesh" "$root/var/lib/rpm-test" "$root/etc/default/rankmesh.rpmsave"
else
    echo "skipped: the .rpm: rpm is not here (apt-get install rpm cpio)" >&2
fi
step "all good"
