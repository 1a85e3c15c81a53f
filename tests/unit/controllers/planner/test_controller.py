"""One pass of the planner: whose turn it is, what ends it early, and what is told."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import zlib
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import token_secret
from herder.api.references.approvals import APPROVED
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.api.settings import Settings
from herder.controllers.planner.controller import CONTROLLER, reconcile
from herder.controllers.planner.rollout.join import url_of
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import DONE, Decision, EffectResult, Parallel, Patch
from tests.support.views import view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import ALL, ETCD, NAME, NAMESPACE, WORKER, made, plan_of

TOKENS = {
    **made("v1", "Secret", names.tokens_secret(NAME), data={"serverToken": encoded("S"), "agentToken": encoded("A")}),
    "type": names.TOKENS_SECRET_TYPE,
}
SOUND = (objects.cluster(), objects.control_plane(), objects.beacon(), TOKENS)


def decide(*there: Object, around: tuple[Object, ...] = SOUND, results: Any = None, flags: Any = None) -> Decision:
    settings = Settings(flags=flags or {}).get
    view = view_of(CONTROLLER, f"{NAMESPACE}/{NAME}", (*around, *there), results=results, settings=settings)
    return reconcile(view)


def patches(decision: Decision, kind: Kind) -> list[Patch]:
    writes = [each for step in decision.writes for each in (step.writes if isinstance(step, Parallel) else (step,))]
    return [write for write in writes if isinstance(write, Patch) and write.ref.kind == kind]


def conditions(decision: Decision) -> dict[str, tuple[str, str]]:
    (patch,) = (each for each in patches(decision, CONTROL_PLANE) if each.subresource == "status")
    return {each["type"]: (each["status"], each["message"]) for each in patch.patch["status"]["conditions"]}


def one(name: str = "a", roles: tuple[str, ...] = ALL, **secret: Any) -> tuple[Object, Object]:
    marks = {names.INTERNAL_ADDRESS: "10.0.0.1"} | (secret.pop("marks", None) or {})
    return objects.machine(name), objects.plan_secret(name, roles, marks=marks, **secret)


# --- before anything is planned -------------------------------------------------------------------------------------


def test_nothing_is_planned_for_what_goes() -> None:
    assert decide(around=()) == DONE
    going = objects.control_plane()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert decide(around=(objects.cluster(), going, objects.beacon())) == DONE
    waits = decide(around=(objects.cluster(deleting=True), *SOUND[1:]))
    assert waits.writes == ()


def test_a_paused_cluster_that_is_deleted_is_not_kept_from_going() -> None:
    decision = decide(around=(objects.cluster(deleting=True, paused=True), *SOUND[1:]))
    (unpaused,) = patches(decision, CLUSTER)
    assert unpaused.patch == {"spec": {"paused": False}}


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        ((objects.control_plane(), objects.beacon()), "CAPI cluster does not exist"),
        (
            (objects.cluster(), objects.control_plane()),
            "Beacon fleet-default/demo does not exist; plans cannot be written",
        ),
        ((objects.cluster(), objects.control_plane(), objects.beacon("restore")), "plans are written by restore now"),
    ],
)
def test_it_waits_for_its_turn(around: tuple[Object, ...], reason: str) -> None:
    decision = decide(*one(), around=around)
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason == reason


def test_it_waits_for_the_infrastructure() -> None:
    bare = objects.cluster() | {"status": {}}
    decision = decide(*one(), around=(bare, *SOUND[1:]))
    assert conditions(decision)["Ready"] == ("Unknown", "waiting for infrastructure ready")


def test_a_version_that_nobody_knows_is_told() -> None:
    decision = decide(
        *one(), around=(objects.cluster(), objects.control_plane(kubernetesVersion="1.33"), objects.beacon())
    )
    status, message = conditions(decision)["Ready"]
    assert status == "False"
    assert message.startswith('spec.kubernetesVersion: "1.33" names no distribution')


def test_a_lower_version_is_told() -> None:
    applied = {"appliedSpec": {"kubernetesVersion": "v1.34.0+k3s1"}}
    decision = decide(*one(), around=(objects.cluster(), objects.control_plane(applied), *SOUND[2:]))
    status, message = conditions(decision)["Ready"]
    assert (status, "is lower than v1.34.0+k3s1, which the cluster has" in message) == ("False", True)
    assert not patches(decision, PLAN_SECRET)


@pytest.mark.parametrize("reported", ["v9999.0.0", "v0.0.1", "v1.99.0+k3s1", "9" * 5000, "²"])
def test_the_version_that_a_worker_reports_keeps_nobody_from_being_planned(reported: str) -> None:
    worker, secret = one("b", (WORKER,), plan=objects.plan_of())
    worker["status"]["nodeInfo"] = {"kubeletVersion": reported}
    decision = decide(*one("a", init=True), worker, secret)
    assert [patch.ref.name for patch in patches(decision, PLAN_SECRET)] == [names.plan_secret("a")]


def test_nothing_begins_before_every_role_is_there() -> None:
    decision = decide(*one("a", (ETCD,)), *one("b", (WORKER,)))
    message = "waiting for at least one control plane, etcd, and worker node to be registered"
    assert conditions(decision)["Ready"] == ("Unknown", message)
    assert conditions(decision)["Stable"][0] == "False"
    assert not patches(decision, PLAN_SECRET)


def test_a_cluster_that_has_lost_its_servers_is_no_longer_initialized_and_lets_them_go() -> None:
    initialized = objects.control_plane({"initialization": {"controlPlaneInitialized": True}})
    known = objects.cluster()
    known["status"]["conditions"] = [
        {"type": "ControlPlaneInitialized", "status": "True", "reason": "x", "message": ""}
    ]
    leaving, plan = one()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    decision = decide(leaving, plan, objects.bootstrap("a"), around=(known, initialized, *SOUND[2:]))
    assert conditions(decision)["Ready"][1] == "waiting for all etcd machines to be deleted"
    status = next(p.patch["status"] for p in patches(decision, CONTROL_PLANE))
    assert status["initialization"]["controlPlaneInitialized"] is False
    (uninitialized,) = patches(decision, CLUSTER)
    assert uninitialized.patch["status"]["conditions"][0]["status"] == "False"
    assert patches(decision, BOOTSTRAP)[0].patch["metadata"]["annotations"] == {names.ETCD_FORCE_REMOVE: "true"}
    assert len(patches(decision, MACHINE)) == 1


def test_a_paused_cluster_is_told_to_be() -> None:
    decision = decide(*one(), around=(objects.cluster(paused=True), *SOUND[1:]))
    assert conditions(decision)["Ready"] == ("Unknown", "CAPI cluster or RKEControlPlane is paused")
    assert not patches(decision, PLAN_SECRET)


# --- what plans are made of -----------------------------------------------------------------------------------------


def test_tokens_are_made_before_the_first_plan() -> None:
    decision = decide(*one(init=True), around=SOUND[:3])
    (effect,) = decision.effects
    assert effect.performer == names.MAKE_TOKENS
    assert effect.arguments["name"] == "demo-rke-state"
    assert effect.arguments["owner"]["kind"] == "RKEControlPlane"
    assert not patches(decision, PLAN_SECRET)


def test_tokens_that_machines_joined_with_are_not_made_again() -> None:
    decision = decide(*one(init=True, plan=plan_of()), around=SOUND[:3])
    assert decision.effects == ()
    status, message = conditions(decision)["Ready"]
    assert (status, "restore it from a backup" in message) == ("False", True)


@pytest.mark.parametrize("kind", ["tokens", "authority"])
def test_no_plan_holds_what_belongs_to_another_cluster(kind: str) -> None:
    """Long names are cut and told apart by 20 bits of a hash, so a user can choose a name whose tokens are another's.
    An earlier cluster of the same name leaves its keys behind for a moment, which its owner knows."""
    theirs = {"apiVersion": CONTROL_PLANE.api_version, "kind": CONTROL_PLANE.kind, "name": "other", "uid": "theirs"}
    around = (objects.cluster(), objects.control_plane(kubernetesVersion="v1.36.3+herder1"), objects.beacon())
    tokens, authority = TOKENS, made("v1", "Secret", names.authority_secret(NAME, "ca"))
    secret = tokens if kind == "tokens" else authority
    owned = {**secret, "metadata": {**secret["metadata"], "ownerReferences": [theirs]}}
    there = (owned,) if kind == "tokens" else (tokens, owned)
    decision = decide(*one(init=True), around=(*around, *there))
    assert not decision.effects
    assert not patches(decision, PLAN_SECRET)
    assert "belongs to another cluster" in conditions(decision)["Ready"][1]


@pytest.mark.parametrize("owner", ["", "KubeadmControlPlane"])
def test_a_new_cluster_uses_no_secret_of_others_as_its_authority(owner: str) -> None:
    """Whoever creates a cluster chooses its name, and so the names of these Secrets. Machines get what is in them."""
    around = (objects.cluster(), objects.control_plane(kubernetesVersion="v1.36.3+herder1"), objects.beacon(), TOKENS)
    theirs = made("v1", "Secret", names.authority_secret(NAME, "ca"))
    if owner:
        theirs["metadata"]["ownerReferences"] = [{"apiVersion": "x/v1", "kind": owner, "name": NAME, "uid": "theirs"}]
    decision = decide(*one(init=True), theirs, around=around)
    assert not decision.effects
    assert not patches(decision, PLAN_SECRET)
    assert "does not belong to this cluster" in conditions(decision)["Ready"][1]


def test_authorities_are_made_where_the_distribution_needs_them() -> None:
    embedded = objects.control_plane(kubernetesVersion="v1.33.4+herder1")
    decision = decide(*one(init=True), around=(objects.cluster(), embedded, *SOUND[2:]))
    (effect,) = decision.effects
    assert (effect.performer, effect.arguments["purposes"]) == (names.MAKE_AUTHORITIES, ("ca",))


def test_the_token_of_the_cluster_s_agent_is_read_as_of_its_revision() -> None:
    managed = objects.control_plane(managementClusterName="c-m-1")
    around = (objects.cluster(), managed, *SOUND[2:])
    lacking = decide(*one(init=True), around=around)
    assert "waiting for the token that the cluster's agent registers with" in conditions(lacking)["Ready"][1]
    secret = made(
        "v1", "Secret", token_secret("default-token"), metadata={"namespace": "c-m-1", "resourceVersion": "7"}
    )
    asking = decide(*one(init=True), secret, around=around)
    (effect,) = asking.effects
    assert effect.performer == names.READ_OBJECT
    assert effect.key[-1] == "7"
    another = {**secret, "metadata": {**secret["metadata"], "uid": "of-another"}}
    replaced = decide(*one(init=True), secret, around=around, results={effect.key: EffectResult(another)})
    assert not patches(replaced, PLAN_SECRET)
    assert "was recreated while it was read" in conditions(replaced)["Ready"][1]
    data = {"token": encoded("t" * 54), "expiresAt": encoded("2027-01-01T00:00:00Z")}
    results = {effect.key: EffectResult({**secret, "data": data})}
    flags = {"server-url": "https://herder.example"}
    decision = decide(*one(init=True), secret, around=around, results=results, flags=flags)
    (write,) = patches(decision, PLAN_SECRET)
    after = PlanSecret(apply_merge_patch(one(init=True)[1], write.patch))
    assert after.plan is not None
    agent = next(file for file in after.plan.files if file.path.endswith("/cluster-agent.yaml"))
    assert b"https://herder.example" in agent.decoded


@pytest.mark.parametrize(
    ("uid", "expected"), [("auth-uid", ""), ("of-another", "was recreated"), (None, "is not approved")]
)
def test_secrets_are_read_only_as_approved(uid: str | None, expected: str) -> None:
    plane = objects.control_plane(registries={"configs": {"a": {"authConfigSecretName": "auth"}}})
    secret = made("v1", "Secret", "auth", metadata={"namespace": "ns", "resourceVersion": "7", "uid": "auth-uid"})
    secret["metadata"]["namespace"] = plane["metadata"]["namespace"]
    place = {"resource": "secrets", "namespace": plane["metadata"]["namespace"], "name": "auth", "uid": uid}
    entry = {"path": "spec.registries.configs[a].authConfigSecretName", **place}
    marks = {**(plane["metadata"].get("annotations") or {}), APPROVED: json.dumps([entry] if uid else [])}
    plane = {**plane, "metadata": {**plane["metadata"], "annotations": marks}}
    decision = decide(*one(init=True), secret, around=(objects.cluster(), plane, *SOUND[2:]))
    assert bool(decision.effects) is not bool(expected)
    assert expected in conditions(decision)["Ready"][1]


@pytest.mark.parametrize(("uid", "expected"), [("c-m-1-uid", ""), ("of-another", "was recreated"), (None, "")])
def test_a_plan_holds_no_registration_token_of_a_cluster_that_replaced_the_approved_one(
    uid: str | None, expected: str
) -> None:
    """Rights on management Clusters are by name. A control plane that the manager created has no record of its own."""
    plane = objects.control_plane(managementClusterName="c-m-1")
    target = {"group": "management.cattle.io", "resource": "clusters", "name": "c-m-1", "uid": uid}
    record = [{"path": "spec.managementClusterName", **target}] if uid else []
    marks = {**(plane["metadata"].get("annotations") or {}), APPROVED: json.dumps(record)}
    plane = {**plane, "metadata": {**plane["metadata"], "annotations": marks}}
    management = made(MANAGEMENT_CLUSTER.api_version, "Cluster", "c-m-1", metadata={"uid": "c-m-1-uid"})
    management["metadata"].pop("namespace", None)
    secret = made("v1", "Secret", token_secret("default-token"), metadata={"namespace": "c-m-1"})
    decision = decide(*one(init=True), secret, management, around=(objects.cluster(), plane, *SOUND[2:]))
    assert bool(decision.effects) is not bool(expected)
    assert expected in conditions(decision)["Ready"][1]


def _archive(config: Object) -> str:
    raw = io.BytesIO()
    with tarfile.TarFile(fileobj=raw, mode="w") as tar:
        content = json.dumps(config).encode()
        entry = tarfile.TarInfo("root/machines/m/config.json")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    packer = zlib.compressobj(wbits=31)
    return base64.b64encode(packer.compress(raw.getvalue()) + packer.flush()).decode()


def test_addresses_of_a_driver_s_machine_are_in_its_record() -> None:
    machine, _ = one()
    machine["spec"]["infrastructureRef"] = {"apiGroup": "rke-machine.cattle.io", "kind": "PodMachine", "name": "infra"}
    plan = objects.plan_secret("a", ALL, init=True)
    told = conditions(decide(machine, plan))["Ready"][1]
    assert told == (
        "non-ready bootstrap machine(s) a: waiting for machine fleet-default/a driver config to be saved and join url "
        "to be available on bootstrap node"
    )
    record = {"DriverName": "generic", "Driver": {"IPAddress": "1.2.3.4", "PrivateIPAddress": "10.0.0.7"}}
    state = made("v1", "Secret", "infra-machine-state", data={"extractedConfig": _archive(record)})
    state["type"] = "rke.cattle.io/machine-state"
    (write,) = patches(decide(machine, plan, state), PLAN_SECRET)
    after = PlanSecret(apply_merge_patch(plan, write.patch))
    assert after.plan is not None
    config = json.loads(next(file for file in after.plan.files if file.path.endswith("50-rancher.yaml")).decoded)
    assert (config["node-ip"], config["node-external-ip"]) == (["10.0.0.7"], ["1.2.3.4"])


# --- plans ----------------------------------------------------------------------------------------------------------


def test_who_begins_is_marked_before_any_plan() -> None:
    decision = decide(*one())
    (mark,) = patches(decision, PLAN_SECRET)
    assert mark.patch == {"metadata": {"labels": {names.INIT_NODE: "true"}}}
    assert not patches(decision, CONTROL_PLANE)  # nothing is told before it is seen


def test_the_turn_is_taken_before_a_plan_is_written_and_given_back_at_the_end() -> None:
    decision = decide(*one(init=True))
    assert isinstance(decision.writes[0], Patch)
    assert decision.writes[0].patch == {"status": {"owner": "planner"}}
    assert decision.writes[0].resource_version
    assert len(patches(decision, PLAN_SECRET)) == 1
    mine = (objects.cluster(), objects.control_plane(), objects.beacon("planner"), TOKENS)
    assert not patches(decide(*one(init=True), around=mine), BEACON)


def finished(*, connected: bool = True) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
    """A cluster of one machine whose plan has worked, and what is around it."""
    status = {"initialization": {"controlPlaneInitialized": True}, "agentConnected": connected}
    endpoint = {"host": "10.0.0.1", "port": 6443}
    around = (
        objects.cluster(),
        objects.control_plane(status, controlPlaneEndpoint=endpoint),
        objects.beacon("planner"),
        TOKENS,
    )
    bare, plan = one(init=True)
    (write,) = patches(decide(bare, plan), PLAN_SECRET)
    applied = apply_merge_patch(plan, write.patch)
    applied["metadata"]["annotations"][names.JOIN_URL] = "https://10.0.0.1:6443"
    applied["data"] |= {"plan-state": encoded("succeeded"), "appliedPlan": applied["data"]["plan"]}
    return (objects.machine("a", address="10.0.0.1"), applied), around


def test_a_cluster_whose_plans_have_worked_is_ready() -> None:
    there, around = finished()
    decision = decide(*there, around=around)
    told = conditions(decision)
    assert {name: told[name][0] for name in ("Ready", "Stable", "Reconciled", "Provisioned", "Bootstrapped")} == {
        "Ready": "True", "Stable": "True", "Reconciled": "True", "Provisioned": "True", "Bootstrapped": "True",
    }  # fmt: skip
    assert {name: told[name][0] for name in ("ScalingUp", "ScalingDown", "RollingOut")} == dict.fromkeys(
        ("ScalingUp", "ScalingDown", "RollingOut"), "False"
    )
    (turn,) = patches(decision, BEACON)
    assert turn.patch == {"status": {"owner": ""}}
    status = next(p.patch["status"] for p in patches(decision, CONTROL_PLANE))
    assert status["appliedSpec"]["kubernetesVersion"] == "v1.33.4+k3s1"
    assert set(status["appliedSpec"]) <= {"kubernetesVersion", "clusterName", "managementClusterName"}
    (reconciled,) = patches(decision, MACHINE)
    assert "Reconciled" in {each["type"] for each in reconciled.patch["status"]["conditions"]}


def test_what_waits_is_told_on_the_cluster_and_on_the_machine() -> None:
    there, around = finished(connected=False)
    decision = decide(*there, around=around)
    told = "waiting for cluster agent to connect"
    assert conditions(decision)["Ready"] == ("Unknown", f"configuring bootstrap node(s) a: {told}")
    (patch,) = patches(decision, MACHINE)
    reconciled = next(each for each in patch.patch["status"]["conditions"] if each["type"] == "Reconciled")
    assert (reconciled["status"], reconciled["reason"], reconciled["message"]) == ("Unknown", "Waiting", told)
    older = patch.patch["status"]["deprecated"]["v1beta1"]["conditions"]
    assert [each["type"] for each in older] == ["Reconciled"]


SERVED = {"host": "10.0.0.1", "port": 6443}


def server(name: str, address: str, *, roles: tuple[str, ...] = ALL, deleting: bool = False, init: bool = False) -> Any:
    marks = {names.JOIN_URL: url_of(address, 6443), names.JOINED_TO: "https://10.0.0.1:6443"}
    secret = objects.plan_secret(name, roles, init=init, plan=plan_of(), marks=marks)
    return objects.machine(name, deleting=deleting, address=address), secret


@pytest.mark.parametrize(
    ("there", "moved"),
    [
        pytest.param([server("a", "10.0.0.1", init=True), server("b", "10.0.0.2")], "", id="it serves"),
        pytest.param(
            [server("a", "10.0.0.1", init=True, deleting=True), server("c", "10.0.0.3"), server("b", "10.0.0.2")],
            "10.0.0.2",
            id="it goes, and the first of the others takes its place",
        ),
        pytest.param(
            [server("b", "10.0.0.2"), server("c", "10.0.0.3", init=True)],
            "10.0.0.3",
            id="it is gone: who begins the cluster takes its place",
        ),
        pytest.param([server("a", "10.0.0.1", init=True, deleting=True)], "", id="it goes, but there is no other"),
        pytest.param(
            [server("b", "10.0.0.2", roles=(ETCD,)), server("c", "10.0.0.3", roles=(WORKER,))],
            "",
            id="it is gone, and nobody else has an API server",
        ),
        pytest.param([server("b", "fd00::2", init=True)], "fd00::2", id="its place is at an address of IPv6"),
    ],
)
def test_the_endpoint_is_where_a_server_answers(there: list[tuple[Object, Object]], moved: str) -> None:
    around = (objects.cluster(), objects.control_plane(controlPlaneEndpoint=SERVED), objects.beacon(), TOKENS)
    decision = decide(*(obj for pair in there for obj in pair), around=around)
    written = [each.patch["spec"] for each in patches(decision, CONTROL_PLANE) if not each.subresource]
    assert written == ([{"controlPlaneEndpoint": {"host": moved, "port": 6443}}] if moved else [])


def test_the_endpoint_is_told_with_the_first_machine_that_can_be_joined() -> None:
    machine = objects.machine("a", address="10.0.0.1")
    marks = {names.INTERNAL_ADDRESS: "10.0.0.1", names.JOIN_URL: "https://10.0.0.1:6443"}
    decision = decide(machine, objects.plan_secret("a", ALL, init=True, marks=marks, plan=plan_of()))
    (spec,) = (each for each in patches(decision, CONTROL_PLANE) if not each.subresource)
    assert spec.patch == {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}
