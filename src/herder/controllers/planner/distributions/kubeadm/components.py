"""Shell functions that restart components of a kubeadm server.

They are parts of fixed scripts. A component is restarted by a signal to its container: the kubelet starts another one
in the same pod. It is found by the labels that containerd has from the kubelet, because pods of users may run programs
of the same name.
"""

from __future__ import annotations

ETCD, API_SERVER = "etcd", "kube-apiserver"
CONTROLLER_MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"

COMMON_FUNCTIONS = """set -eu
umask 077
export PATH="/usr/local/bin:$PATH" LC_ALL=C
state=/var/lib/rancher/kubeadm
admin=/etc/kubernetes/admin.conf
fail() { echo "$*" >&2; exit 1; }
node_name() { [ -z "$1" ] || { echo "$1"; return; }; hostname | tr '[:upper:]' '[:lower:]'; }
"""

RESTART_FUNCTIONS = """
label() { echo "labels.\\"io.kubernetes.$1\\"==\\"$2\\""; }

running() { # COMPONENT; the IDs of its running containers
    own="$(label pod.namespace kube-system),$(label pod.name "$1-$name"),$(label container.name "$1")"
    ctr -n k8s.io containers list -q "$own" > "$state/$1.containers"
    ctr -n k8s.io tasks list | awk '$3 == "RUNNING" { print $1 }' | grep -xF -f "$state/$1.containers" || true
}

signal() { for id in $2; do ctr -n k8s.io tasks kill --signal "$1" "$id" || true; done; }

responds() {
    case $1 in
        etcd) set -- --kubeconfig /dev/null --server http://127.0.0.1:2381 get --raw /health ;;
        kube-apiserver) set -- --kubeconfig "$admin" --server https://127.0.0.1:6443 get --raw /readyz ;;
        *) return 0 ;; # the probes of the plan check the others
    esac
    kubectl --request-timeout=5s "$@" > /dev/null 2>&1
}

wait_until_replaced() { # COMPONENT, IDs of its old containers
    tries=300
    while [ "$tries" -gt 0 ]; do
        now=$(running "$1") left=
        [ -z "$2" ] || left=$(printf '%s\\n' "$now" | grep -xF "$2" || true)
        if [ -n "$now" ] && [ -z "$left" ] && responds "$1"; then return; fi
        [ "$tries" != 200 ] || signal SIGKILL "$left"
        tries=$((tries - 1))
        sleep 1
    done
    fail "$1 does not run 5 minutes after it was restarted; for the reason, see /var/log/pods/kube-system_$1-${name}_*"
}

restart() { # COMPONENT
    old=$(running "$1")
    signal SIGTERM "$old"
    wait_until_replaced "$1" "$old"
}
"""
"""`restart` returns when another container runs and responds. It needs `$name`, the name of the Node."""
