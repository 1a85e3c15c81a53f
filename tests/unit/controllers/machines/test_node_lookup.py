"""The Node of a Machine is found by the UID of the Machine, through the tunnel, and provides its provider ID."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from herder.api.capi.kinds import DEFINITION, NODE
from herder.api.capi.nodes import NODE_RECORD
from herder.api.machines.kinds import kinds_of
from herder.api.rke.kinds import CUSTOM_MACHINE
from herder.controllers.machines import node_lookup
from herder.controllers.machines.cluster_access import BY_MACHINE, NODES
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Patch
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import NOW, merge_objects, new_condition, new_object, reconcile
from tests.unit.controllers.machines.custom.objects import (
    CLUSTER_ID,
    WORKSPACE,
    cluster,
    custom_machine,
    machine,
    management,
    provisioning,
)

PROCESS = kinds_of("process").machine
ADDRESSES = [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "sheep-1"}]


def node(
    provider_id: str = "k3s://sheep-1", ready: str = "True", name: str = "sheep-1", roles: Sequence[str] = ()
) -> Object:
    """A Node as a cluster serves it."""
    labels = {f"node-role.kubernetes.io/{role}": "true" for role in roles}
    node_object = new_object(
        NODE,
        name,
        labels={"rke.cattle.io/machine": "Machine-custom-1", **labels},
        spec={"providerID": provider_id} if provider_id else {},
        status={"conditions": [new_condition("Ready", ready)], "addresses": ADDRESSES},
    )
    return NODES.project(node_object)


def of_node(found: Object, name: str) -> Object:
    """The Machine with a reference to its Node."""
    return {**found, "status": {**(found.get("status") or {}), "nodeRef": {"name": name}}}


def definition(kind: Kind) -> Object:
    return new_object(DEFINITION, f"{kind.plural}.{kind.group}")


def decide(*objects: Object, observed: Observed | Unreachable | None = None) -> Decision:
    defaults = [
        machine(),
        custom_machine(),
        cluster(),
        provisioning(),
        management(),
        definition(CUSTOM_MACHINE),
        definition(PROCESS),
    ]
    return reconcile(
        node_lookup.CONTROLLER,
        f"{WORKSPACE}/custom-1",
        *merge_objects(defaults, objects),
        dynamic_kinds=[CUSTOM_MACHINE, PROCESS],
        observed=lambda _request: observed,
    )


@pytest.mark.parametrize("kind", [CUSTOM_MACHINE, PROCESS])
def test_addresses_are_written_before_the_provider_id(kind: Kind) -> None:
    infra = {**custom_machine(), "apiVersion": kind.api_version, "kind": kind.kind}
    decision = decide(machine(infrastructure=kind.group_kind), infra, observed=Observed((node(),), NOW))
    addresses, provider_id_patch = decision.writes
    assert isinstance(addresses, Patch)
    assert isinstance(provider_id_patch, Patch)
    assert (addresses.subresource, addresses.patch["status"]["addresses"]) == ("status", ADDRESSES)
    assert (provider_id_patch.ref.kind, provider_id_patch.patch) == (kind, {"spec": {"providerID": "k3s://sheep-1"}})
    (request,) = decision.observe
    assert (request.cluster, request.focus) == (CLUSTER_ID, ("machine", "Machine-custom-1"))


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (None, "waiting for the list of Nodes of c-m-meadow22"),
        (Unreachable("no route", NOW), "cannot list Nodes: no route"),
        (Observed((), NOW), "no Node has the label rke.cattle.io/machine=Machine-custom-1 yet"),
        (Observed((node(provider_id=""),), NOW), "Node sheep-1 has no spec.providerID yet"),
        (Observed((node(ready="False"),), NOW), "Node sheep-1 is not Ready yet"),
        (Observed((node(), node(name="wolf")), NOW), "Nodes sheep-1, wolf all have the label"),
    ],
)
def test_the_lookup_waits_for_one_ready_node(observed: Observed | Unreachable | None, reason: str) -> None:
    decision = decide(observed=observed)
    assert decision.writes == ()
    assert len(decision.observe) == 1
    assert decision.wait is not None
    assert decision.wait.reason.startswith(reason)


def test_a_node_of_another_machine_that_claims_the_label_is_ignored() -> None:
    """A kubelet sets the label on its own Node: new machines could wait for ever, or a worker could represent a
    server."""
    claimant = node("k3s://wolf", name="wolf")
    other = of_node(machine("custom-2", provider_id="k3s://wolf"), "wolf")
    both = decide(other, observed=Observed((claimant, node()), NOW))
    assert [write.patch for write in both.writes if isinstance(write, Patch)][1:] == [
        {"spec": {"providerID": "k3s://sheep-1"}}
    ]
    alone = decide(other, observed=Observed((claimant,), NOW))
    assert alone.writes == ()
    elsewhere = machine("custom-2", cluster_name="pasture", provider_id="k3s://sheep-1")
    assert len(decide(elsewhere, observed=Observed((node(),), NOW)).writes) == 2, (
        "provider IDs of other clusters do not matter"
    )


def test_a_worker_does_not_replace_a_machine_whose_provider_id_it_has_chosen() -> None:
    """It registers with the provider ID of a machine that joins later, and then a Node with the label of that one,
    which would get the labels that NodeRestriction protects."""
    claimant = of_node(machine("custom-2", provider_id="k3s://sheep-1"), "wolf")
    forged = node("k3s://wolf-2", name="wolf-2")
    for nodes in ((node(), forged), (forged, node()), (node(),)):
        decision = decide(claimant, observed=Observed(nodes, NOW))
        assert decision.writes == ()
        assert decision.wait is not None
        assert decision.wait.reason == (
            "Node sheep-1 claims this machine, and has the provider ID of Machine custom-2; "
            "delete the Node or the Machine that is not genuine"
        )


@pytest.mark.parametrize("role", ["etcd-role", "control-plane-role"])
def test_no_node_of_a_worker_represents_a_server(role: str) -> None:
    """A joining worker could claim the provider ID of a server that joins at the same time, whose Node then counts
    as the worker's, and register another Node with the label of the server. A kubelet cannot give its Node a role."""
    server = machine(labels={f"rke.cattle.io/{role}": "true"})
    worker = machine("custom-2", provider_id="k3s://sheep-1")
    real, forged = node(roles=["control-plane", "etcd"]), node("k3s://wolf", name="wolf")
    decision = decide(server, worker, observed=Observed((real, forged), NOW))
    assert "wolf" not in str(decision.writes)
    assert decide(server, observed=Observed((forged,), NOW)).writes == ()
    assert decide(server, observed=Observed((node(roles=["worker"]),), NOW)).writes == ()


def test_a_worker_that_claims_the_provider_id_of_a_server_does_not_block_it() -> None:
    server = machine(labels={"rke.cattle.io/etcd-role": "true"})
    claimant = machine("custom-2", provider_id="k3s://sheep-1")
    real, forged = node(roles=["control-plane", "etcd"]), node("k3s://wolf", name="wolf")
    decision = decide(server, claimant, observed=Observed((real, forged), NOW))
    assert [write.patch for write in decision.writes if isinstance(write, Patch)][1:] == [
        {"spec": {"providerID": "k3s://sheep-1"}}
    ]
    predecessor = machine("custom-2", provider_id="k3s://sheep-1", labels={"rke.cattle.io/etcd-role": "true"})
    assert decide(server, predecessor, observed=Observed((real,), NOW)).writes == ()


@pytest.mark.parametrize("role", ["etcd", "control-plane", "master"])
def test_a_server_is_found_by_the_role_of_its_node(role: str) -> None:
    server = machine(labels={"rke.cattle.io/etcd-role": "true"})
    decision = decide(server, observed=Observed((node(roles=[role]),), NOW))
    assert len(decision.writes) == 2


@pytest.mark.parametrize(
    "changed_object",
    [
        machine(provider_id="k3s://sheep-1"),
        machine(data=""),
        cluster(paused=True),
        custom_machine(provider_id="k3s://sheep-1"),
        {**custom_machine(), "status": {}},
        machine(infrastructure=("infrastructure.cluster.x-k8s.io", "DevMachine")),
    ],
    ids=["known", "no bootstrap data", "paused", "the provider ID is known", "not provisioned", "of another provider"],
)
def test_no_node_is_looked_up(changed_object: Object) -> None:
    decision = decide(changed_object, observed=Observed((node(),), NOW))
    assert (decision.writes, decision.observe) == ((), ())


def test_the_node_of_a_deleting_machine_is_looked_up_too() -> None:
    assert decide(machine(deleting=True), observed=Observed((node(),), NOW)).writes


@pytest.mark.parametrize(
    "management_cluster", [management(connected=False), management(created_for=f"{WORKSPACE}/other")]
)
def test_only_the_own_cluster_is_queried_while_its_agent_is_connected(management_cluster: Object) -> None:
    decision = decide(management_cluster, observed=Observed((node(),), NOW))
    assert (decision.writes, decision.observe) == ((), ())
    assert decision.wait is not None
    assert "agent to connect" in decision.wait.reason


def registered(provider_id: str) -> Object:
    """A Node without the label that is not ready yet."""
    status = {"conditions": [new_condition("Ready", "False")]}
    return NODES.project(new_object(NODE, "sheep-1", spec={"providerID": provider_id}, status=status))


def test_a_provider_id_claims_a_machine_before_its_node_has_the_label() -> None:
    """A worker sees that provider ID at once, and could put the label with the same UID on its own second Node. That
    Node would get labels that no node may set itself, and with them pods that are meant for the machine."""
    uid = "Machine-custom-1"
    legitimate, forged = registered(f"kubeadm://{uid}"), node("kubeadm://wolf", name="wolf")
    claimants = [each for each in (legitimate, forged) if uid in NODES.indexes[BY_MACHINE](each)]
    decision = decide(observed=Observed(tuple(claimants), NOW))
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason.startswith("Nodes sheep-1, wolf all have the label")


def test_the_message_about_many_claimants_is_bounded() -> None:
    claimants = tuple(node(f"k3s://{number}", name=f"{number:03}-{'n' * 240}") for number in range(200))
    decision = decide(observed=Observed(claimants, NOW))
    assert decision.wait is not None
    assert "... (190 more) all have the label" in decision.wait.reason


def test_a_node_is_waited_for_until_it_has_the_label() -> None:
    decision = decide(observed=Observed((registered("kubeadm://Machine-custom-1"),), NOW))
    assert decision.writes == ()
    assert decision.wait is not None


@pytest.mark.parametrize(
    ("label", "provider_id", "claimed"),
    [
        ("a", "kubeadm://a", {"a"}),
        ("", "kubeadm://a", {"a"}),
        ("b", "kubeadm://a", {"a", "b"}),
        ("b", "k3s://a", {"b"}),
        ("", "", set()),
    ],
)
def test_a_node_claims_machines_by_label_and_by_provider_id(label: str, provider_id: str, claimed: set[str]) -> None:
    """This holds wherever Nodes are found by the UID of a Machine, such as for the state of an etcd member."""
    labels = {"rke.cattle.io/machine": label} if label else {}
    node_object = {"metadata": {"name": "sheep-1", "labels": labels}, "spec": {"providerID": provider_id}}
    for projection in (NODES, NODE_RECORD):
        assert set(projection.indexes["machine"](projection.project(node_object))) == claimed
