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
from tests.unit.engine.apiserver.auth.world import ALICE, World
from tests.unit.engine.apiserver.resources import resource

SCHEDULING = "scheduling.k8s.io"


def pod(**spec: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "b"}]} | spec}


def write(obj: Object, *, old: Object | None = None, plural: str = "pods", group: str = "") -> Attributes:
    operation = CREATE if old is None else UPDATE
    served = resource(plural, group=group, kind="Pod")
    return Attributes(operation, served, "v1", ALICE, name="x", namespace="ci", obj=obj, old=old)


async def account(world: World, obj: Object) -> Object:
    admission = ServiceAccountAdmission(Objects(world.store), world.random.randbytes)
    attributes = write(obj)
    await admission.admit(attributes)
    await admission.validate(attributes)
    return obj["spec"]


async def test_a_pod_runs_as_the_default_account_and_finds_its_token(world: World) -> None:
    await world.put("serviceaccounts", "default", "ci", imagePullSecrets=[{"name": "registry"}])
    spec = await account(world, pod(initContainers=[{"name": "i", "image": "x"}]))
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


async def test_a_token_volume_that_is_there_already_is_used_and_not_doubled(world: World) -> None:
    await world.put("serviceaccounts", "default", "ci")
    obj = pod()
    await account(world, obj)
    again = deepcopy(obj)
    assert await account(world, again) == obj["spec"]


@pytest.mark.parametrize(
    ("pod_wish", "account_wish", "mounted"),
    [(None, None, True), (None, False, False), (True, False, True), (False, True, False)],
)
async def test_the_pods_automount_setting_overrides_the_accounts(
    world: World, pod_wish: bool | None, account_wish: bool | None, mounted: bool
) -> None:
    body = {} if account_wish is None else {"automountServiceAccountToken": account_wish}
    await world.put("serviceaccounts", "default", "ci", **body)
    spec = await account(world, pod(**({} if pod_wish is None else {"automountServiceAccountToken": pod_wish})))
    assert ("volumes" in spec) is mounted


async def test_an_account_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(Forbidden) as refusal:
        await account(world, pod(serviceAccountName="nope"))
    assert refusal.value.message == (
        'pods "x" is forbidden: error looking up service account ci/nope: serviceaccount "nope" not found'
    )


async def test_mirror_pods_are_left_alone_but_may_use_no_account(world: World) -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}, "name": "x"}
    assert "serviceAccountName" not in await account(world, pod() | {"metadata": mirror})
    for spec, expected in (
        ({"serviceAccountName": "a"}, "a mirror pod may not reference service accounts"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "a mirror pod may not reference secrets"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
    ):
        with pytest.raises(Forbidden, match=expected):
            await account(world, pod(**spec) | {"metadata": mirror})


async def test_an_account_may_limit_which_secrets_its_pods_use(world: World) -> None:
    annotations = {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}
    await world.put("serviceaccounts", "default", "ci", metadata=annotations, secrets=[{"name": "mine"}])
    await account(world, pod(volumes=[{"name": "v", "secret": {"secretName": "mine"}}]))
    with pytest.raises(Forbidden) as refusal:
        await account(world, pod(volumes=[{"name": "v", "secret": {"secretName": "yours"}}]))
    assert refusal.value.message == (
        'pods "x" is forbidden: volume with secret.secretName="yours" is not allowed because service account default '
        "does not reference that secret"
    )
    with pytest.raises(Forbidden, match="container a with envFrom referencing"):
        await account(
            world,
            pod(containers=[{"name": "a", "image": "b", "envFrom": [{"secretRef": {"name": "yours"}}]}]),
        )


async def prioritised(world: World, obj: Object, old: Object | None = None) -> Object:
    await Priority(Objects(world.store)).admit(write(obj, old=old))
    return obj["spec"]


async def test_a_pod_without_class_has_priority_zero(world: World) -> None:
    spec = await prioritised(world, pod())
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert "priorityClassName" not in spec


async def test_a_class_gives_its_value_and_the_default_one_gives_its_name_too(world: World) -> None:
    await world.put("priorityclasses", "high", group=SCHEDULING, value=1000, preemptionPolicy="Never")
    spec = await prioritised(world, pod(priorityClassName="high"))
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")
    await world.put("priorityclasses", "normal", group=SCHEDULING, value=10, globalDefault=True)
    spec = await prioritised(world, pod())
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
async def test_a_mismatching_priority_is_rejected(world: World, spec: Object, expected: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        await prioritised(world, pod(**spec))
    assert refusal.value.message == f'pods "x" is forbidden: {expected}'


async def test_an_update_that_leaves_the_priority_out_keeps_it(world: World) -> None:
    spec = await prioritised(world, pod(), old=pod(priority=7, preemptionPolicy="Never"))
    assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")


async def test_one_default_class_is_enough(world: World) -> None:
    await world.put("priorityclasses", "normal", group=SCHEDULING, value=10, globalDefault=True)
    second = {"metadata": {"name": "x"}, "value": 1, "globalDefault": True}
    with pytest.raises(Forbidden, match="PriorityClass normal is already marked as default"):
        await Priority(Objects(world.store)).validate(write(second, plural="priorityclasses", group=SCHEDULING))
    await Priority(Objects(world.store)).validate(
        write(second | {"metadata": {"name": "normal"}}, old=second, plural="priorityclasses", group=SCHEDULING)
    )


async def test_system_priority_classes_are_created_once(world: World) -> None:
    for _ in range(2):
        await write_system_priority_classes(world.store, now=world.now, entropy=world.random.randbytes)
    classes = [json.decode(record.value) for record in world.store.list(f"priorityclasses.{SCHEDULING}")]
    assert {item["metadata"]["name"]: item["value"] for item in classes} == {
        "system-cluster-critical": 2000000000,
        "system-node-critical": 2000001000,
    }
    assert world.store.revision == 2


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
