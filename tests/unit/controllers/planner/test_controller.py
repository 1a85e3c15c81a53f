"""One reconcile of the planner: whose turn it is, what ends it early, and which status it reports."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import zlib
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import annotations_of
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import token_secret
from herder.api.references.approvals import APPROVED
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.controllers.planner import controller
from herder.controllers.planner.rollout.join import url_of
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import DONE, EffectResult, Patch
from tests.support.builders import DELETED_AT, new_condition, new_object, owner_reference, patches_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import (
    ALL,
    CLUSTER_OBJECTS,
    ETCD,
    NAME,
    TOKENS,
    WORKER,
    control_plane_conditions,
    machine_with_plan,
    plan_of,
    reconcile_planner,
)

# --- preconditions --------------------------------------------------------------------------------------------------


def test_nothing_is_planned_while_the_cluster_is_being_deleted() -> None:
    assert reconcile_planner(cluster_objects=()) == DONE
    deleting = objects.control_plane()
    deleting["metadata"]["deletionTimestamp"] = DELETED_AT
    assert reconcile_planner(cluster_objects=(objects.cluster(), deleting, objects.beacon())) == DONE
    waiting = reconcile_planner(cluster_objects=(objects.cluster(deleting=True), *CLUSTER_OBJECTS[1:]))
    assert waiting.writes == ()


def test_a_paused_cluster_is_unpaused_when_it_is_deleted() -> None:
    decision = reconcile_planner(cluster_objects=(objects.cluster(deleting=True, paused=True), *CLUSTER_OBJECTS[1:]))
    (unpaused,) = patches_of(decision, CLUSTER)
    assert unpaused.patch == {"spec": {"paused": False}}


@pytest.mark.parametrize(
    ("cluster_objects", "reason"),
    [
        ((objects.control_plane(), objects.beacon()), "CAPI cluster does not exist"),
        (
            (objects.cluster(), objects.control_plane()),
            "Beacon fleet-default/demo does not exist; plans cannot be written",
        ),
        ((objects.cluster(), objects.control_plane(), objects.beacon("restore")), "plans are written by restore now"),
    ],
)
def test_the_planner_waits_for_its_turn(cluster_objects: tuple[Object, ...], reason: str) -> None:
    decision = reconcile_planner(*machine_with_plan(), cluster_objects=cluster_objects)
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason == reason


def test_an_owner_reference_alone_writes_no_plans() -> None:
    """Users write owner references: the Cluster must refer to the control plane too."""
    foreign = objects.cluster()
    foreign["spec"]["controlPlaneRef"]["name"] = "other"
    decision = reconcile_planner(*machine_with_plan(), cluster_objects=(foreign, *CLUSTER_OBJECTS[1:]))
    assert decision.writes == ()
    assert decision.effects == ()
    assert decision.wait is not None
    assert decision.wait.reason == "CAPI cluster does not exist"


def test_the_planner_waits_for_the_infrastructure() -> None:
    bare = objects.cluster() | {"status": {}}
    decision = reconcile_planner(*machine_with_plan(), cluster_objects=(bare, *CLUSTER_OBJECTS[1:]))
    assert control_plane_conditions(decision)["Ready"] == ("Unknown", "waiting for infrastructure ready")


def test_an_unknown_version_is_reported() -> None:
    decision = reconcile_planner(
        *machine_with_plan(),
        cluster_objects=(objects.cluster(), objects.control_plane(kubernetesVersion="1.33"), objects.beacon()),
    )
    status, message = control_plane_conditions(decision)["Ready"]
    assert status == "False"
    assert message.startswith('spec.kubernetesVersion: "1.33" names no distribution')


def test_a_downgrade_is_reported() -> None:
    applied = {"appliedSpec": {"kubernetesVersion": "v1.34.0+k3s1"}}
    decision = reconcile_planner(
        *machine_with_plan(), cluster_objects=(objects.cluster(), objects.control_plane(applied), *CLUSTER_OBJECTS[2:])
    )
    status, message = control_plane_conditions(decision)["Ready"]
    assert (status, "is lower than v1.34.0+k3s1, which the cluster has" in message) == ("False", True)
    assert not patches_of(decision, PLAN_SECRET)


@pytest.mark.parametrize("reported", ["v9999.0.0", "v0.0.1", "v1.99.0+k3s1", "9" * 5000, "²"])
def test_the_version_that_a_worker_reports_does_not_stop_planning(reported: str) -> None:
    worker, secret = machine_with_plan("b", (WORKER,), plan=objects.plan_of())
    worker["status"]["nodeInfo"] = {"kubeletVersion": reported}
    decision = reconcile_planner(*machine_with_plan("a", init=True), worker, secret)
    assert [patch.ref.name for patch in patches_of(decision, PLAN_SECRET)] == [names.plan_secret("a")]


def test_nothing_starts_before_every_role_exists() -> None:
    decision = reconcile_planner(*machine_with_plan("a", (ETCD,)), *machine_with_plan("b", (WORKER,)))
    message = "waiting for at least one control plane, etcd, and worker node to be registered"
    assert control_plane_conditions(decision)["Ready"] == ("Unknown", message)
    assert control_plane_conditions(decision)["Stable"][0] == "False"
    assert not patches_of(decision, PLAN_SECRET)


def test_a_cluster_without_servers_is_uninitialized_and_releases_its_machines() -> None:
    initialized = objects.control_plane({"initialization": {"controlPlaneInitialized": True}})
    initialized_cluster = objects.cluster()
    initialized_cluster["status"]["conditions"] = [new_condition("ControlPlaneInitialized")]
    deleting, plan = machine_with_plan()
    deleting["metadata"]["deletionTimestamp"] = DELETED_AT
    decision = reconcile_planner(
        deleting, plan, objects.bootstrap("a"), cluster_objects=(initialized_cluster, initialized, *CLUSTER_OBJECTS[2:])
    )
    assert control_plane_conditions(decision)["Ready"][1] == "waiting for all etcd machines to be deleted"
    status = next(p.patch["status"] for p in patches_of(decision, CONTROL_PLANE))
    assert status["initialization"]["controlPlaneInitialized"] is False
    (uninitialized,) = patches_of(decision, CLUSTER)
    assert uninitialized.patch["status"]["conditions"][0]["status"] == "False"
    assert patches_of(decision, BOOTSTRAP)[0].patch["metadata"]["annotations"] == {names.ETCD_FORCE_REMOVE: "true"}
    assert len(patches_of(decision, MACHINE)) == 1


def test_a_paused_cluster_is_reported() -> None:
    decision = reconcile_planner(
        *machine_with_plan(), cluster_objects=(objects.cluster(paused=True), *CLUSTER_OBJECTS[1:])
    )
    assert control_plane_conditions(decision)["Ready"] == ("Unknown", "CAPI cluster or RKEControlPlane is paused")
    assert not patches_of(decision, PLAN_SECRET)


# --- inputs of plans ------------------------------------------------------------------------------------------------


def test_tokens_are_created_before_the_first_plan() -> None:
    decision = reconcile_planner(*machine_with_plan(init=True), cluster_objects=CLUSTER_OBJECTS[:3])
    (effect,) = decision.effects
    assert effect.performer == names.MAKE_TOKENS
    assert effect.arguments["name"] == "demo-rke-state"
    assert effect.arguments["owner"]["kind"] == "RKEControlPlane"
    assert not patches_of(decision, PLAN_SECRET)


def test_tokens_that_machines_joined_with_are_not_recreated() -> None:
    decision = reconcile_planner(*machine_with_plan(init=True, plan=plan_of()), cluster_objects=CLUSTER_OBJECTS[:3])
    assert decision.effects == ()
    status, message = control_plane_conditions(decision)["Ready"]
    assert (status, "restore it from a backup" in message) == ("False", True)


@pytest.mark.parametrize("kind", ["tokens", "authority"])
def test_no_plan_contains_secrets_of_another_cluster(kind: str) -> None:
    """Long names are truncated and distinguished by 20 bits of a hash, so a user can choose a name whose tokens
    belong to another cluster. An earlier cluster of the same name also leaves its keys behind for a moment."""
    foreign_owner = owner_reference(CONTROL_PLANE, "other", controller=False)
    cluster_objects = (objects.cluster(), objects.control_plane(kubernetesVersion="v1.36.3+herder1"), objects.beacon())
    tokens, authority = TOKENS, objects.secret(names.authority_secret(NAME, "ca"))
    secret = tokens if kind == "tokens" else authority
    owned = {**secret, "metadata": {**secret["metadata"], "ownerReferences": [foreign_owner]}}
    existing = (owned,) if kind == "tokens" else (tokens, owned)
    decision = reconcile_planner(*machine_with_plan(init=True), cluster_objects=(*cluster_objects, *existing))
    assert not decision.effects
    assert not patches_of(decision, PLAN_SECRET)
    assert "belongs to another cluster" in control_plane_conditions(decision)["Ready"][1]


@pytest.mark.parametrize("owner", ["", "KubeadmControlPlane"])
def test_a_new_cluster_does_not_use_the_secrets_of_others_as_its_ca(owner: str) -> None:
    """The creator of a cluster chooses its name, and with it the names of these Secrets, whose content machines get."""
    cluster_objects = (
        objects.cluster(),
        objects.control_plane(kubernetesVersion="v1.36.3+herder1"),
        objects.beacon(),
        TOKENS,
    )
    foreign_secret = objects.secret(names.authority_secret(NAME, "ca"))
    if owner:
        foreign_secret["metadata"]["ownerReferences"] = [
            {"apiVersion": "x/v1", "kind": owner, "name": NAME, "uid": "theirs"}
        ]
    decision = reconcile_planner(*machine_with_plan(init=True), foreign_secret, cluster_objects=cluster_objects)
    assert not decision.effects
    assert not patches_of(decision, PLAN_SECRET)
    assert "does not belong to this cluster" in control_plane_conditions(decision)["Ready"][1]


def test_cas_are_created_if_the_distribution_needs_them() -> None:
    embedded = objects.control_plane(kubernetesVersion="v1.33.4+herder1")
    decision = reconcile_planner(
        *machine_with_plan(init=True), cluster_objects=(objects.cluster(), embedded, *CLUSTER_OBJECTS[2:])
    )
    (effect,) = decision.effects
    assert (effect.performer, effect.arguments["purposes"]) == (names.MAKE_AUTHORITIES, ("ca",))


def test_the_agent_token_is_read_at_its_revision() -> None:
    control_plane = objects.control_plane(managementClusterName="c-m-1")
    cluster_objects = (objects.cluster(), control_plane, *CLUSTER_OBJECTS[2:])
    without_token = reconcile_planner(*machine_with_plan(init=True), cluster_objects=cluster_objects)
    assert (
        "waiting for the token that the cluster's agent registers with"
        in control_plane_conditions(without_token)["Ready"][1]
    )
    secret = objects.secret(token_secret("default-token"), "c-m-1", metadata={"resourceVersion": "7"})
    reading = reconcile_planner(*machine_with_plan(init=True), secret, cluster_objects=cluster_objects)
    (effect,) = reading.effects
    assert effect.performer == names.READ_OBJECT
    assert effect.key[-1] == "7"
    another = {**secret, "metadata": {**secret["metadata"], "uid": "of-another"}}
    replaced = reconcile_planner(
        *machine_with_plan(init=True),
        secret,
        cluster_objects=cluster_objects,
        results={effect.key: EffectResult(another)},
    )
    assert not patches_of(replaced, PLAN_SECRET)
    assert "was recreated while it was read" in control_plane_conditions(replaced)["Ready"][1]
    data = {"token": encoded("t" * 54), "expiresAt": encoded("2027-01-01T00:00:00Z")}
    results = {effect.key: EffectResult({**secret, "data": data})}
    flags = {"server-url": "https://herder.example"}
    decision = reconcile_planner(
        *machine_with_plan(init=True), secret, cluster_objects=cluster_objects, results=results, flags=flags
    )
    (write,) = patches_of(decision, PLAN_SECRET)
    after = PlanSecret(apply_merge_patch(machine_with_plan(init=True)[1], write.patch))
    assert after.plan is not None
    agent = next(file for file in after.plan.files if file.path.endswith("/cluster-agent.yaml"))
    assert b"https://herder.example" in agent.decoded


@pytest.mark.parametrize(
    ("uid", "expected"), [("auth-uid", ""), ("of-another", "was recreated"), (None, "is not approved")]
)
def test_secrets_are_read_only_as_approved(uid: str | None, expected: str) -> None:
    control_plane = objects.control_plane(registries={"configs": {"a": {"authConfigSecretName": "auth"}}})
    secret = objects.secret("auth", metadata={"resourceVersion": "7", "uid": "auth-uid"})
    place = {"resource": "secrets", "namespace": control_plane["metadata"]["namespace"], "name": "auth", "uid": uid}
    entry = {"path": "spec.registries.configs[a].authConfigSecretName", **place}
    annotations = {**(control_plane["metadata"].get("annotations") or {}), APPROVED: json.dumps([entry] if uid else [])}
    control_plane = {**control_plane, "metadata": {**control_plane["metadata"], "annotations": annotations}}
    decision = reconcile_planner(
        *machine_with_plan(init=True), secret, cluster_objects=(objects.cluster(), control_plane, *CLUSTER_OBJECTS[2:])
    )
    assert bool(decision.effects) is not bool(expected)
    assert expected in control_plane_conditions(decision)["Ready"][1]


@pytest.mark.parametrize(("uid", "expected"), [("c-m-1-uid", ""), ("of-another", "was recreated"), (None, "")])
def test_no_registration_token_of_a_recreated_management_cluster_is_planned(uid: str | None, expected: str) -> None:
    """Rights on management Clusters are granted by name. A control plane that the manager created has no record."""
    control_plane = objects.control_plane(managementClusterName="c-m-1")
    target = {"group": "management.cattle.io", "resource": "clusters", "name": "c-m-1", "uid": uid}
    record = [{"path": "spec.managementClusterName", **target}] if uid else []
    annotations = {**(control_plane["metadata"].get("annotations") or {}), APPROVED: json.dumps(record)}
    control_plane = {**control_plane, "metadata": {**control_plane["metadata"], "annotations": annotations}}
    management = new_object(MANAGEMENT_CLUSTER, "c-m-1", metadata={"uid": "c-m-1-uid"})
    secret = objects.secret(token_secret("default-token"), "c-m-1")
    decision = reconcile_planner(
        *machine_with_plan(init=True),
        secret,
        management,
        cluster_objects=(objects.cluster(), control_plane, *CLUSTER_OBJECTS[2:]),
    )
    assert bool(decision.effects) is not bool(expected)
    assert expected in control_plane_conditions(decision)["Ready"][1]


def _archive(config: Object) -> str:
    raw = io.BytesIO()
    with tarfile.TarFile(fileobj=raw, mode="w") as tar:
        content = json.dumps(config).encode()
        entry = tarfile.TarInfo("root/machines/m/config.json")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    packer = zlib.compressobj(wbits=31)
    return base64.b64encode(packer.compress(raw.getvalue()) + packer.flush()).decode()


def test_addresses_of_driver_machines_come_from_their_state() -> None:
    machine, _ = machine_with_plan()
    machine["spec"]["infrastructureRef"] = {"apiGroup": "rke-machine.cattle.io", "kind": "PodMachine", "name": "infra"}
    plan = objects.plan_secret("a", ALL, init=True)
    message = control_plane_conditions(reconcile_planner(machine, plan))["Ready"][1]
    assert message == (
        "non-ready bootstrap machine(s) a: waiting for machine fleet-default/a driver config to be saved and join url "
        "to be available on bootstrap node"
    )
    record = {"DriverName": "generic", "Driver": {"IPAddress": "1.2.3.4", "PrivateIPAddress": "10.0.0.7"}}
    data = {"extractedConfig": _archive(record)}
    state = objects.secret("infra-machine-state", type="rke.cattle.io/machine-state", data=data)
    (write,) = patches_of(reconcile_planner(machine, plan, state), PLAN_SECRET)
    after = PlanSecret(apply_merge_patch(plan, write.patch))
    assert after.plan is not None
    config = json.loads(next(file for file in after.plan.files if file.path.endswith("50-rancher.yaml")).decoded)
    assert (config["node-ip"], config["node-external-ip"]) == (["10.0.0.7"], ["1.2.3.4"])


# --- plans ----------------------------------------------------------------------------------------------------------


def test_the_init_node_is_labelled_before_any_plan() -> None:
    decision = reconcile_planner(*machine_with_plan())
    (label,) = patches_of(decision, PLAN_SECRET)
    assert label.patch == {"metadata": {"labels": {names.INIT_NODE: "true"}}}
    assert not patches_of(decision, CONTROL_PLANE)  # status follows when the label is observed


def test_the_beacon_is_taken_before_a_plan_and_released_at_the_end() -> None:
    decision = reconcile_planner(*machine_with_plan(init=True))
    assert isinstance(decision.writes[0], Patch)
    assert decision.writes[0].patch == {"status": {"owner": "planner"}}
    assert decision.writes[0].resource_version
    assert len(patches_of(decision, PLAN_SECRET)) == 1
    own_beacon = (objects.cluster(), objects.control_plane(), objects.beacon("planner"), TOKENS)
    assert not patches_of(reconcile_planner(*machine_with_plan(init=True), cluster_objects=own_beacon), BEACON)


def cluster_with_applied_plan(*, connected: bool = True) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
    """A cluster of one machine whose plan succeeded: the machine with its plan, and the objects of the cluster."""
    status = {"initialization": {"controlPlaneInitialized": True}, "agentConnected": connected}
    endpoint = {"host": "10.0.0.1", "port": 6443}
    cluster_objects = (
        objects.cluster(),
        objects.control_plane(status, controlPlaneEndpoint=endpoint),
        objects.beacon("planner"),
        TOKENS,
    )
    machine, plan = machine_with_plan(init=True)
    (write,) = patches_of(reconcile_planner(machine, plan), PLAN_SECRET)
    applied = apply_merge_patch(plan, write.patch)
    applied["metadata"]["annotations"][names.JOIN_URL] = "https://10.0.0.1:6443"
    applied["data"] |= {"plan-state": encoded("succeeded"), "appliedPlan": applied["data"]["plan"]}
    return (objects.machine("a", address="10.0.0.1"), applied), cluster_objects


def test_a_cluster_whose_plans_succeeded_is_ready() -> None:
    existing, cluster_objects = cluster_with_applied_plan()
    decision = reconcile_planner(*existing, cluster_objects=cluster_objects)
    reported = control_plane_conditions(decision)
    assert {name: reported[name][0] for name in ("Ready", "Stable", "Reconciled", "Provisioned", "Bootstrapped")} == {
        "Ready": "True", "Stable": "True", "Reconciled": "True", "Provisioned": "True", "Bootstrapped": "True",
    }  # fmt: skip
    assert {name: reported[name][0] for name in ("ScalingUp", "ScalingDown", "RollingOut")} == dict.fromkeys(
        ("ScalingUp", "ScalingDown", "RollingOut"), "False"
    )
    (beacon,) = patches_of(decision, BEACON)
    assert beacon.patch == {"status": {"owner": ""}}
    status = next(p.patch["status"] for p in patches_of(decision, CONTROL_PLANE))
    assert status["appliedSpec"]["kubernetesVersion"] == "v1.33.4+k3s1"
    assert set(status["appliedSpec"]) <= {"kubernetesVersion", "clusterName", "managementClusterName"}
    (reconciled,) = patches_of(decision, MACHINE)
    assert "Reconciled" in {each["type"] for each in reconciled.patch["status"]["conditions"]}


def test_objects_that_the_cluster_may_reference_are_recorded_for_restores() -> None:
    existing, (cluster, control_plane, *others) = cluster_with_applied_plan()
    place = {"path": "spec.registries.configs[a].authConfigSecretName", "resource": "secrets", "name": "auth"}
    record = [{**place, "uid": "second"}, {**place, "name": "missing"}]
    marks = {**annotations_of(control_plane), APPROVED: json.dumps(record)}
    status = {**control_plane.get("status", {}), "approvedObjects": ["first"]}
    control_plane = {**control_plane, "metadata": {**control_plane["metadata"], "annotations": marks}, "status": status}
    decision = reconcile_planner(*existing, cluster_objects=(cluster, control_plane, *others))
    (patch,) = [each.patch["status"] for each in patches_of(decision, CONTROL_PLANE) if "status" in each.patch]
    assert patch["approvedObjects"] == ["first", "second"]


def test_progress_is_reported_on_the_cluster_and_on_the_machine() -> None:
    existing, cluster_objects = cluster_with_applied_plan(connected=False)
    decision = reconcile_planner(*existing, cluster_objects=cluster_objects)
    message = "waiting for cluster agent to connect"
    assert control_plane_conditions(decision)["Ready"] == ("Unknown", f"configuring bootstrap node(s) a: {message}")
    (patch,) = patches_of(decision, MACHINE)
    reconciled = next(each for each in patch.patch["status"]["conditions"] if each["type"] == "Reconciled")
    assert (reconciled["status"], reconciled["reason"], reconciled["message"]) == ("Unknown", "Waiting", message)
    v1beta1_conditions = patch.patch["status"]["deprecated"]["v1beta1"]["conditions"]
    assert [each["type"] for each in v1beta1_conditions] == ["Reconciled"]


ENDPOINT = {"host": "10.0.0.1", "port": 6443}


def server(name: str, address: str, *, roles: tuple[str, ...] = ALL, deleting: bool = False, init: bool = False) -> Any:
    annotations = {names.JOIN_URL: url_of(address, 6443), names.JOINED_TO: "https://10.0.0.1:6443"}
    secret = objects.plan_secret(name, roles, init=init, plan=plan_of(), annotations=annotations)
    return objects.machine(name, deleting=deleting, address=address), secret


@pytest.mark.parametrize(
    ("existing", "new_host"),
    [
        pytest.param([server("a", "10.0.0.1", init=True), server("b", "10.0.0.2")], "", id="it serves"),
        pytest.param(
            [server("a", "10.0.0.1", init=True, deleting=True), server("c", "10.0.0.3"), server("b", "10.0.0.2")],
            "10.0.0.2",
            id="it is being deleted: the first of the others replaces it",
        ),
        pytest.param(
            [server("b", "10.0.0.2"), server("c", "10.0.0.3", init=True)],
            "10.0.0.3",
            id="it is deleted: the init node replaces it",
        ),
        pytest.param(
            [server("a", "10.0.0.1", init=True, deleting=True)], "", id="it is being deleted, but there is no other"
        ),
        pytest.param(
            [server("b", "10.0.0.2", roles=(ETCD,)), server("c", "10.0.0.3", roles=(WORKER,))],
            "",
            id="it is deleted, and no other machine has an API server",
        ),
        pytest.param([server("b", "fd00::2", init=True)], "fd00::2", id="its replacement has an IPv6 address"),
    ],
)
def test_the_endpoint_follows_the_servers(existing: list[tuple[Object, Object]], new_host: str) -> None:
    cluster_objects = (
        objects.cluster(),
        objects.control_plane(controlPlaneEndpoint=ENDPOINT),
        objects.beacon(),
        TOKENS,
    )
    decision = reconcile_planner(*(obj for pair in existing for obj in pair), cluster_objects=cluster_objects)
    endpoints = [each.patch["spec"] for each in patches_of(decision, CONTROL_PLANE) if not each.subresource]
    assert endpoints == ([{"controlPlaneEndpoint": {"host": new_host, "port": 6443}}] if new_host else [])


def test_the_endpoint_is_set_with_the_first_joinable_machine() -> None:
    machine = objects.machine("a", address="10.0.0.1")
    annotations = {names.INTERNAL_ADDRESS: "10.0.0.1", names.JOIN_URL: "https://10.0.0.1:6443"}
    decision = reconcile_planner(
        machine, objects.plan_secret("a", ALL, init=True, annotations=annotations, plan=plan_of())
    )
    (spec,) = (each for each in patches_of(decision, CONTROL_PLANE) if not each.subresource)
    assert spec.patch == {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}


def test_a_new_customization_of_the_cluster_agent_is_planned() -> None:
    """Other changes of a management Cluster, which are frequent, cause no reconcile."""
    (watch,) = (each for each in controller.CONTROLLER.watches if each.kind == MANAGEMENT_CLUSTER)
    before = new_object(MANAGEMENT_CLUSTER, "c-m-1", spec={})
    toleration = {"appendTolerations": [{"key": "a", "operator": "Exists"}]}
    customized = {**before, "spec": {"clusterAgentDeploymentCustomization": toleration}}
    other = {**before, "spec": {"displayName": "a"}}
    key = Key("", "c-m-1")
    assert watch.predicate(Change(key, before, customized))
    assert not watch.predicate(Change(key, before, other))
