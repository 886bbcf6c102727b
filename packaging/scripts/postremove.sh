#!/bin/sh
# After removing. The trace store and this host's identity in /var/lib/rankmesh stay, until a Debian package is purged; of an .rpm
# they stay for good. The group stays in any case: files may belong to it.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
case "$1" in
purge) rm -rf /var/lib/rankmesh ;;
0) [ ! -d /var/lib/rankmesh ] || echo "rankmesh: the trace store and the identity stay in /var/lib/rankmesh" ;;
esac
