#!/bin/sh
# Makes the user that the node runs as, and tells systemd of the unit. It neither enables nor starts the service, and leaves a
# node that runs alone: an operator starts one node at a time with a new binary.
set -e
[ "$1" = configure ] || exit 0
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers quotad.conf
elif ! getent passwd quotad >/dev/null; then
	adduser --system --group --home /var/lib/quotad --no-create-home quotad
fi
[ ! -d /run/systemd/system ] || systemctl daemon-reload
