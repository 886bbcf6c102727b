# Sourced by what needs Debian's packages of another suite or machine than this host's: needs $work, $suite and $debian (amd64, arm64).
# Debian's packages of a suite and machine, apart from this host's own: `packages search|download …`.
state=$work/apt/$suite-$debian
packages() {
    if ! [ -e "$state/made" ]; then
        mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
        : >"$state/status"
        for from in "$suite" "$suite-security"; do
            case $from in *-security) mirror=${MIRROR:-http://deb.debian.org/debian}-security ;; *) mirror=${MIRROR:-http://deb.debian.org/debian} ;; esac
            echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $from main"
        done >"$state/sources"
        with_state apt-get update -qq >&2
        touch "$state/made"
    fi
    with_state "$@"
}
with_state() {
    program=$1
    shift
    "$program" -o Dir::Etc::sourcelist="$state/sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::State="$state" \
        -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o APT::Architecture=$debian -o APT::Architectures=$debian "$@"
}
# Unpacks packages into a folder, once.
unpack() { # FOLDER PACKAGE…
    folder=$1
    shift
    [ ! -e "$folder" ] || return 0
    rm -rf "$folder.new"
    mkdir -p "$folder.new/debs"
    echo "downloading $*" >&2
    (cd "$folder.new/debs" && packages apt-get download -qq "$@" && for deb in *.deb; do dpkg -x "$deb" ..; done)
    rm -rf "$folder.new/debs"
    mv "$folder.new" "$folder"
}
