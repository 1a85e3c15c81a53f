"""Arguments of K3s and RKE2 that users may set, from their documentation and `--help`.

Arguments that the planner sets itself are left out. Servers support the arguments of agents too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from herder.api.rke.distributions import release_of


class ValueType(Enum):
    TEXT = "text"
    BOOLEAN = "true or false"
    LIST = "a text or a list of texts"
    NUMBER = "a number"


@dataclass(frozen=True)
class ArgumentTable:
    """Arguments of one distribution by name, with their types and the first version that supports them."""

    server: Mapping[str, ValueType]
    agent: Mapping[str, ValueType]
    since: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # first version that supports an argument

    def value_type(self, argument: str) -> ValueType | None:
        return self.agent.get(argument) or self.server.get(argument)

    def supports(self, argument: str, version: str) -> bool:
        """Whether a version supports the argument. Without an entry in `since`, every version does."""
        release: tuple[int, ...] = release_of(version) or ()
        return self.value_type(argument) is not None and release >= self.since.get(argument, ())


def _arguments(*, text: str = "", boolean: str = "", listed: str = "", number: str = "") -> dict[str, ValueType]:
    kinds = ((text, ValueType.TEXT), (boolean, ValueType.BOOLEAN), (listed, ValueType.LIST), (number, ValueType.NUMBER))
    return {argument: value_type for arguments, value_type in kinds for argument in arguments.split()}


K3S_ARGUMENTS = ArgumentTable(
    server=_arguments(
        text="""
            cluster-domain datastore-cafile datastore-certfile datastore-endpoint datastore-keyfile
            default-local-storage-path egress-selector-mode flannel-backend helm-job-image
            secrets-encryption-provider service-node-port-range servicelb-namespace system-default-registry
            write-kubeconfig-group write-kubeconfig-mode
        """,
        boolean="""
            disable-apiserver disable-cloud-controller disable-controller-manager disable-etcd
            disable-helm-controller disable-kube-proxy disable-network-policy disable-scheduler
            embedded-registry etcd-expose-metrics flannel-external-ip flannel-ipv6-masq kine-tls
            secrets-encryption supervisor-metrics tls-san-security
        """,
        listed="""
            cluster-cidr cluster-dns disable etcd-arg helm-controller-arg kube-apiserver-arg
            kube-cloud-controller-manager-arg kube-controller-manager-arg kube-scheduler-arg service-cidr tls-san
        """,
    ),
    agent=_arguments(
        text="""
            bind-address container-runtime-endpoint default-runtime flannel-cni-conf flannel-conf flannel-iface
            image-credential-provider-bin-dir image-credential-provider-config image-service-endpoint log
            pause-image resolv-conf snapshotter vmodule vpn-auth vpn-auth-file
        """,
        boolean="""
            alsologtostderr debug disable-apiserver-lb disable-default-registry-endpoint docker enable-pprof
            nonroot-devices prefer-bundled-bin protect-kernel-defaults selinux
        """,
        listed="""
            airgap-extra-registry kube-proxy-arg kubelet-arg node-external-dns node-internal-dns
        """,
        number="""
            v
        """,
    ),
    since={
        "bind-address": (1, 27, 15),
        "default-runtime": (1, 26, 13),
        "disable-apiserver-lb": (1, 25, 16),
        "disable-default-registry-endpoint": (1, 26, 13),
        "egress-selector-mode": (1, 22, 10),
        "embedded-registry": (1, 26, 13),
        "enable-pprof": (1, 27, 15),
        "helm-job-image": (1, 24, 16),
        "kine-tls": (1, 27, 13),
        "supervisor-metrics": (1, 27, 15),
        "tls-san-security": (1, 24, 17),
        "vpn-auth": (1, 25, 11),
        "vpn-auth-file": (1, 25, 11),
        "write-kubeconfig-group": (1, 27, 15),
    },
)

RKE2_ARGUMENTS = ArgumentTable(
    server=_arguments(
        text="""
            audit-policy-file cloud-controller-manager-image cluster-domain
            datastore-cafile datastore-certfile datastore-endpoint datastore-keyfile
            egress-selector-mode etcd-image helm-job-image kube-apiserver-image kube-controller-manager-image
            kube-proxy-image kube-scheduler-image kubelet-path pause-image runtime-image
            secrets-encryption-provider service-node-port-range servicelb-namespace
            write-kubeconfig-group write-kubeconfig-mode
        """,
        boolean="""
            disable-apiserver disable-cloud-controller disable-controller-manager disable-etcd
            disable-kube-proxy disable-scheduler embedded-registry enable-servicelb etcd-expose-metrics prime
            secrets-encryption supervisor-metrics tls-san-security
        """,
        listed="""
            cluster-cidr cluster-dns cni disable etcd-arg helm-controller-arg ingress-controller kube-apiserver-arg
            kube-cloud-controller-manager-arg kube-controller-manager-arg kube-proxy-arg kube-scheduler-arg
            service-cidr tls-san
        """,
    ),
    agent=_arguments(
        text="""
            audit-policy-file bind-address cloud-provider-config cloud-provider-name
            container-runtime-endpoint control-plane-resource-limits control-plane-resource-requests default-runtime
            image-credential-provider-bin-dir image-credential-provider-config log
            pod-security-admission-config-file profile resolv-conf snapshotter system-default-registry vmodule
        """,
        boolean="""
            alsologtostderr debug disable-default-registry-endpoint enable-pprof
            node-name-from-cloud-provider-metadata nonroot-devices protect-kernel-defaults selinux
        """,
        listed="""
            airgap-extra-registry cloud-controller-manager-extra-env cloud-controller-manager-extra-mount
            control-plane-probe-configuration etcd-extra-env etcd-extra-mount kube-apiserver-extra-env
            kube-apiserver-extra-mount kube-controller-manager-extra-env kube-controller-manager-extra-mount
            kube-proxy-arg kube-proxy-extra-env kube-proxy-extra-mount kube-scheduler-extra-env
            kube-scheduler-extra-mount kubelet-arg node-external-dns node-internal-dns
        """,
        number="""
            v
        """,
    ),
    since={
        "bind-address": (1, 27, 15),
        "datastore-cafile": (1, 27, 13),
        "datastore-certfile": (1, 27, 13),
        "datastore-endpoint": (1, 27, 13),
        "datastore-keyfile": (1, 27, 13),
        "default-runtime": (1, 28, 8),
        "disable-default-registry-endpoint": (1, 28, 8),
        "egress-selector-mode": (1, 22, 10),
        "embedded-registry": (1, 28, 8),
        "enable-pprof": (1, 27, 15),
        "kube-cloud-controller-manager-arg": (1, 25, 15),
        "supervisor-metrics": (1, 27, 15),
        "tls-san-security": (1, 24, 17),
        "write-kubeconfig-group": (1, 27, 15),
    },
)
