#!/bin/sh
# CPythons that are newer than this machine's: Debian unstable's, in a folder of their own. Prints their paths, as RANKMESH_PYTHONS
# takes them. They are started through that folder's own loader and C library, as programs in containers are. Root (debootstrap).
#     newer-pythons.sh DIR [PACKAGE...]        PACKAGE: python3.14, python3.15 (both)
set -eu
mkdir -p "${1:?usage: newer-pythons.sh DIR [PACKAGE...]}"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- python3.14 python3.15
command -v debootstrap >/dev/null 2>&1 || {
    echo "newer-pythons.sh needs debootstrap: apt-get install debootstrap" >&2
    exit 1
}
list=
for package in "$@"; do
    [ -x "$dir/root/usr/bin/$package" ] || missing=yes
    list=$list${list:+:}$dir/$package
done
if [ "${missing:-no}" = yes ]; then
    rm -rf "$dir/root"
    debootstrap --variant=minbase --include="$(echo "$@" | tr ' ' ,)" sid "$dir/root" >"$dir/log" 2>&1 || {
        tail -n 5 "$dir/log" >&2
        exit 1
    }
fi
loader=$(cd "$dir/root" && ls lib64/ld-linux-x86-64.so.2 lib/ld-linux-aarch64.so.1 2>/dev/null | head -n 1)
for package in "$@"; do
    cat >"$dir/$package" <<WRAPPER
#!/bin/sh
PYTHONHOME="$dir/root/usr" exec "$dir/root/$loader" --library-path "$dir/root/usr/lib/$(uname -m)-linux-gnu" "$dir/root/usr/bin/$package" "\$@"
WRAPPER
    chmod +x "$dir/$package"
done
echo "$list"
