"""Which clusters have encryption keys of the manager, and when these are created."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.rke import names
from herder.api.rke.etcd.encryption import MAKE_KEY, keys_secret
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import encoded
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, EffectResult
from tests.support.builders import new_object, owner_reference_to, patches_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import (
    NAME,
    NAMESPACE,
    TOKENS,
    control_plane_conditions,
    machine_with_plan,
    plan_of,
    reconcile_planner,
)

MANAGED = {"encryptionKeys": {"loaded": [2, 1], "stored": [1, 2]}}
OWN_CONFIGURATION = {"kube-apiserver-arg": ["encryption-provider-config=/etc/kms.yaml"]}


def decide(
    *keys: str, owned: bool = True, status: Object | None = None, plan: Plan | None = None, **spec: Any
) -> Decision:
    """A pass over a kubeadm cluster whose CAs exist; `keys` are in the Secret with the manager's keys."""
    plane = objects.control_plane(status or {}, kubernetesVersion="v1.33.4+kubeadm1", **spec)
    owners = [owner_reference_to(plane, controller=False)]
    authority = {"tls.crt": encoded("c"), "tls.key": encoded("k")}
    secrets = [
        new_object(SECRET, names.authority_secret(NAME, purpose), NAMESPACE, owners=owners, data=authority)
        for purpose in ("ca", "etcd", "sa", "proxy")
    ]
    if keys:
        data = dict.fromkeys(keys, encoded("c2VjcmV0"))
        secrets.append(new_object(SECRET, keys_secret(NAME), NAMESPACE, owners=owners if owned else (), data=data))
    by_name = {each["metadata"]["name"]: each for each in secrets}
    machine = machine_with_plan(init=True, **({"plan": plan} if plan else {}))
    results: dict[Any, EffectResult] = {}
    while True:
        given = (objects.cluster(), plane, objects.beacon(), TOKENS)
        decision = reconcile_planner(*machine, *secrets, cluster_objects=given, results=results)
        reads = [each for each in decision.effects if each.performer == names.READ_OBJECT]
        if not reads:
            return decision
        results |= {each.key: EffectResult(by_name[each.arguments["name"]]) for each in reads}


def made_keys(decision: Decision) -> list[int]:
    return [each.arguments["generation"] for each in decision.effects if each.performer == MAKE_KEY]


def test_a_new_cluster_gets_a_key_before_its_first_plan() -> None:
    decision = decide()
    assert made_keys(decision) == [1]
    assert not patches_of(decision, PLAN_SECRET)


def test_an_existing_cluster_gets_no_key() -> None:
    assert made_keys(decide(plan=plan_of())) == []


def test_a_cluster_with_its_own_encryption_configuration_gets_no_key() -> None:
    assert made_keys(decide(machineGlobalConfig=OWN_CONFIGURATION)) == []
    managed = decide("key-1", status={"encryptionKeys": {"loaded": [1]}}, machineGlobalConfig=OWN_CONFIGURATION)
    assert "kube-apiserver-arg: encryption-provider-config is set" in control_plane_conditions(managed)["Ready"][1]


def test_keys_of_others_are_not_used() -> None:
    decision = decide("key-1", owned=False)
    assert not made_keys(decision)
    assert not patches_of(decision, PLAN_SECRET)
    assert "does not belong to this cluster" in control_plane_conditions(decision)["Ready"][1]


@pytest.mark.parametrize("known", [(), ("key-1",)])
def test_a_key_that_is_lost_is_not_recreated(known: tuple[str, ...]) -> None:
    """Servers could not read the Secrets that it has encrypted."""
    decision = decide(*known, status=MANAGED, plan=plan_of())
    assert not made_keys(decision)
    assert not patches_of(decision, PLAN_SECRET)
    status, message = control_plane_conditions(decision)["Ready"]
    assert (status, "restore it from a backup" in message) == ("False", True)
