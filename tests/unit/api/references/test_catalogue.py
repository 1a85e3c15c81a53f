"""Which fields are references, what they reference, and which right they need."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi import kinds as capi
from herder.api.inmemory.kinds import IN_MEMORY_CONTROL_PLANE
from herder.api.machines.kinds import kinds_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.catalogue import KINDS, field_references
from herder.api.rke import kinds as rke
from herder.engine.meta.kinds import Kind, Object

NAMESPACE = "here"
SHED = kinds_of("shed")
CAPI, DRIVER = "cluster.x-k8s.io", "rke-machine.cattle.io"


def nested(path: str, value: Any) -> Object:
    """An object with one field; `[]` stands for a list with one entry."""
    for part in reversed(path.split(".")):
        value = {part.removesuffix("[]"): [value]} if part.endswith("[]") else {part: value}
    return value


CONFIG_CASES = {
    "{}.etcd.s3.cloudCredentialName": ("there:x", "get secrets there/x"),
    "{}.machineSelectorFiles[].fileSources[].secret.name": ("x", "get secrets here/x"),
    "{}.machineSelectorFiles[].fileSources[].configMap.name": ("x", "get configmaps here/x"),
    "{}.machineGlobalConfig.cloud-provider-config": ("secret://there:x", "get secrets there/x"),
    "{}.machineSelectorConfig[].config.cloud-provider-config": ("secret://there:x", "get secrets there/x"),
    "{}.registries.configs.host.authConfigSecretName": ("x", "get secrets here/x"),
    "{}.registries.configs.host.tlsSecretName": ("x", "get secrets here/x"),
}
MACHINE_CASES = {
    "{}.bootstrap.dataSecretName": ("x", "get secrets here/x"),
    "{}.bootstrap.configRef": (
        {"apiGroup": "rke.cattle.io", "kind": "RKEBootstrapTemplate", "name": "x"},
        "update rkebootstraptemplates.rke.cattle.io here/x",
    ),
    "{}.infrastructureRef": (
        {"apiVersion": f"{DRIVER}/v1", "kind": "ShedMachineTemplate", "name": "x", "namespace": "there"},
        f"update shedmachinetemplates.{DRIVER} here/x",
    ),
}
OWN: dict[Kind, dict[str, tuple[Any, str]]] = {
    PROVISIONING_CLUSTER: {
        "spec.cloudCredentialSecretName": ("there:x", "get secrets there/x"),
        "spec.rkeConfig.machinePools[].cloudCredentialSecretName": ("x", "get secrets here/x"),
        "spec.rkeConfig.machinePools[].machineConfigRef": (
            {"kind": "ShedConfig", "name": "x"},
            "update shedconfigs.rke-machine-config.cattle.io here/x",
        ),
        "spec.rkeConfig.infrastructureRef": (
            {"apiVersion": "example.com/v1", "kind": "Farm", "name": "x"},
            "update farms.example.com here/x",
        ),
    },
    rke.CONTROL_PLANE: {"spec.managementClusterName": ("c-x", "update clusters.management.cattle.io c-x")},
    capi.CLUSTER: {
        "spec.infrastructureRef": ({"apiGroup": "a.io", "kind": "Farm", "name": "x"}, "update farms.a.io here/x"),
        "spec.controlPlaneRef": ({"apiGroup": "a.io", "kind": "Farm", "name": "x"}, "update farms.a.io here/x"),
    },
    SHED.machine: {"spec.common.cloudCredentialSecretName": ("there:x", "get secrets there/x")},
    SHED.template: {"spec.template.spec.common.cloudCredentialSecretName": ("x", "get secrets here/x")},
}
CLUSTER_NAME = {"spec.clusterName": ("x", f"update clusters.{CAPI} here/x")}
for kind in (rke.BOOTSTRAP, rke.BOOTSTRAP_TEMPLATE):
    OWN[kind] = CLUSTER_NAME
FARM = {"apiVersion": "a.io/v1", "kind": "Farm", "name": "x"}
OWN[capi.MACHINE_HEALTH_CHECK] = CLUSTER_NAME | {"spec.remediation.templateRef": (FARM, "update farms.a.io here/x")}
OWN[IN_MEMORY_CONTROL_PLANE] = {"spec.machineTemplate.spec.infrastructureRef": (FARM, "update farms.a.io here/x")}
OWN[rke.CONTROL_PLANE] |= CLUSTER_NAME
OWN[capi.MACHINE] = CLUSTER_NAME | {path.format("spec"): case for path, case in MACHINE_CASES.items()}
for kind in (capi.MACHINE_SET, capi.MACHINE_DEPLOYMENT, capi.MACHINE_POOL):
    OWN[kind] = CLUSTER_NAME | {path.format("spec.template.spec"): case for path, case in MACHINE_CASES.items()}
for kind, prefix in ((PROVISIONING_CLUSTER, "spec.rkeConfig"), (rke.CONTROL_PLANE, "spec")):
    OWN[kind] |= {path.format(prefix): case for path, case in CONFIG_CASES.items()}

CASES = [(kind, path) for kind, cases in OWN.items() for path in cases]


@pytest.mark.parametrize(("kind", "path"), CASES, ids=[f"{kind.kind} {path}" for kind, path in CASES])
def test_each_field_names_one_object(kind: Kind, path: str) -> None:
    value, expected = OWN[kind][path]
    (found,) = field_references(kind.group_kind, nested(path, value), NAMESPACE)
    assert f"{found.verb} {found.target}" == expected
    assert found.field.split("[")[0] == path.split("[")[0] or ".configs[" in found.field


@pytest.mark.parametrize(("kind", "path"), CASES, ids=[f"{kind.kind} {path}" for kind, path in CASES])
@pytest.mark.parametrize("value", [None, 1, [], {}, [None], "", {"name": 1, "kind": []}])
def test_malformed_values_are_no_references(kind: Kind, path: str, value: Any) -> None:
    parts = path.split(".")
    for length in range(1, len(parts) + 1):
        assert field_references(kind.group_kind, nested(".".join(parts[:length]), value), NAMESPACE) == []


def test_every_kind_of_the_catalogue_is_in_this_table() -> None:
    assert set(KINDS) == set(OWN) - {SHED.machine, SHED.template}


def test_a_secret_names_the_clusters_that_it_is_synced_into() -> None:
    annotations = {"rke.cattle.io/object-authorized-for-clusters": "a, b,", "provisioning.cattle.io/sync": "true"}
    found = field_references(capi.SECRET.group_kind, {"metadata": {"annotations": annotations}}, NAMESPACE)
    assert [f"{each.verb} {each.target}" for each in found] == [
        f"update clusters.provisioning.cattle.io here/{name}" for name in ("a", "b")
    ]
    del annotations["provisioning.cattle.io/sync"]
    assert field_references(capi.SECRET.group_kind, {"metadata": {"annotations": annotations}}, NAMESPACE) == []
