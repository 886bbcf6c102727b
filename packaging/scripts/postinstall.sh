#!/bin/sh
# After installing and upgrading, as .deb (configure [OLD-VERSION]) and .rpm (1: installed, 2: upgraded). The agent is not started
# by itself: without --join it would found a mesh of its own.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers rankmesh.conf || true
fi
if ! getent group rankmesh >/dev/null 2>&1; then
    groupadd --system rankmesh
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    # An agent that runs is replaced by the new one.
    systemctl try-restart rankmesh.service || true
fi
case "$1:$2" in
configure: | 1:*)
    echo "rankmesh: put --join HOST:7117 --token-file FILE into /etc/default/rankmesh, then: systemctl enable --now rankmesh" ;;
esac
