#!/bin/sh
# Installs the system packages that building (and, with --test, --kernels or --dist, testing and packing) needs, when this user may; else says which.
# Debian and Ubuntu. What is already there is not asked for, so a second run does nothing.
set -eu

missing=""
need() { # PACKAGE TEST-COMMAND…
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
have() { command -v "$1" >/dev/null 2>&1; }

need gcc have gcc
need make have make
need clang have clang            # compiles the BPF programs
need pkg-config have pkg-config
need libelf-dev test -e /usr/include/libelf.h   # libbpf
need zlib1g-dev test -e /usr/include/zlib.h     # libbpf
if [ "${1:-}" = --test ]; then
    need musl-tools have musl-gcc    # a program without glibc
    need g++ have c++                # functions of C++ to be probed
    need python3 have python3        # an interpreter whose stacks are read
    need openmpi-bin have mpirun
    need libopenmpi-dev have mpicc
    # the other MPI; mpirun and mpicc stay Open MPI's, whose alternatives have the higher priority
    need mpich have mpirun.mpich
    need libmpich-dev have mpicc.mpich
    need gfortran have gfortran      # programs in Fortran
    need lammps have lmp             # real programs whose ranks meet in sends and receives
    need hpcc have hpcc
    need python3-mpi4py /usr/bin/python3 -c "import mpi4py"
    need python3-grpcio /usr/bin/python3 -c "import grpc"  # a server and a client of gRPC
    need nghttp2-server have nghttpd           # others of HTTP/2
    need nghttp2-client have h2load
    need curl have curl
    need slurm-wlm test -x /usr/sbin/slurmctld   # a cluster on this machine
    need munge test -x /usr/sbin/munged
    need libgloo-dev test -e /usr/include/gloo/allreduce.h  # a real gloo job
    need libibverbs-dev test -e /usr/include/infiniband/verbs.h  # its structures, for a stand-in
    need libcap2-bin test -x /usr/sbin/setcap  # a program with capabilities of its own
    need chromium have chromium      # a page as a browser shows it
    need nodejs have node            # Perfetto's trace_processor, as WebAssembly …
    need python3-pip python3 -m pip --version  # … which a package from PyPI has
    need postgresql-client have psql  # a client of PostgreSQL's protocol
    need libpostgresql-jdbc-java test -e /usr/share/java/postgresql.jar  # another …
    need default-jdk-headless have javac                                 # … and what compiles a program that uses it
    have node || need npm have npm    # packages for clients in JavaScript (other builds of Node have npm with it)
    need python3-venv python3 -c "import venv, ensurepip"  # packages from PyPI for other clients
    need prometheus have promtool              # the tests of its alert rules
    need prometheus-alertmanager have prometheus-alertmanager  # a receiver of alerts
    need strace have strace                    # where a process connects to
    need tmux have tmux                       # a terminal for rankmesh top
    need iproute2 have ip                      # hosts in network namespaces …
    need nftables test -x /usr/sbin/nft        # … that lose packets
fi
if [ "${1:-}" = --dist ]; then
    for tool in autoconf automake flex bison gawk debootstrap cpio rpm; do need $tool have $tool; done
    need autopoint have autopoint
    need libtool test -e /usr/bin/libtoolize
    need python3-venv python3 -c "import venv, ensurepip"
fi
if [ "${1:-}" = --kernels ]; then
    need qemu-system-x86 have qemu-system-x86_64
    need qemu-system-arm have qemu-system-aarch64
    need qemu-user have qemu-aarch64
    need busybox-static have busybox
    need cpio have cpio
    need libcap2-bin test -x /usr/sbin/setcap
fi

[ -n "$missing" ] || exit 0
if ! have apt-get; then
    echo "rankmesh needs the equivalents of these Debian packages:$missing" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" != 0 ]; then
    if have sudo && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        echo "rankmesh needs some system packages and may not install them. Run:" >&2
        echo "    sudo apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
fi
echo "installing:$missing" >&2
# The package lists may be absent or old on a fresh machine.
$as_root apt-get update -qq >&2
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >&2
