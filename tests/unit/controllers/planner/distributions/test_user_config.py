"""Configuration by users: it reaches the machines that it is for, and unusable values are errors."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke.machine_config.errors import ConfigError
from herder.controllers.planner.distributions.interface import MachineInputs, Roles
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2
from tests.unit.controllers.planner.distributions.inputs import CONFIG, cluster, config_of, server, worker

K3S_CONFIG = CONFIG.replace("rke2", "k3s")
RENDERED_KEYS = {
    *("agent-token", "cluster-init", "kube-controller-manager-arg", "kube-scheduler-arg", "node-ip", "node-label"),
    *("node-taint", "private-registry", "server", "token", "cni"),
    *("kube-controller-manager-extra-mount", "kube-scheduler-extra-mount"),
}


def user_config_of(machine: MachineInputs, **spec: Any) -> dict[str, Any]:
    """The part of the rendered configuration that users set."""
    config = config_of(Rancher(RKE2).render(cluster(**spec), machine))
    return {key: value for key, value in config.items() if key not in RENDERED_KEYS}


# --- selection of machines ------------------------------------------------------------------------------------------


def test_server_arguments_are_not_set_on_agents() -> None:
    spec = {"machineGlobalConfig": {"disable": ["rke2-ingress-nginx"], "kubelet-arg": ["max-pods=50"]}}
    assert user_config_of(server(), **spec) == {"disable": ["rke2-ingress-nginx"], "kubelet-arg": ["max-pods=50"]}
    assert user_config_of(worker(), **spec) == {"kubelet-arg": ["max-pods=50"]}


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        (None, {}, True),
        ({"matchLabels": {"pool": "gpu"}}, {"pool": "gpu"}, True),
        ({"matchLabels": {"pool": "gpu"}}, {"pool": "cpu"}, False),
        ({"matchExpressions": [{"key": "pool", "operator": "Exists"}]}, {"pool": "x"}, True),
        ({"matchExpressions": [{"key": "pool", "operator": "Exists"}]}, {}, False),
    ],
)
def test_a_selector_matches_the_labels_of_machines(
    selector: dict[str, Any] | None, labels: dict[str, str], selected: bool
) -> None:
    selector_config = {"machineLabelSelector": selector, "config": {"kubelet-arg": ["special"]}}
    spec = {"machineGlobalConfig": {"kubelet-arg": ["common"]}, "machineSelectorConfig": [selector_config]}
    config = user_config_of(worker(labels=labels), **spec)
    assert config == {"kubelet-arg": ["special" if selected else "common"]}


def test_a_later_selector_replaces_whole_keys() -> None:
    entries = [{"config": {"kubelet-arg": ["a", "b"]}}, {"config": {"kubelet-arg": ["c"]}}]
    assert user_config_of(worker(), machineSelectorConfig=entries) == {"kubelet-arg": ["c"]}


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max-pods": "1"}, "machineGlobalConfig.max-pods: rke2 takes no such argument"),
        ({"kubelet-arg": {"a": 1}}, "machineGlobalConfig.kubelet-arg: must be a text or a list of texts"),
        ({"cluster-domain": ["a"]}, "machineGlobalConfig.cluster-domain: must be text"),
        ({"selinux": "maybe"}, "machineGlobalConfig.selinux: must be true or false"),
        ({"node-label": ["a=b"]}, "set labels of the machine pool"),
        ({"data-dir": "/data"}, "set rkeConfig.dataDirectories.k8sDistro"),
        ({"token": "mine"}, "the manager creates tokens"),
    ],
)
def test_an_unusable_argument_is_an_error_that_names_the_field(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        user_config_of(worker(), machineGlobalConfig=config)
    assert expected in str(caught.value)


def test_an_argument_that_the_version_lacks_is_an_error() -> None:
    spec = {"machineGlobalConfig": {"embedded-registry": True}}
    Rancher(K3S).render(cluster("v1.30.5+k3s1", **spec), server())
    with pytest.raises(ConfigError) as caught:
        Rancher(K3S).render(cluster("v1.25.9+k3s1", **spec), server())
    assert "embedded-registry: k3s supports it since 1.26.13; this cluster has v1.25.9+k3s1" in str(caught.value)


@pytest.mark.parametrize(("value", "expected"), [("true", True), (False, False), ("False", False)])
def test_booleans_may_be_written_as_strings(value: Any, expected: bool) -> None:
    assert user_config_of(worker(), machineGlobalConfig={"selinux": value}) == {"selinux": expected}


def test_k3s_agents_do_not_get_the_registry_argument_that_they_reject() -> None:
    inputs = cluster("v1.36.3+k3s1", machineGlobalConfig={"system-default-registry": "own.example"})
    configs = [config_of(Rancher(K3S).render(inputs, each), K3S_CONFIG) for each in (server(), worker())]
    assert [each.get("system-default-registry") for each in configs] == ["own.example", None]


def test_numbers_are_kept() -> None:
    assert user_config_of(worker(), machineGlobalConfig={"v": 4}) == {"v": 4}


# --- roles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (Roles(etcd=True), {"disable-apiserver": True, "disable-controller-manager": True, "disable-scheduler": True}),
        (Roles(control_plane=True), {"disable-etcd": True}),
        (Roles(etcd=True, control_plane=True, worker=True), {}),
    ],
)
def test_servers_run_the_components_of_their_roles(roles: Roles, expected: dict[str, Any]) -> None:
    assert user_config_of(server(roles=roles)) == expected


@pytest.mark.parametrize(
    ("runtime", "roles", "taints"),
    [
        (RKE2, Roles(etcd=True), ["node-role.kubernetes.io/etcd:NoExecute"]),
        (RKE2, Roles(control_plane=True), ["node-role.kubernetes.io/control-plane:NoSchedule"]),
        (RKE2, Roles(etcd=True, control_plane=True, worker=True), None),
        (K3S, Roles(etcd=True, control_plane=True), ["node-role.kubernetes.io/control-plane:NoSchedule"]),
        (K3S, Roles(etcd=True), ["node-role.kubernetes.io/etcd:NoExecute"]),
    ],
)
def test_servers_without_the_worker_role_have_taints(runtime: Any, roles: Roles, taints: list[str] | None) -> None:
    version = "v1.33.4+k3s1" if runtime is K3S else "v1.33.4+rke2r1"
    plan = Rancher(runtime).render(cluster(version), server(roles=roles))
    assert config_of(plan, K3S_CONFIG if runtime is K3S else CONFIG).get("node-taint") == taints


def test_certificates_that_users_configure_for_components_are_mounted() -> None:
    arguments = {"kube-scheduler-arg": ["tls-cert-file=/own/tls.crt"], "kube-controller-manager-arg": "secure-port=1"}
    plan = Rancher(RKE2).render(cluster(machineGlobalConfig=arguments), server())
    config = config_of(plan)
    assert config["kube-scheduler-arg"] == ["tls-cert-file=/own/tls.crt", "secure-port=10259"]
    assert config["kube-scheduler-extra-mount"] == ["/own:/own"]
    directory = "/var/lib/rancher/rke2/server/tls/kube-controller-manager"
    assert config["kube-controller-manager-arg"] == ["secure-port=1", f"cert-dir={directory}"]
    assert plan.probes["kube-scheduler"].http_get.ca_cert == "/own/tls.crt"
    assert plan.probes["kube-controller-manager"].http_get.url == "https://127.0.0.1:1/healthz"


# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "config", "expected"),
    [
        ({"internal_addresses": ("10.0.0.1",)}, {}, {"node-ip": ["10.0.0.1"]}),
        (
            {"internal_addresses": ("10.0.0.1",), "external_addresses": ("1.2.3.4",)},
            {},
            {"node-ip": ["10.0.0.1"], "node-external-ip": ["1.2.3.4"]},
        ),
        ({"internal_addresses": (), "external_addresses": ("1.2.3.4",)}, {}, {}),
        (
            {"internal_addresses": ("10.0.0.1",), "external_addresses": ("10.0.0.1", "fe80::1")},
            {},
            {"node-ip": ["10.0.0.1"]},
        ),
        (
            {"internal_addresses": ("10.0.0.1",), "external_addresses": ("1.2.3.4",)},
            {"cloud-provider-name": "aws"},
            {"node-ip": ["10.0.0.1"], "cloud-provider-name": "aws"},
        ),
        (
            {"internal_addresses": ("10.0.0.1",), "ipv6_address": "fd00::1"},
            {},
            {"node-ip": ["10.0.0.1", "fd00::1"]},
        ),
        (
            {"internal_addresses": (), "external_addresses": ("1.2.3.4",), "driver": "digitalocean"},
            {},
            {"node-ip": ["1.2.3.4"]},
        ),
        ({"internal_addresses": ("10.0.0.1",), "driver": "pod"}, {}, {}),
    ],
)
def test_the_config_of_a_worker_contains_its_addresses(
    machine: dict[str, Any], config: dict[str, Any], expected: dict[str, Any]
) -> None:
    full_config = config_of(Rancher(RKE2).render(cluster(machineGlobalConfig=config), worker(**machine)))
    addresses = {
        key: value
        for key, value in full_config.items()
        if key in ("node-ip", "node-external-ip", "cloud-provider-name")
    }
    assert addresses == expected


@pytest.mark.parametrize("services", ["fd01::/112,10.43.0.0/16", ["fd01::/112", "10.43.0.0/16"]])
def test_the_ip_family_of_services_comes_first(services: str | list[str]) -> None:
    arguments = {"service-cidr": services}
    machine = server(internal_addresses=("10.0.0.1", "fd00::1", "eth0"))
    assert config_of(Rancher(RKE2).render(cluster(machineGlobalConfig=arguments), machine))["node-ip"] == [
        "fd00::1", "10.0.0.1", "eth0",
    ]  # fmt: skip


def test_servers_use_their_external_addresses_as_tls_sans() -> None:
    machine = server(internal_addresses=("10.0.0.1",), external_addresses=("1.2.3.4",))
    config = config_of(Rancher(RKE2).render(cluster(machineGlobalConfig={"tls-san": ["a.example"]}), machine))
    assert config["advertise-address"] == "10.0.0.1"
    assert config["tls-san"] == ["a.example", "1.2.3.4"]
