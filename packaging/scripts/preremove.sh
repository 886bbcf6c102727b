#!/bin/sh
# Before removing, as .deb (remove) and .rpm (0); not before an upgrade.
set -e
case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl disable --now rankmesh.service || true
    fi ;;
esac
