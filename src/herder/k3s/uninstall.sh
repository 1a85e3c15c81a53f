#!/bin/sh
# Uninstall k3s with all its data: a server as k3s-uninstall.sh, an agent as k3s-agent-uninstall.sh. The node password in
# /etc/rancher/node is kept, because servers accept a known node name only with its password.
set -u

[ "$(id -u)" = 0 ] || { echo "$0: must be root" >&2; exit 1; }

self=$(readlink -f "$0")
bin=$(dirname "$self")
service=$(basename "$self" -uninstall.sh)
units=/etc/systemd/system
if [ -z "${K3S_DATA_DIR:-}" ]; then
    K3S_DATA_DIR=$(sed -n 's/^K3S_DATA_DIR="\(.*\)"$/\1/p' "$units/$service.service.env" 2> /dev/null)
fi
export K3S_DATA_DIR="${K3S_DATA_DIR:-/var/lib/rancher/k3s}"

"$bin/k3s-killall.sh"
systemctl disable -q "$service"
systemctl reset-failed "$service" 2> /dev/null
rm -f "$units/$service.service" "$units/$service.service.env"
systemctl daemon-reload

rm -f "$self"
for other in "$units"/k3s*.service; do
    if [ -s "$other" ]; then exit 0; fi # the other service still uses the rest
done
for name in kubectl crictl ctr; do
    [ "$(readlink "$bin/$name" 2> /dev/null)" != k3s ] || rm -f "$bin/$name"
done
rm -rf /etc/rancher/k3s /run/k3s /run/flannel "$K3S_DATA_DIR" /var/lib/kubelet
rm -f "$bin/k3s" "$bin/k3s-killall.sh"
exit 0
