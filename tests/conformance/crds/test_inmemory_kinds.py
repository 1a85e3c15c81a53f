"""CRDs of the in-memory provider on both engines: what they accept, keep and reject."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from herder.api.inmemory.crds import CRDS
from tests.conformance.objects import define
from tests.support.api import Api
from tests.support.engines import unique

NOW = "2026-01-01T00:00:00Z"
DOMAINS = [{"name": "z1", "controlPlane": True, "attributes": {"rack": "7"}}]
CLUSTER = {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}, "failureDomains": DOMAINS}
MACHINE = {
    "providerID": "inmemory:///ns/c/m",
    "failureDomain": "z1",
    "interruptible": True,
    "capacity": {"cpu": "8", "memory": "32Gi"},
}
REFERENCE = {"apiGroup": "inmemory.cluster.x-k8s.io", "kind": "InMemoryMachineTemplate", "name": "t"}
METADATA = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
PLANE = {
    "machineTemplate": {
        "metadata": METADATA,
        "spec": {
            "infrastructureRef": REFERENCE,
            "readinessGates": [{"conditionType": "example.com/Checked"}],
            "deletion": {"nodeDrainTimeoutSeconds": 5},
            "minReadySeconds": 3,
            "taints": [{"key": "a", "effect": "NoSchedule", "propagation": "Always"}],
        },
    },
    "rollout": {"after": NOW},
}
SPECS: dict[str, dict[str, Any]] = {
    "inmemoryclusters": CLUSTER,
    "inmemoryclustertemplates": {"template": {"metadata": METADATA, "spec": CLUSTER}},
    "inmemorymachines": MACHINE,
    "inmemorymachinetemplates": {"template": {"metadata": METADATA, "spec": MACHINE}},
    "inmemorybootstrapconfigs": {},
    "inmemorybootstrapconfigtemplates": {"template": {"metadata": METADATA, "spec": {}}},
    "inmemorycontrolplanes": PLANE | {"replicas": 3, "version": "v1.35.0"},
    "inmemorycontrolplanetemplates": {"template": {"metadata": METADATA, "spec": PLANE}},
}
CONDITIONS = {
    "conditions": [{"type": "Ready", "status": "False", "reason": "Failed", "message": "", "lastTransitionTime": NOW}],
    "deprecated": {
        "v1beta1": {
            "conditions": [{"type": "Ready", "status": "False", "severity": "Info", "lastTransitionTime": NOW}],
        }
    },
    "ready": False,
    "failureReason": "Failed",
    "failureMessage": "it failed",
}
COUNTERS = (
    "replicas",
    "readyReplicas",
    "availableReplicas",
    "upToDateReplicas",
    "updatedReplicas",
    "unavailableReplicas",
)
STATUSES: dict[str, dict[str, Any]] = {
    "inmemoryclusters": {
        "initialization": {"provisioned": True},
        "failureDomains": DOMAINS,
        "apiFault": "",
        "observedGeneration": 1,
    },
    "inmemorymachines": {
        "initialization": {"provisioned": True},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "failureDomain": "z1",
        "interruptible": True,
    },
    "inmemorybootstrapconfigs": {"initialization": {"dataSecretCreated": True}, "dataSecretName": "m"},
    "inmemorycontrolplanes": {
        "initialization": {"controlPlaneInitialized": True},
        "initialized": True,
        "selector": "a=b,c",
        "version": "v1.35.0",
        "versions": [{"version": "v1.35.0", "replicas": 3}],
        "observedGeneration": 1,
        **dict.fromkeys(COUNTERS, 3),
    },
}


class Kinds:
    """The CRDs under a group of the test's own, so that tests do not interfere."""

    def __init__(self) -> None:
        self.group = f"{unique('memory')}.example.com"
        self.definitions = [self._moved(definition) for definition in CRDS]
        self.kinds = {d["spec"]["names"]["plural"]: d["spec"]["names"]["kind"] for d in self.definitions}

    def _moved(self, definition: Any) -> Any:
        moved = copy.deepcopy(definition)
        moved["spec"]["group"] = self.group
        del moved["spec"]["names"]["categories"]
        moved["metadata"]["name"] = f"{moved['spec']['names']['plural']}.{self.group}"
        return moved

    def resource(self, plural: str) -> str:
        return f"{self.group}/v1alpha1/{plural}"

    def object(self, plural: str, spec: Any) -> dict[str, Any]:
        named = {"apiVersion": f"{self.group}/v1alpha1", "kind": self.kinds[plural], "metadata": {"name": "some"}}
        return named | {"spec": spec}


@pytest.fixture(scope="module")
async def kinds(admin: Api) -> Kinds:
    created = Kinds()
    for definition in created.definitions:
        await define(admin, definition)
    return created


@pytest.mark.parametrize("plural", SPECS)
async def test_objects_with_every_field_are_stored_unchanged(api: Api, kinds: Kinds, plural: str) -> None:
    url = api.at(kinds.resource(plural)) + "?fieldValidation=Strict"
    created = (await api.post(url, kinds.object(plural, SPECS[plural]))).expect(201)
    assert created["spec"] == SPECS[plural]


@pytest.mark.parametrize("plural", ["inmemoryclusters", "inmemorycontrolplanes"])
async def test_status_is_stored_unchanged(api: Api, kinds: Kinds, plural: str) -> None:
    await api.create(kinds.resource(plural), kinds.object(plural, SPECS[plural]))
    status = STATUSES[plural] | CONDITIONS
    url = api.at(kinds.resource(plural), "some", "status")
    assert (await api.patch(url, {"status": status})).expect(200)["status"] == status


@pytest.mark.parametrize("plural", ["inmemorymachines", "inmemorybootstrapconfigs"])
async def test_spec_and_status_are_written_together(api: Api, kinds: Kinds, plural: str) -> None:
    await api.create(kinds.resource(plural), kinds.object(plural, {}))
    status = STATUSES[plural] | CONDITIONS
    updated = (
        await api.patch(api.at(kinds.resource(plural), "some"), {"spec": SPECS[plural], "status": status})
    ).expect(200)
    assert (updated["spec"], updated["status"]) == (SPECS[plural], status)


async def test_a_control_plane_defaults_to_one_machine_and_can_be_scaled(api: Api, kinds: Kinds) -> None:
    plural = "inmemorycontrolplanes"
    await api.create(kinds.resource(plural), kinds.object(plural, PLANE | {"version": "v1.35.0"}))
    url = api.at(kinds.resource(plural), "some", "scale")
    assert (await api.get(url)).expect(200)["spec"]["replicas"] == 1
    assert (await api.patch(url, {"spec": {"replicas": 3}})).expect(200)["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("plural", "change", "field"),
    [
        ("inmemoryclusters", {"controlPlaneEndpoint": {"host": "h", "port": 0}}, "spec.controlPlaneEndpoint.port"),
        ("inmemoryclusters", {"controlPlaneEndpoint": {"host": "h"}}, "spec.controlPlaneEndpoint.port"),
        ("inmemorymachines", {"providerID": ""}, "spec.providerID"),
        ("inmemorymachines", {"capacity": {"cpu": 4}}, "spec.capacity.cpu"),
        ("inmemorycontrolplanes", {"replicas": -1}, "spec.replicas"),
        ("inmemorycontrolplanes", {"version": ""}, "spec.version"),
        ("inmemorycontrolplanes", {"machineTemplate": {}}, "spec.machineTemplate.spec"),
    ],
)
async def test_rejections_name_the_field(api: Api, kinds: Kinds, plural: str, change: Any, field: str) -> None:
    answer = await api.post(api.at(kinds.resource(plural)), kinds.object(plural, SPECS[plural] | change))
    assert answer.status == 422
    assert answer.causes[0][1] == field
