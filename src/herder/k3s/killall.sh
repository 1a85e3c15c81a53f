#!/bin/sh
# Stop k3s and all its containers, and remove their mounts and network interfaces. The program, its data and its
# configuration are kept.
set -u
data=${K3S_DATA_DIR:-/var/lib/rancher/k3s}

[ "$(id -u)" = 0 ] || { echo "k3s-killall.sh: must be root" >&2; exit 1; }

for unit in /etc/systemd/system/k3s*.service; do
    [ ! -s "$unit" ] || systemctl stop "$(basename "$unit")"
done

# Containers are children of their shims. Shims of other container runtimes are not touched.
with_children() { # PID…
    for parent in "$@"; do
        echo "$parent"
        # shellcheck disable=SC2046 # one word for each process
        with_children $(ps -e -o ppid= -o pid= | awk -v parent="$parent" '$1 == parent { print $2 }')
    done
}

shims() { ps -e -o pid= -o args= | awk -v data="$data/" 'index($2, data) == 1 && $2 ~ /containerd-shim/ { print $1 }'; }

# shellcheck disable=SC2046
containers=$(with_children $(shims))
# shellcheck disable=SC2086
[ -z "$containers" ] || kill -9 $containers 2> /dev/null

unmount_below() { # PREFIX; the deepest mounts first
    awk -v prefix="$1" 'index($2, prefix) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r path; do
        umount -f "$(printf '%b' "$path")"
    done
}

unmount_below /run/k3s
unmount_below "$data/agent"
unmount_below /var/lib/kubelet/pods
unmount_below /var/lib/kubelet/plugins
unmount_below /run/netns/cni-
rm -f /run/netns/cni-*

ip -o link show master cni0 2> /dev/null | awk -F '[:@] *' '{ print $2 }' | while read -r link; do ip link delete "$link"; done
for link in cni0 flannel.1 flannel-v6.1 kube-ipvs0 flannel-wg flannel-wg-v6; do
    ip link delete "$link" 2> /dev/null
done
rm -rf /var/lib/cni/

for tables in iptables ip6tables; do
    command -v $tables-save > /dev/null || continue
    $tables-save | grep -v -E 'KUBE-|CNI-|cali-|cali:|CATTLE_|flannel|FLANNEL' | $tables-restore
done
exit 0
