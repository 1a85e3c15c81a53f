"""Exports of Rancher become objects that this manager accepts, and the report names what was dropped."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from herder.api.rke.conversion import Conversion, convert, effect_of

CLUSTER: dict[str, Any] = {
    "apiVersion": "provisioning.cattle.io/v1",
    "kind": "Cluster",
    "metadata": {
        "name": "prod",
        "namespace": "fleet-default",
        "uid": "6d1b",
        "resourceVersion": "12",
        "generation": 4,
        "annotations": {"field.cattle.io/creatorId": "user-x", "team": "blue", "objectset.rio.cattle.io/id": "x"},
        "finalizers": ["wrangler.cattle.io/provisioning-cluster-remove"],
        "ownerReferences": [{"apiVersion": "management.cattle.io/v3", "kind": "Cluster", "name": "c-m-x", "uid": "u"}],
    },
    "spec": {
        "kubernetesVersion": "v1.36.3+rke2r1",
        "defaultPodSecurityPolicyTemplateName": "restricted",
        "rkeConfig": {
            "rotateCertificates": {"generation": 3},
            "machineGlobalConfig": {"cni": "calico"},
            "machinePools": [
                {
                    "name": "a",
                    "quantity": 1,
                    "etcdRole": True,
                    "controlPlaneRole": True,
                    "workerRole": True,
                    "machineConfigRef": {"kind": "Amazonec2Config", "name": "nc-prod-a"},
                }
            ],
        },
    },
    "status": {"ready": True},
}


def obj(api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "fleet-default"}, **fields}


def dropped(found: Conversion) -> dict[str, str]:
    return {each.path: each.text for each in found.dropped}


def test_what_belongs_to_the_other_manager_is_dropped_with_its_reason() -> None:
    found = convert([copy.deepcopy(CLUSTER)])
    (cluster,) = found.objects
    assert cluster["metadata"] == {"name": "prod", "namespace": "fleet-default", "annotations": {"team": "blue"}}
    assert "status" not in cluster
    assert "rotateCertificates" not in cluster["spec"]["rkeConfig"]
    assert "defaultPodSecurityPolicyTemplateName" not in cluster["spec"]
    reasons = dropped(found)
    assert "the object would be deleted at once" in reasons["metadata.ownerReferences[Cluster c-m-x]"]
    finalizer = "metadata.finalizers[wrangler.cattle.io/provisioning-cluster-remove]"
    assert "could never be deleted" in reasons[finalizer]
    assert reasons["metadata.annotations[field.cattle.io/creatorId]"] == "written by the other manager"
    assert "would run again" in reasons["spec.rkeConfig.rotateCertificates"]
    assert reasons["spec.defaultPodSecurityPolicyTemplateName"] == "this manager has no such field"


def test_the_input_is_not_changed() -> None:
    given = copy.deepcopy(CLUSTER)
    convert([given])
    assert given == CLUSTER


def test_remaining_fields_are_listed_with_their_effect() -> None:
    found = convert([CLUSTER])
    effects = {each.path: each.text for each in found.fields}
    assert "Kubernetes version" in effects["spec.kubernetesVersion"]
    assert "Number of machines" in effects["spec.rkeConfig.machinePools[0].quantity"]
    assert effects["spec.kubernetesVersion"].startswith("done")
    assert not found.refused


def test_fields_without_effect_are_named_as_such() -> None:
    assert effect_of("spec.clusterAPIConfig.clusterName", "rke2").startswith("no effect: ")


def test_values_that_admission_refuses_are_reported() -> None:
    cluster = copy.deepcopy(CLUSTER)
    cluster["spec"]["kubernetesVersion"] = "v1.36.3"
    (refused,) = convert([cluster]).refused
    assert refused.path == "spec.kubernetesVersion"
    assert refused.text


def test_objects_that_the_manager_generates_are_dropped() -> None:
    exported = [
        obj("v1", "Secret", "aws", type="Opaque", data={"a": "eA=="}),
        obj("v1", "Secret", "prod-kubeconfig", data={"value": "eA=="}),
        obj("v1", "Secret", "token", type="kubernetes.io/service-account-token"),
        obj("management.cattle.io/v3", "Cluster", "c-m-x"),
        obj("cluster.x-k8s.io/v1beta1", "Machine", "prod-a-1"),
        obj("rke-machine-config.cattle.io/v1", "Amazonec2Config", "nc-prod-a", region="eu-central-1"),
    ]
    found = convert([{"apiVersion": "v1", "kind": "List", "items": exported}])
    assert [each["metadata"]["name"] for each in found.objects] == ["aws", "nc-prod-a"]
    assert [each.obj for each in found.dropped] == [
        "Secret prod-kubeconfig",
        "Secret token",
        "Cluster c-m-x",
        "Machine prod-a-1",
    ]
    assert "eA==" not in str(found.dropped)


@pytest.mark.parametrize("document", ["text", {"kind": "Cluster"}, {"apiVersion": "v1", "kind": "Secret"}])
def test_other_documents_are_rejected(document: Any) -> None:
    with pytest.raises(ValueError, match="document 1"):
        convert([document])
