"""The contract with providers in both versions: fields of each role, and resolution of kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from herder.api.capi.contract import (
    Contract,
    bootstrap_config,
    control_plane,
    definition_name,
    external_kind,
    infra_cluster,
    infra_machine,
)
from herder.api.capi.contract.fields import Endpoint, Failure
from herder.api.capi.plurals import plural
from herder.engine.meta.kinds import Kind, Object

V1, V2 = Contract.V1BETA1, Contract.V1BETA2
BOTH = (V1, V2)
Reader = Callable[[Object, Contract], Any]


def at(path: str, value: Any) -> Object:
    """An object with only this field."""
    for part in reversed(path.split(".")):
        value = {part: value}
    obj: Object = value
    return obj


FLAGS: list[tuple[Reader, dict[Contract, str]]] = [
    (infra_cluster.provisioned, {V2: "status.initialization.provisioned", V1: "status.ready"}),
    (infra_machine.provisioned, {V2: "status.initialization.provisioned", V1: "status.ready"}),
    (bootstrap_config.data_secret_created, {V2: "status.initialization.dataSecretCreated", V1: "status.ready"}),
    (control_plane.initialized, {V2: "status.initialization.controlPlaneInitialized", V1: "status.initialized"}),
    (infra_machine.interruptible, dict.fromkeys(BOTH, "status.interruptible")),
    (control_plane.externally_managed, dict.fromkeys(BOTH, "status.externalManagedControlPlane")),
]
STRINGS: list[tuple[Reader, dict[Contract, str]]] = [
    (infra_machine.provider_id, dict.fromkeys(BOTH, "spec.providerID")),
    (infra_machine.failure_domain, {V2: "status.failureDomain", V1: "spec.failureDomain"}),
    (bootstrap_config.data_secret_name, dict.fromkeys(BOTH, "status.dataSecretName")),
    (control_plane.version, dict.fromkeys(BOTH, "spec.version")),
    (control_plane.status_version, dict.fromkeys(BOTH, "status.version")),
    (control_plane.selector, dict.fromkeys(BOTH, "status.selector")),
]
NUMBERS: list[tuple[Reader, dict[Contract, str]]] = [
    (control_plane.desired_replicas, dict.fromkeys(BOTH, "spec.replicas")),
    (control_plane.replicas, dict.fromkeys(BOTH, "status.replicas")),
    (control_plane.ready_replicas, dict.fromkeys(BOTH, "status.readyReplicas")),
    (control_plane.up_to_date_replicas, {V2: "status.upToDateReplicas", V1: "status.updatedReplicas"}),
    (control_plane.available_replicas, {V2: "status.availableReplicas"}),
]


def cases(table: list[tuple[Reader, dict[Contract, str]]]) -> list[Any]:
    return [
        pytest.param(read, contract, path, id=f"{read.__module__.rpartition('.')[2]}.{read.__name__} {contract}")
        for read, paths in table
        for contract, path in paths.items()
    ]


@pytest.mark.parametrize(("read", "contract", "path"), cases(FLAGS))
def test_flags_are_read_from_the_fields_of_the_contract(read: Reader, contract: Contract, path: str) -> None:
    assert read(at(path, True), contract) is True
    for other in ({}, at(path, False), at(path, "true"), at("status", None)):
        assert read(other, contract) is False


@pytest.mark.parametrize(("read", "contract", "path"), cases(STRINGS))
def test_strings_are_read_from_the_fields_of_the_contract(read: Reader, contract: Contract, path: str) -> None:
    assert read(at(path, "said"), contract) == "said"
    for other in ({}, at(path, None), at(path, 7)):
        assert read(other, contract) == ""


@pytest.mark.parametrize(("read", "contract", "path"), cases(NUMBERS))
def test_numbers_are_read_from_the_fields_of_the_contract(read: Reader, contract: Contract, path: str) -> None:
    assert read(at(path, 3), contract) == 3
    assert read(at(path, 0), contract) == 0
    for other in ({}, at(path, None), at(path, "3"), at(path, True)):
        assert read(other, contract) is None


@pytest.mark.parametrize(
    ("desired", "unavailable", "available"), [(3, 1, 2), (3, 0, 3), (1, 3, 0), (3, None, None), (None, 1, None)]
)
def test_v1beta1_available_replicas_are_derived_from_unavailable_ones(
    desired: int | None, unavailable: int | None, available: int | None
) -> None:
    obj = {"spec": {"replicas": desired}, "status": {"unavailableReplicas": unavailable, "availableReplicas": 99}}
    assert control_plane.available_replicas(obj, V1) == available


@pytest.mark.parametrize("read", [infra_cluster.endpoint, control_plane.endpoint])
@pytest.mark.parametrize("contract", BOTH)
@pytest.mark.parametrize(
    ("reported", "endpoint", "valid"),
    [
        ({"host": "10.0.0.1", "port": 6443}, Endpoint("10.0.0.1", 6443), True),
        ({"host": "", "port": 6443}, Endpoint("", 6443), False),
        ({"host": "10.0.0.1", "port": 0}, Endpoint("10.0.0.1", 0), False),
        (None, Endpoint("", 0), False),
    ],
)
def test_endpoints(read: Reader, contract: Contract, reported: Object | None, endpoint: Endpoint, valid: bool) -> None:
    found = read({"spec": {"controlPlaneEndpoint": reported}}, contract)
    assert found == endpoint
    assert found.valid is valid


@pytest.mark.parametrize(("host", "expected"), [("10.0.0.1", "10.0.0.1:6443"), ("fd00::1", "[fd00::1]:6443")])
def test_an_endpoint_is_formatted_as_host_and_port(host: str, expected: str) -> None:
    assert str(Endpoint(host, 6443)) == expected


@pytest.mark.parametrize(
    ("contract", "reported"),
    [
        (V2, [{"name": "b", "controlPlane": True}, {"name": "a", "attributes": {"zone": "1"}}]),
        (V1, {"b": {"controlPlane": True}, "a": {"controlPlane": False, "attributes": {"zone": "1"}}}),
    ],
)
def test_failure_domains_are_a_sorted_list(contract: Contract, reported: Any) -> None:
    assert infra_cluster.failure_domains({"status": {"failureDomains": reported}}, contract) == [
        {"name": "a", "controlPlane": False, "attributes": {"zone": "1"}},
        {"name": "b", "controlPlane": True},
    ]
    assert infra_cluster.failure_domains({}, contract) == []


def test_addresses_and_versions_are_lists_of_objects() -> None:
    addresses = [{"type": "InternalIP", "address": "10.0.0.7"}]
    assert infra_machine.addresses({"status": {"addresses": addresses}}, V2) == addresses
    versions = [{"version": "v1.30.0", "replicas": 1}, {"version": "v1.31.0", "replicas": 2}]
    plane = {"status": {"versions": versions}}
    assert control_plane.versions(plane, V2) == versions
    assert control_plane.status_version(plane, V2) == "v1.30.0"


def test_a_single_version_applies_to_all_replicas() -> None:
    plane = {"status": {"version": "v1.30.0", "replicas": 3}}
    assert control_plane.versions(plane, V1) == [{"version": "v1.30.0", "replicas": 3}]
    assert control_plane.versions({"status": {"version": "v1.30.0"}}, V1) == []


@pytest.mark.parametrize("role", [infra_cluster, infra_machine, bootstrap_config, control_plane])
@pytest.mark.parametrize("contract", BOTH)
def test_terminal_failures(role: Any, contract: Contract) -> None:
    obj = {"status": {"failureReason": "NoQuota", "failureMessage": "no cores left"}}
    assert role.failure(obj, contract) == Failure("NoQuota", "no cores left")
    assert role.failure({}, contract) == Failure("", "")


# --- resolution of kinds --------------------------------------------------------------------------------------------

REFERENCE = {"apiGroup": "infrastructure.example", "kind": "FarmCluster", "name": "x"}


def definition(**labels: str) -> Object:
    prefixed = {f"cluster.x-k8s.io/{name}": value for name, value in labels.items()}
    return {"metadata": {"name": "farmclusters.infrastructure.example", "labels": prefixed}}


@pytest.mark.parametrize(
    ("labels", "version", "contract"),
    [
        ({"v1beta2": "v1"}, "v1", V2),
        ({"v1beta1": "v1"}, "v1", V1),
        ({"v1beta1": "v1", "v1beta2": "v2beta1"}, "v2beta1", V2),
        ({"v1beta2": "", "v1beta1": "v1alpha4"}, "v1alpha4", V1),
        ({"v1beta2": "v1alpha1_v1beta1_v1alpha2"}, "v1beta1", V2),
        ({"v1beta2": "v1beta1_v1_v2alpha1"}, "v1", V2),
        ({"v1beta2": "v2_v10"}, "v10", V2),
        ({"v1beta2": "odd_v1alpha1"}, "v1alpha1", V2),
    ],
)
def test_labels_of_the_definition_map_contracts_to_versions(
    labels: dict[str, str], version: str, contract: Contract
) -> None:
    kind = Kind("infrastructure.example", version, "FarmCluster", "farmclusters")
    assert external_kind(REFERENCE, definition(**labels)) == (kind, contract)


def test_the_version_in_a_v1beta1_reference_is_ignored() -> None:
    old = {"apiVersion": "infrastructure.example/v1alpha1", "kind": "FarmCluster", "name": "x", "namespace": "ns"}
    kind = Kind("infrastructure.example", "v1", "FarmCluster", "farmclusters")
    assert external_kind(old, definition(v1beta2="v1")) == (kind, V2)


def test_a_missing_definition_or_contract_is_an_error_message() -> None:
    assert external_kind(REFERENCE, None) == (
        "CustomResourceDefinition farmclusters.infrastructure.example does not exist"
    )
    assert external_kind(REFERENCE, definition(v1alpha3="v1")) == (
        "CustomResourceDefinition farmclusters.infrastructure.example has no version for a supported contract: "
        "label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 is not set"
    )


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *[("machine", "machines"), ("awscluster", "awsclusters"), ("kubeadmconfigtemplate", "kubeadmconfigtemplates")],
        *[("policy", "policies"), ("gateway", "gateways"), ("proxy", "proxies"), ("key", "keys")],
        *[("class", "classes"), ("switch", "switches"), ("mesh", "meshes"), ("box", "boxes"), ("status", "statuses")],
        *[("index", "indices"), ("vertex", "vertices"), ("matrix", "matrices"), ("database", "databases")],
        *[("analysis", "analyses"), ("medium", "media"), ("metadata", "metadata"), ("datum", "data")],
        *[("chassis", "chassis"), ("baremetalhost", "baremetalhosts"), ("quota", "quotas"), ("focus", "foci")],
        *[
            ("person", "people"),
            ("leaf", "leaves"),
            ("shelf", "shelves"),
            ("drive", "drives"),
            ("directive", "directives"),
        ],
        *[("image", "images"), ("zone", "zones"), ("photo", "photos"), ("echo", "echoes"), ("settings", "settings")],
        *[("Machine", "Machines"), ("MachinePool", "MachinePools"), ("FarmIndex", "FarmIndices"), ("Index", "Indices")],
    ],
)
def test_plurals_match_those_of_cluster_api_tools(word: str, expected: str) -> None:
    assert plural(word) == expected


def test_a_definition_is_named_by_the_plural_of_the_lower_cased_kind() -> None:
    assert definition_name("infrastructure.example", "FarmCluster") == "farmclusters.infrastructure.example"
