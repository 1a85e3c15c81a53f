"""The in-memory provider's definitions: either core can resolve them, under both versions of the contract."""

from __future__ import annotations

import pytest

from herder.api.capi.contract import definition_name
from herder.api.inmemory import kinds
from herder.api.inmemory.crds import CRDS
from herder.engine.meta.kinds import Kind, Object

KINDS = [kind for kind in vars(kinds).values() if isinstance(kind, Kind)]
DEFINITIONS = {definition["spec"]["names"]["kind"]: definition for definition in CRDS}


def schema(kind: Kind) -> Object:
    found: Object = DEFINITIONS[kind.kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def has(kind: Kind, path: str) -> bool:
    at = schema(kind)
    for part in path.split("."):
        properties = at.get("properties") or {}
        if part not in properties:
            return False
        at = properties[part]
    return True


def test_every_kind_has_a_definition_and_a_template() -> None:
    assert sorted(DEFINITIONS) == sorted(kind.kind for kind in KINDS)
    plain = [kind.kind for kind in KINDS if not kind.kind.endswith("Template")]
    assert sorted(f"{kind}Template" for kind in plain) == sorted(k for k in DEFINITIONS if k.endswith("Template"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_definitions_have_the_name_and_labels_that_a_core_expects(kind: Kind) -> None:
    definition = DEFINITIONS[kind.kind]
    assert definition["metadata"]["name"] == definition_name(kind.group, kind.kind)
    labels = definition["metadata"]["labels"]
    assert labels["cluster.x-k8s.io/v1beta1"] == labels["cluster.x-k8s.io/v1beta2"] == kind.version
    assert labels["clusterctl.cluster.x-k8s.io"] == ""
    assert labels["cluster.x-k8s.io/provider"].endswith("-inmemory")
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"]["listKind"] == f"{kind.kind}List"


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        (
            kinds.IN_MEMORY_CLUSTER,
            "spec.controlPlaneEndpoint.host spec.controlPlaneEndpoint.port status.initialization.provisioned "
            "status.ready status.failureDomains status.failureReason status.failureMessage status.conditions "
            "status.deprecated.v1beta1.conditions",
        ),
        (
            kinds.IN_MEMORY_MACHINE,
            "spec.providerID spec.failureDomain status.initialization.provisioned status.ready status.addresses "
            "status.failureDomain status.interruptible status.failureReason status.failureMessage status.conditions",
        ),
        (
            kinds.IN_MEMORY_BOOTSTRAP,
            "status.dataSecretName status.initialization.dataSecretCreated status.ready status.failureReason "
            "status.failureMessage status.conditions",
        ),
        (
            kinds.IN_MEMORY_CONTROL_PLANE,
            "spec.replicas spec.version spec.rollout.after spec.machineTemplate.metadata "
            "spec.machineTemplate.spec.infrastructureRef spec.machineTemplate.spec.deletion "
            "spec.machineTemplate.spec.readinessGates spec.machineTemplate.spec.taints "
            "status.initialization.controlPlaneInitialized status.initialized status.ready status.selector "
            "status.replicas status.readyReplicas status.availableReplicas status.upToDateReplicas "
            "status.updatedReplicas status.unavailableReplicas status.version status.versions status.conditions",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Kind) else "",
)
def test_definitions_have_the_fields_of_both_contracts(kind: Kind, paths: str) -> None:
    assert [path for path in paths.split() if not has(kind, path)] == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.kind.endswith("Template")], ids=lambda kind: kind.kind)
def test_templates_have_metadata_and_spec(kind: Kind) -> None:
    assert has(kind, "spec.template.metadata.labels")
    assert has(kind, "spec.template.metadata.annotations")
    assert has(kind, "spec.template.spec")


@pytest.mark.parametrize(
    ("kind", "subresources"),
    [
        (kinds.IN_MEMORY_CLUSTER, {"status"}),
        (kinds.IN_MEMORY_CONTROL_PLANE, {"status", "scale"}),
        (kinds.IN_MEMORY_MACHINE, set()),
        (kinds.IN_MEMORY_BOOTSTRAP, set()),
    ],
)
def test_kinds_written_in_one_request_have_no_status_subresource(kind: Kind, subresources: set[str]) -> None:
    assert set(DEFINITIONS[kind.kind]["spec"]["versions"][0]["subresources"]) == subresources
