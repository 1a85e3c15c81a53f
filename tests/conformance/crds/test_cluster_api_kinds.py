"""CRDs of Cluster API on both engines: what they accept, keep, scale and reject."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from herder.api.capi.crds import CRDS
from tests.conformance.objects import define
from tests.support.api import Api
from tests.support.engines import unique

LABELS = {"matchLabels": {"pool": "a"}}
DELETION = {"nodeDrainTimeoutSeconds": 0, "nodeVolumeDetachTimeoutSeconds": 5, "nodeDeletionTimeoutSeconds": 10}
TAINT = {"key": "example.com/dedicated", "value": "a", "effect": "NoSchedule", "propagation": "Always"}
GATES = [{"conditionType": "example.com/Checked", "polarity": "Positive"}]
ROLLOUT = {
    "after": "2026-01-01T00:00:00Z",
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "50%"}},
}
CHECKS = {
    "nodeStartupTimeoutSeconds": 600,
    "unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 300}],
    "unhealthyMachineConditions": [{"type": "NodeHealthy", "status": "False", "timeoutSeconds": 60}],
}
REMEDIATION = {
    "triggerIf": {"unhealthyInRange": "[0-3]", "unhealthyLessThanOrEqualTo": "40%"},
    "templateRef": {"apiVersion": "example.com/v1", "kind": "FixTemplate", "name": "fix"},
}


def reference(kind: str) -> dict[str, str]:
    return {"apiGroup": "infrastructure.example.com", "kind": kind, "name": "some.name"}


MACHINE = {
    "clusterName": "c",
    "bootstrap": {"configRef": reference("Config"), "dataSecretName": "boot"},
    "infrastructureRef": reference("Machine"),
    "version": "v1.35.0",
    "providerID": "memory://c/1",
    "failureDomain": "zone-1",
    "minReadySeconds": 5,
    "readinessGates": GATES,
    "deletion": DELETION,
    "taints": [TAINT, TAINT | {"effect": "NoExecute"}],
}
TEMPLATE = {"metadata": {"labels": {"pool": "a"}, "annotations": {"a": "b"}}, "spec": MACHINE}
SET = {
    "clusterName": "c",
    "replicas": 3,
    "selector": LABELS,
    "template": TEMPLATE,
    "machineNaming": {"template": "{{ .machineSet.name }}-{{ .random }}"},
    "deletion": {"order": "Oldest"},
}
MEMBERS = {
    "metadata": {"labels": {"a": "b"}},
    "replicas": 1,
    "taints": [TAINT],
    "variables": {"overrides": [{"name": "size", "value": {"cpu": 1}}]},
}
SPECS: dict[str, dict[str, Any]] = {
    "clusters": {
        "paused": False,
        "infrastructureRef": reference("Cluster"),
        "controlPlaneRef": reference("ControlPlane"),
        "controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443},
        "clusterNetwork": {
            "apiServerPort": 6443,
            "pods": {"cidrBlocks": ["10.1.0.0/16"]},
            "services": {"cidrBlocks": ["10.2.0.0/16"]},
            "serviceDomain": "cluster.local",
        },
        "availabilityGates": GATES,
        "topology": {
            "classRef": {"name": "small", "namespace": "classes"},
            "version": "v1.35.0",
            "variables": [{"name": "anything", "value": ["of", 1, "shape"]}],
            "controlPlane": MEMBERS
            | {
                "deletion": DELETION,
                "healthCheck": {"enabled": True, "checks": CHECKS, "remediation": REMEDIATION},
                "readinessGates": GATES,
                "rollout": {"after": "2026-01-01T00:00:00Z"},
            },
            "workers": {
                "machineDeployments": [
                    MEMBERS
                    | {
                        "class": "worker",
                        "name": "md-0",
                        "deletion": DELETION | {"order": "Newest"},
                        "failureDomain": "zone-1",
                        "healthCheck": {"remediation": REMEDIATION | {"maxInFlight": 2}},
                        "rollout": ROLLOUT,
                    }
                ],
                "machinePools": [MEMBERS | {"class": "pool", "name": "mp-0", "failureDomains": ["zone-1"]}],
            },
        },
    },
    "machines": MACHINE,
    "machinesets": SET,
    "machinedeployments": SET | {"paused": True, "rollout": ROLLOUT, "remediation": {"maxInFlight": "20%"}},
    "machinepools": {
        "clusterName": "c",
        "replicas": 2,
        "template": TEMPLATE,
        "providerIDList": ["memory://c/1"],
        "failureDomains": ["zone-1"],
    },
    "machinehealthchecks": {
        "clusterName": "c",
        "selector": LABELS,
        "checks": CHECKS,
        "remediation": REMEDIATION,
    },
    "machinedrainrules": {
        "drain": {"behavior": "Drain", "order": 5},
        "machines": [{"selector": LABELS, "clusterSelector": LABELS}, {"selector": LABELS}],
        "pods": [{"selector": LABELS, "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}],
    },
    "clusterclasses": {"anything": {"of": ["any", "shape"]}},
    "clusterresourcesets": {
        "clusterSelector": LABELS,
        "resources": [{"kind": "Secret", "name": "addons"}],
        "strategy": "Reconcile",
    },
    "clusterresourcesetbindings": {
        "clusterName": "c",
        "bindings": [
            {
                "clusterResourceSetName": "set",
                "resources": [
                    {
                        "kind": "Secret",
                        "name": "addons",
                        "applied": True,
                        "hash": "sha256:0",
                        "lastAppliedTime": "2026-01-01T00:00:00Z",
                    }
                ],
            }
        ],
    },
}


class Kinds:
    """The CRDs under a group of the test's own, so that tests do not interfere."""

    def __init__(self) -> None:
        suffix = f".{unique('capi')}.example.com"
        self._by_plural = {}
        for definition in copy.deepcopy(CRDS):
            spec = definition["spec"]
            spec["group"] = spec["group"].removesuffix(".x-k8s.io") + suffix
            del spec["names"]["categories"]
            spec["names"].pop("shortNames", None)
            definition["metadata"]["name"] = f"{spec['names']['plural']}.{spec['group']}"
            self._by_plural[spec["names"]["plural"]] = definition

    async def install(self, api: Api) -> None:
        for definition in self._by_plural.values():
            await define(api, definition)

    def resource(self, plural: str) -> str:
        return f"{self._by_plural[plural]['spec']['group']}/v1beta2/{plural}"

    def object(self, plural: str, spec: Any) -> dict[str, Any]:
        definition = self._by_plural[plural]["spec"]
        return {
            "apiVersion": f"{definition['group']}/v1beta2",
            "kind": definition["names"]["kind"],
            "metadata": {"name": "some"},
            "spec": spec,
        }


@pytest.fixture(scope="module")
async def kinds(admin: Api) -> Kinds:
    kinds = Kinds()
    await kinds.install(admin)
    return kinds


@pytest.mark.parametrize("plural", SPECS)
async def test_objects_with_every_field_are_stored_unchanged(api: Api, kinds: Kinds, plural: str) -> None:
    url = api.at(kinds.resource(plural)) + "?fieldValidation=Strict"
    created = (await api.post(url, kinds.object(plural, SPECS[plural]))).expect(201)
    assert created["spec"] == SPECS[plural]


@pytest.mark.parametrize(
    ("plural", "change", "field"),
    [
        ("clusters", {"controlPlaneEndpoint": {"port": 70000}}, "spec.controlPlaneEndpoint.port"),
        ("clusters", {"infrastructureRef": {"apiGroup": "a", "kind": "B"}}, "spec.infrastructureRef.name"),
        ("clusters", {"infrastructureRef": reference("1")}, "spec.infrastructureRef.kind"),
        ("clusters", {"clusterNetwork": {}}, "spec.clusterNetwork"),
        ("machines", {"clusterName": ""}, "spec.clusterName"),
        ("machines", {"taints": [TAINT, TAINT]}, "spec.taints[1]"),
        ("machines", {"readinessGates": []}, "spec.readinessGates"),
        ("machines", {"deletion": {"nodeDrainTimeoutSeconds": -1}}, "spec.deletion.nodeDrainTimeoutSeconds"),
        ("machinesets", {"deletion": {"order": "Prettiest"}}, "spec.deletion.order"),
        ("machinedeployments", {"rollout": {"strategy": {"type": "Recreate"}}}, "spec.rollout.strategy.type"),
        (
            "machinehealthchecks",
            {"remediation": {"triggerIf": {"unhealthyInRange": "3-5"}}},
            "spec.remediation.triggerIf.unhealthyInRange",
        ),
        (
            "machinehealthchecks",
            {"checks": {"unhealthyMachineConditions": [{"type": "Ready", "status": "False", "timeoutSeconds": 1}]}},
            "spec.checks.unhealthyMachineConditions[0].type",
        ),
        ("machinedrainrules", {"pods": [{"selector": LABELS}, {"selector": LABELS}]}, "spec.pods"),
        ("clusterresourcesets", {"resources": []}, "spec.resources"),
    ],
)
async def test_rejections_name_the_field(api: Api, kinds: Kinds, plural: str, change: Any, field: str) -> None:
    answer = await api.post(api.at(kinds.resource(plural)), kinds.object(plural, SPECS[plural] | change))
    assert answer.status == 422
    assert answer.causes[0][1] == field


@pytest.mark.parametrize("plural", ["machinesets", "machinedeployments", "machinepools"])
async def test_kinds_with_replicas_can_be_scaled(api: Api, kinds: Kinds, plural: str) -> None:
    await api.create(kinds.resource(plural), kinds.object(plural, SPECS[plural]))
    url = api.at(kinds.resource(plural), "some", "scale")
    scaled = (await api.patch(url, {"spec": {"replicas": 7}})).expect(200)
    assert scaled["spec"]["replicas"] == 7


async def test_status_keeps_both_condition_lists(api: Api, kinds: Kinds) -> None:
    now = "2026-01-01T00:00:00Z"
    condition = {"type": "Available", "status": "False", "reason": "NotAvailable", "lastTransitionTime": now}
    legacy = {"type": "Ready", "status": "False", "severity": "Info", "lastTransitionTime": now}
    status = {
        "observedGeneration": 1,
        "phase": "Provisioning",
        "conditions": [condition | {"message": ""}],
        "initialization": {"infrastructureProvisioned": True},
        "failureDomains": [{"name": "a", "controlPlane": True, "attributes": {"b": "c"}}],
        "workers": {"desiredReplicas": 3, "versions": [{"version": "v1.35.0", "replicas": 3}]},
        "deprecated": {"v1beta1": {"conditions": [legacy], "failureReason": "No"}},
    }
    await api.create(kinds.resource("clusters"), kinds.object("clusters", SPECS["clusters"]))
    url = api.at(kinds.resource("clusters"), "some", "status")
    assert (await api.patch(url, {"status": status})).expect(200)["status"] == status
