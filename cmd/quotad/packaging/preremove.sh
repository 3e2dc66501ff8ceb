#!/bin/sh
# Stops the node before its binary goes. An upgrade leaves it running.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl disable --now quotad.service
fi
