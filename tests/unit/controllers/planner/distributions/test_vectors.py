"""Plans of K3s and RKE2, byte for byte as upstream renders them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2
from tests.unit.controllers.planner.distributions.inputs import (
    CONFIG,
    DATA,
    VERSION,
    cluster,
    config_of,
    server,
    variables,
    worker,
)

# --- a worker -------------------------------------------------------------------------------------------------------


def test_the_plan_of_an_agent_equals_upstreams() -> None:
    plan = Rancher(RKE2).render(cluster(), worker())
    assert [file.path for file in plan.files] == [
        "/etc/rancher/rke2/registries.yaml",
        CONFIG,
        "/var/lib/rancher/capr/idempotence/idempotent.sh",
    ]
    registries, config, once = plan.files
    assert (registries.content, registries.dynamic) == ("", False)
    assert config.decoded.decode() == json.dumps(config_of(plan), indent=2, sort_keys=True)
    assert config_of(plan) == {
        "node-ip": ["10.0.0.21"],
        "node-label": [
            "plan.cattle.io/cluster-group=cluster.x-k8s.io",
            "plan.cattle.io/cluster-kind=Cluster",
            "plan.cattle.io/cluster-name=demo",
            "plan.cattle.io/machine-group=cluster.x-k8s.io",
            "plan.cattle.io/machine-kind=Machine",
            "plan.cattle.io/machine-name=demo-w1",
            "rke.cattle.io/machine=33333333-3333-4333-8333-333333333333",
        ],
        "private-registry": "/etc/rancher/rke2/registries.yaml",
        "server": "https://10.0.0.11:9345",
        "token": "AGENT",
    }
    assert (once.dynamic, once.minor) == (True, True)
    (instruction,) = plan.instructions
    assert instruction.name == "install"
    assert instruction.image == "rancher/system-agent-installer-rke2:v1.33.4-rke2r1"
    assert (instruction.command, instruction.args) == ("sh", ("-c", "run.sh"))
    assert instruction.env == (
        "RESTART_STAMP=ff6b10bd451093861095cebbaed5cf0a8874dc159067204b1b11968d840d9662",
        "DRAIN_HASH=d922ccfc4ec13635910a1b728840ea848c37000384ac73e3e9aee7b564dd43ec",
        "RKE2_DATA_DIR=/var/lib/rancher/rke2",
        "INSTALL_RKE2_EXEC=agent",
    )
    assert set(plan.probes) == {"kubelet", "calico"}
    assert plan.probes["kubelet"].http_get.url == "http://127.0.0.1:10248/healthz"


def test_a_new_join_url_restarts_an_agent_without_a_drain() -> None:
    plan = Rancher(RKE2).render(cluster(), worker(join_url="https://10.0.0.12:9345"))
    environment = variables(plan)
    assert environment["RESTART_STAMP"] == "190924ba78ecb404598a4bf2ea43231ed82ad5fc71d428886f780ac21a29c4e6"
    assert environment["DRAIN_HASH"] == "d922ccfc4ec13635910a1b728840ea848c37000384ac73e3e9aee7b564dd43ec"


# --- servers --------------------------------------------------------------------------------------------------------


def test_the_plan_of_the_init_server_has_upstreams_form() -> None:
    plan = Rancher(RKE2).render(cluster(), server())
    directory = f"{DATA}/server/tls"
    config = config_of(plan)
    labels = config.pop("node-label")
    assert labels[-1] == "rke.cattle.io/machine=11111111-1111-4111-8111-111111111111"
    assert len(labels) == 7
    assert config == {
        "agent-token": "AGENT",
        "cni": "calico",
        "kube-controller-manager-arg": [f"cert-dir={directory}/kube-controller-manager", "secure-port=10257"],
        "kube-controller-manager-extra-mount": [
            f"{directory}/kube-controller-manager:{directory}/kube-controller-manager"
        ],
        "kube-scheduler-arg": [f"cert-dir={directory}/kube-scheduler", "secure-port=10259"],
        "kube-scheduler-extra-mount": [f"{directory}/kube-scheduler:{directory}/kube-scheduler"],
        "node-ip": ["10.0.0.11"],
        "node-taint": ["node-role.kubernetes.io/control-plane:NoSchedule", "node-role.kubernetes.io/etcd:NoExecute"],
        "private-registry": "/etc/rancher/rke2/registries.yaml",
        "token": "SERVER",
    }
    manifests = f"{DATA}/server/manifests/rancher"
    assert [(file.path, file.dynamic, file.minor) for file in plan.files] == [
        ("/etc/rancher/rke2/registries.yaml", False, False),
        (CONFIG, False, False),
        (f"{manifests}/cluster-agent.yaml", True, True),
        (f"{manifests}/addons.yaml", True, False),
        (f"{manifests}/managed-chart-config.yaml", True, False),
        ("/var/lib/rancher/capr/idempotence/idempotent.sh", True, True),
    ]
    assert list(variables(plan)) == ["RESTART_STAMP", "DRAIN_HASH", "RKE2_DATA_DIR"]
    assert set(plan.probes) == {
        "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "calico",
    }  # fmt: skip


def test_a_joining_server_is_configured_with_the_join_url() -> None:
    plan = Rancher(RKE2).render(cluster(), server(is_init=False, join_url="https://10.0.0.11:9345"))
    assert config_of(plan)["server"] == "https://10.0.0.11:9345"


def test_the_init_server_of_k3s_initializes_the_cluster() -> None:
    plan = Rancher(K3S).render(cluster("v1.33.4+k3s1"), server())
    config = config_of(plan, "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml")
    assert config["cluster-init"] is True
    assert "cni" not in config
    assert not [key for key in config if key.endswith("extra-mount")]
    assert config["node-taint"] == ["node-role.kubernetes.io/control-plane:NoSchedule"]
    assert plan.instructions[0].image == "rancher/system-agent-installer-k3s:v1.33.4-k3s1"
    assert set(plan.probes) == {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}


@pytest.mark.parametrize(("runtime", "version"), [(RKE2, VERSION), (K3S, "v1.33.4+k3s1")])
def test_an_etcd_only_init_node_finds_its_own_address(runtime: Any, version: str) -> None:
    plan = Rancher(runtime).render(cluster(version), server(roles=Roles(etcd=True)))
    reports = ["certificate-expiry", "snapshot-hashes"]
    assert [each.name for each in plan.periodic_instructions] == ["capture-address", "etcd-name", *reports]
    assert f"https://localhost:{runtime.supervisor_port}/db/info" in plan.periodic_instructions[0].args[1]
    by_hand = Rancher(runtime).render(cluster(version), server(roles=Roles(etcd=True), join_url_autoset_disabled=True))
    assert [each.name for each in by_hand.periodic_instructions] == reports
