"""Certificate rotation of kubeadm machines: `kubeadm certs renew`, and the certificates of the kubelet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from herder.api.rke import operations
from herder.api.rke.distributions import KUBEADM
from herder.api.rke.node.plan import Plan
from herder.api.rke.services import unknown_services
from herder.controllers.planner.distributions.certificate_report import kubeadm_expiry
from herder.controllers.planner.distributions.interface import MachineInputs
from herder.controllers.planner.distributions.kubeadm.components import (
    API_SERVER,
    COMMON_FUNCTIONS,
    CONTROLLER_MANAGER,
    ETCD,
    RESTART_FUNCTIONS,
    SCHEDULER,
)
from herder.controllers.planner.distributions.tasks import RotateCertificates, UnsupportedTask, script_instruction


class Service(NamedTuple):
    """Certificates by their names in `kubeadm certs renew`, and the components that read them only when they start."""

    certificates: Sequence[str] = ()
    components: Sequence[str] = ()


KUBELET = "kubelet"
SERVICES: Mapping[str, Service] = {
    "admin": Service(("admin.conf", "super-admin.conf")),
    "etcd": Service(("etcd-server", "etcd-peer", "etcd-healthcheck-client"), (ETCD,)),
    "api-server": Service(("apiserver", "apiserver-kubelet-client", "apiserver-etcd-client"), (API_SERVER,)),
    "auth-proxy": Service(("front-proxy-client",), (API_SERVER,)),
    "controller-manager": Service(("controller-manager.conf",), (CONTROLLER_MANAGER,)),
    "scheduler": Service(("scheduler.conf",), (SCHEDULER,)),
    KUBELET: Service(),
}
"""By the names that Rancher uses. etcd comes before the API server, which needs it."""

KUBELET_FUNCTIONS = """
pki=/var/lib/kubelet/pki

as_node() { # Servers impersonate the node: its own certificate may have expired.
    if [ -e "$admin" ]; then
        kubectl --kubeconfig "$admin" --as "system:node:$name" --as-group system:nodes "$@"
    else
        kubectl --kubeconfig /etc/kubernetes/kubelet.conf "$@"
    fi
}

new_request() { # kubeadm needs a version and an address, and uses neither for the request of the kubelet
    cat > "$work/config.yaml" << CONFIG
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration: {name: "$name"}
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: "$(cat "$state/version")"
encryptionAlgorithm: ECDSA-P256
CONFIG
    kubeadm certs generate-csr --config "$work/config.yaml" --kubeconfig-dir "$work" --cert-dir "$work/pki" \\
        > "$work/log" 2>&1 || fail "kubeadm certs generate-csr: $(cat "$work/log")"
    sed -n 's/^ *client-key-data: //p' "$work/kubelet.conf" | base64 -d > "$work/key"
    [ -s "$work/key" ] || fail "kubeadm generated no key for the kubelet"
}

issue() { # A node renews its own certificate with another key; see csr_approver.py
    request=$(as_node create -o 'jsonpath={.metadata.name}' -f - << REQUEST
{"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"generateName": "csr-"},
 "spec": {"signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"],
          "request": "$(base64 -w 0 < "$work/kubelet.conf.csr")"}}
REQUEST
    )
    tries=120
    until as_node get csr "$request" -o 'jsonpath={.status.certificate}' | base64 -d > "$work/certificate" \\
        && [ -s "$work/certificate" ]; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "CertificateSigningRequest $request is not signed; see: kubectl get csr"
        sleep 1
    done
}

replace_current() { # FILE
    ln -sfn "$1" "$pki/.new"
    mv -T "$pki/.new" "$pki/kubelet-client-current.pem"
}

renew_kubelet() {
    [ -e "$pki/kubelet-client-current.pem" ] || fail "$pki/kubelet-client-current.pem does not exist"
    work=$(mktemp -d "$state/rotation.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    new_request
    issue
    before=$(readlink "$pki/kubelet-client-current.pem" || true)
    after=$pki/kubelet-client-$(date -u +%Y-%m-%d-%H-%M-%S).pem
    cat "$work/certificate" "$work/key" > "$after"
    replace_current "$after"
    if ! kubectl --kubeconfig /etc/kubernetes/kubelet.conf get node "$name" > "$work/log" 2>&1; then
        [ -z "$before" ] || replace_current "$before"
        fail "the new certificate of the kubelet does not work: $(cat "$work/log")"
    fi
    rm -f "$pki/kubelet.crt" "$pki/kubelet.key" # the kubelet creates its serving certificate when it starts
    systemctl restart kubelet
    tries=60
    until kubectl --kubeconfig /dev/null --server http://127.0.0.1:10248 get --raw /healthz > /dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "the kubelet does not run after its restart; see: journalctl -u kubelet"
        sleep 1
    done
    case $before in "$after") ;; /*) rm -f "$before" ;; esac
}
"""

ROTATE_SCRIPT = f"""{COMMON_FUNCTIONS}{RESTART_FUNCTIONS}{KUBELET_FUNCTIONS}
name=$(node_name "$1") certificates=$2 components=$3 kubelet=$4
for each in $certificates; do
    kubeadm certs renew "$each" --config /etc/rancher/kubeadm/init.yaml >&2
done
for each in $components; do
    restart "$each"
done
[ "$kubelet" != kubelet ] || renew_kubelet
echo "certificates of $name are renewed: ${{certificates:-none}} ${{kubelet:-}}"
"""
"""Renews certificates with the CAs on this machine, restarts what uses them, then renews those of the kubelet."""


def rotate_certificates(machine: MachineInputs, task: RotateCertificates) -> Plan:
    """Workers have only certificates of the kubelet; without these, the task of a worker does nothing."""
    if unknown := unknown_services(KUBEADM.name, task.services):
        raise UnsupportedTask(f"rotateCertificates.services: {unknown}")
    named = [name for name in SERVICES if not task.services or name in task.services]
    services = [SERVICES[name] for name in named if machine.roles.is_server]
    certificates = [each for service in services for each in service.certificates]
    components = dict.fromkeys(each for service in services for each in service.components)
    kubelet = KUBELET if KUBELET in named else ""
    if not certificates and not kubelet:
        return Plan()
    arguments = (machine.node_name, " ".join(certificates), " ".join(components), kubelet)
    rotation = script_instruction(operations.ROTATE_CERTIFICATES, ROTATE_SCRIPT, task, *arguments)
    return Plan(instructions=(rotation,), periodic_instructions=(kubeadm_expiry(),))
