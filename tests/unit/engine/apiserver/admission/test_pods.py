from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from msgspec import json

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.pods import (
    DefaultTolerationSeconds,
    Priority,
    write_system_priority_classes,
)
from herder.engine.apiserver.admission.service_accounts import MOUNT_PATH, ServiceAccountAdmission
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.auth.fake_cluster import ALICE, FakeCluster
from tests.unit.engine.apiserver.resources import resource

SCHEDULING = "scheduling.k8s.io"


def pod(**spec: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "b"}]} | spec}


def write(obj: Object, *, old: Object | None = None, plural: str = "pods", group: str = "") -> Attributes:
    operation = CREATE if old is None else UPDATE
    served = resource(plural, group=group, kind="Pod")
    return Attributes(operation, served, "v1", ALICE, name="x", namespace="ci", obj=obj, old=old)


async def admit_service_account(cluster: FakeCluster, obj: Object) -> Object:
    admission = ServiceAccountAdmission(Objects(cluster.store), cluster.random.randbytes)
    attributes = write(obj)
    await admission.admit(attributes)
    await admission.validate(attributes)
    return obj["spec"]


async def test_a_pod_gets_the_default_service_account_and_its_token_volume(cluster: FakeCluster) -> None:
    await cluster.put("serviceaccounts", "default", "ci", imagePullSecrets=[{"name": "registry"}])
    spec = await admit_service_account(cluster, pod(initContainers=[{"name": "i", "image": "x"}]))
    assert spec["serviceAccountName"] == spec["serviceAccount"] == "default"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    [volume] = spec["volumes"]
    assert volume["name"].startswith("kube-api-access-")
    assert len(volume["name"]) == len("kube-api-access-") + 5
    assert volume["projected"] == {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ],
        "defaultMode": 420,
    }
    mount = {"name": volume["name"], "readOnly": True, "mountPath": MOUNT_PATH}
    assert spec["containers"][0]["volumeMounts"] == [mount]
    assert spec["initContainers"][0]["volumeMounts"] == [mount]


async def test_an_existing_token_volume_is_reused(cluster: FakeCluster) -> None:
    await cluster.put("serviceaccounts", "default", "ci")
    obj = pod()
    await admit_service_account(cluster, obj)
    again = deepcopy(obj)
    assert await admit_service_account(cluster, again) == obj["spec"]


@pytest.mark.parametrize(
    ("pod_setting", "account_setting", "mounted"),
    [(None, None, True), (None, False, False), (True, False, True), (False, True, False)],
)
async def test_the_pods_automount_setting_overrides_the_accounts(
    cluster: FakeCluster, pod_setting: bool | None, account_setting: bool | None, mounted: bool
) -> None:
    body = {} if account_setting is None else {"automountServiceAccountToken": account_setting}
    await cluster.put("serviceaccounts", "default", "ci", **body)
    spec = await admit_service_account(
        cluster, pod(**({} if pod_setting is None else {"automountServiceAccountToken": pod_setting}))
    )
    assert ("volumes" in spec) is mounted


async def test_a_missing_service_account_is_rejected(cluster: FakeCluster) -> None:
    with pytest.raises(Forbidden) as refusal:
        await admit_service_account(cluster, pod(serviceAccountName="nope"))
    assert refusal.value.message == (
        'pods "x" is forbidden: error looking up service account ci/nope: serviceaccount "nope" not found'
    )


async def test_mirror_pods_are_unchanged_and_may_not_use_a_service_account(cluster: FakeCluster) -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}, "name": "x"}
    assert "serviceAccountName" not in await admit_service_account(cluster, pod() | {"metadata": mirror})
    for spec, expected in (
        ({"serviceAccountName": "a"}, "a mirror pod may not reference service accounts"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "a mirror pod may not reference secrets"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
    ):
        with pytest.raises(Forbidden, match=expected):
            await admit_service_account(cluster, pod(**spec) | {"metadata": mirror})


async def test_a_service_account_may_limit_which_secrets_its_pods_mount(cluster: FakeCluster) -> None:
    annotations = {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}
    await cluster.put("serviceaccounts", "default", "ci", metadata=annotations, secrets=[{"name": "mine"}])
    await admit_service_account(cluster, pod(volumes=[{"name": "v", "secret": {"secretName": "mine"}}]))
    with pytest.raises(Forbidden) as refusal:
        await admit_service_account(cluster, pod(volumes=[{"name": "v", "secret": {"secretName": "yours"}}]))
    assert refusal.value.message == (
        'pods "x" is forbidden: volume with secret.secretName="yours" is not allowed because service account default '
        "does not reference that secret"
    )
    with pytest.raises(Forbidden, match="container a with envFrom referencing"):
        await admit_service_account(
            cluster,
            pod(containers=[{"name": "a", "image": "b", "envFrom": [{"secretRef": {"name": "yours"}}]}]),
        )


async def admit_priority(cluster: FakeCluster, obj: Object, old: Object | None = None) -> Object:
    await Priority(Objects(cluster.store)).admit(write(obj, old=old))
    return obj["spec"]


async def test_a_pod_without_class_has_priority_zero(cluster: FakeCluster) -> None:
    spec = await admit_priority(cluster, pod())
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert "priorityClassName" not in spec


async def test_a_priority_class_sets_the_value_and_the_default_class_also_the_name(cluster: FakeCluster) -> None:
    await cluster.put("priorityclasses", "high", group=SCHEDULING, value=1000, preemptionPolicy="Never")
    spec = await admit_priority(cluster, pod(priorityClassName="high"))
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")
    await cluster.put("priorityclasses", "normal", group=SCHEDULING, value=10, globalDefault=True)
    spec = await admit_priority(cluster, pod())
    assert (spec["priorityClassName"], spec["priority"]) == ("normal", 10)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"priorityClassName": "nope"}, "no PriorityClass with name nope was found"),
        (
            {"priority": 5},
            "the integer value of priority (5) must not be provided in pod spec; priority admission controller "
            "computed 0 from the given PriorityClass name",
        ),
        (
            {"preemptionPolicy": "Never"},
            "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission "
            "controller computed PreemptLowerPriority from the given PriorityClass name",
        ),
    ],
)
async def test_a_mismatching_priority_is_rejected(cluster: FakeCluster, spec: Object, expected: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        await admit_priority(cluster, pod(**spec))
    assert refusal.value.message == f'pods "x" is forbidden: {expected}'


async def test_an_update_without_a_priority_keeps_it(cluster: FakeCluster) -> None:
    spec = await admit_priority(cluster, pod(), old=pod(priority=7, preemptionPolicy="Never"))
    assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")


async def test_a_second_default_priority_class_is_rejected(cluster: FakeCluster) -> None:
    await cluster.put("priorityclasses", "normal", group=SCHEDULING, value=10, globalDefault=True)
    second = {"metadata": {"name": "x"}, "value": 1, "globalDefault": True}
    with pytest.raises(Forbidden, match="PriorityClass normal is already marked as default"):
        await Priority(Objects(cluster.store)).validate(write(second, plural="priorityclasses", group=SCHEDULING))
    await Priority(Objects(cluster.store)).validate(
        write(second | {"metadata": {"name": "normal"}}, old=second, plural="priorityclasses", group=SCHEDULING)
    )


async def test_system_priority_classes_are_created_once(cluster: FakeCluster) -> None:
    for _ in range(2):
        await write_system_priority_classes(cluster.store, now=cluster.now, entropy=cluster.random.randbytes)
    classes = [json.decode(record.value) for record in cluster.store.list(f"priorityclasses.{SCHEDULING}")]
    assert {item["metadata"]["name"]: item["value"] for item in classes} == {
        "system-cluster-critical": 2000000000,
        "system-node-critical": 2000001000,
    }
    assert cluster.store.revision == 2


async def test_pods_get_default_tolerations() -> None:
    obj = pod()
    await DefaultTolerationSeconds().admit(write(obj))
    assert [item["key"] for item in obj["spec"]["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    for own in ({"operator": "Exists"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}):
        obj = pod(tolerations=[own])
        await DefaultTolerationSeconds().admit(write(obj))
        keys = [item.get("key") for item in obj["spec"]["tolerations"]]
        assert keys == ([None] if "key" not in own else [own["key"], "node.kubernetes.io/unreachable"])
