"""A Machine's Node is found by its UID, through the tunnel, and tells what the machine is called."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.capi.nodes import NODE_RECORD
from herder.api.machines.kinds import kinds_of
from herder.api.rke.kinds import CUSTOM_MACHINE
from herder.controllers.machines import node_lookup
from herder.controllers.machines.cluster_access import BY_MACHINE, NODES
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Patch
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.views import NOW, view_of
from tests.unit.controllers.machines.custom.stage import (
    CLUSTER_ID,
    WORKSPACE,
    cluster,
    custom,
    machine,
    made,
    management,
    provisioning,
)

PROCESS = kinds_of("process").machine
ADDRESSES = [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "sheep-1"}]


def node(
    provider_id: str = "k3s://sheep-1", ready: str = "True", name: str = "sheep-1", roles: Sequence[str] = ()
) -> Object:
    """As a cluster shows it."""
    labels = {f"node-role.kubernetes.io/{role}": "true" for role in roles}
    return NODES.project(
        {
            "metadata": {"name": name, "labels": {"rke.cattle.io/machine": "Machine-custom-1", **labels}},
            "spec": {"providerID": provider_id} if provider_id else {},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "addresses": ADDRESSES},
        }
    )


def definition(kind: Kind) -> Object:
    return made(DEFINITION, f"{kind.plural}.{kind.group}")


def decide(*objects: Object, seen: Observed | Unreachable | None = None) -> Decision:
    usual = [
        machine(),
        custom(),
        cluster(),
        provisioning(),
        management(),
        definition(CUSTOM_MACHINE),
        definition(PROCESS),
    ]
    chosen = {(each["apiVersion"], each["kind"], each["metadata"]["name"]): each for each in (*usual, *objects)}
    view = view_of(
        node_lookup.CONTROLLER,
        f"{WORKSPACE}/custom-1",
        chosen.values(),
        followed=[CUSTOM_MACHINE, PROCESS],
        observed=lambda _wish: seen,
    )
    return node_lookup.reconcile(view)


@pytest.mark.parametrize("kind", [CUSTOM_MACHINE, PROCESS])
def test_addresses_first_and_then_what_the_machine_is_called(kind: Kind) -> None:
    infra = {**custom(), "apiVersion": kind.api_version, "kind": kind.kind}
    decision = decide(machine(infrastructure=kind.group_kind), infra, seen=Observed((node(),), NOW))
    addresses, named = decision.writes
    assert isinstance(addresses, Patch)
    assert isinstance(named, Patch)
    assert (addresses.subresource, addresses.patch["status"]["addresses"]) == ("status", ADDRESSES)
    assert (named.ref.kind, named.patch) == (kind, {"spec": {"providerID": "k3s://sheep-1"}})
    (wish,) = decision.observe
    assert (wish.cluster, wish.focus) == (CLUSTER_ID, ("machine", "Machine-custom-1"))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (None, "waiting for the list of Nodes of c-m-meadow22"),
        (Unreachable("no route", NOW), "cannot list Nodes: no route"),
        (Observed((), NOW), "no Node has the label rke.cattle.io/machine=Machine-custom-1 yet"),
        (Observed((node(provider_id=""),), NOW), "Node sheep-1 has no spec.providerID yet"),
        (Observed((node(ready="False"),), NOW), "Node sheep-1 is not Ready yet"),
        (Observed((node(), node(name="wolf")), NOW), "Nodes sheep-1, wolf all have the label"),
    ],
)
def test_until_there_is_one_that_is_ready_it_is_watched_for(seen: Observed | Unreachable | None, reason: str) -> None:
    decision = decide(seen=seen)
    assert decision.writes == ()
    assert len(decision.observe) == 1
    assert decision.wait is not None
    assert decision.wait.reason.startswith(reason)


def test_a_node_of_another_machine_that_claims_the_label_is_not_its_node() -> None:
    """A kubelet sets the label on its own Node: new machines would wait for ever, or a worker stand for a server."""
    claimant = node("k3s://wolf", name="wolf")
    other = machine("custom-2", provider_id="k3s://wolf")
    both = decide(other, seen=Observed((claimant, node()), NOW))
    assert [write.patch for write in both.writes if isinstance(write, Patch)][1:] == [
        {"spec": {"providerID": "k3s://sheep-1"}}
    ]
    alone = decide(other, seen=Observed((claimant,), NOW))
    assert alone.writes == ()
    elsewhere = machine("custom-2", of="pasture", provider_id="k3s://sheep-1")
    assert len(decide(elsewhere, seen=Observed((node(),), NOW)).writes) == 2, (
        "provider IDs of other clusters are theirs"
    )


@pytest.mark.parametrize("role", ["etcd-role", "control-plane-role"])
def test_no_node_of_a_worker_stands_for_a_server(role: str) -> None:
    """A worker that joins claims the provider ID of a server that joins at the same time, whose Node then counts as the
    worker's, and registers another Node with the label of the server. A kubelet gives its Node no role, though."""
    server = machine(labels={f"rke.cattle.io/{role}": "true"})
    worker = machine("custom-2", provider_id="k3s://sheep-1")
    real, forged = node(roles=["control-plane", "etcd"]), node("k3s://wolf", name="wolf")
    decision = decide(server, worker, seen=Observed((real, forged), NOW))
    assert "wolf" not in str(decision.writes)
    assert decide(server, seen=Observed((forged,), NOW)).writes == ()
    assert decide(server, seen=Observed((node(roles=["worker"]),), NOW)).writes == ()


def test_a_worker_that_claims_the_provider_id_of_a_server_does_not_keep_it_waiting() -> None:
    server = machine(labels={"rke.cattle.io/etcd-role": "true"})
    claimant = machine("custom-2", provider_id="k3s://sheep-1")
    real, forged = node(roles=["control-plane", "etcd"]), node("k3s://wolf", name="wolf")
    decision = decide(server, claimant, seen=Observed((real, forged), NOW))
    assert [write.patch for write in decision.writes if isinstance(write, Patch)][1:] == [
        {"spec": {"providerID": "k3s://sheep-1"}}
    ]
    predecessor = machine("custom-2", provider_id="k3s://sheep-1", labels={"rke.cattle.io/etcd-role": "true"})
    assert decide(server, predecessor, seen=Observed((real,), NOW)).writes == ()


@pytest.mark.parametrize("role", ["etcd", "control-plane", "master"])
def test_a_server_is_found_by_the_role_of_its_node(role: str) -> None:
    server = machine(labels={"rke.cattle.io/etcd-role": "true"})
    decision = decide(server, seen=Observed((node(roles=[role]),), NOW))
    assert len(decision.writes) == 2


@pytest.mark.parametrize(
    "changed",
    [
        machine(provider_id="k3s://sheep-1"),
        machine(data=""),
        cluster(paused=True),
        custom(provider_id="k3s://sheep-1"),
        {**custom(), "status": {}},
        machine(infrastructure=("infrastructure.cluster.x-k8s.io", "DevMachine")),
    ],
    ids=["known", "no script", "paused", "told", "not made", "of another provider"],
)
def test_machines_that_are_not_to_be_looked_for(changed: Object) -> None:
    decision = decide(changed, seen=Observed((node(),), NOW))
    assert (decision.writes, decision.observe) == ((), ())


def test_one_that_goes_is_looked_for_too_lest_its_node_be_left_behind() -> None:
    assert decide(machine(going=True), seen=Observed((node(),), NOW)).writes


@pytest.mark.parametrize("whose", [management(connected=False), management(of=f"{WORKSPACE}/other")])
def test_only_the_own_cluster_is_asked_and_only_while_its_agent_is_there(whose: Object) -> None:
    decision = decide(whose, seen=Observed((node(),), NOW))
    assert (decision.writes, decision.observe) == ((), ())
    assert decision.wait is not None
    assert "agent to connect" in decision.wait.reason


def registered(provider_id: str) -> Object:
    """A Node that has no label and is not ready yet."""
    meta, conditions = {"name": "sheep-1"}, [{"type": "Ready", "status": "False"}]
    return NODES.project({"metadata": meta, "spec": {"providerID": provider_id}, "status": {"conditions": conditions}})


def test_a_node_that_names_the_machine_by_its_provider_id_claims_it_before_it_has_the_label() -> None:
    """A worker sees that provider ID at once, and puts the label with the same UID on another Node of its own: it would
    get the labels that no node may give itself, and with them pods that are meant for the machine."""
    uid = "Machine-custom-1"
    own, forged = registered(f"kubeadm://{uid}"), node("kubeadm://wolf", name="wolf")
    claimants = [each for each in (own, forged) if uid in NODES.indexes[BY_MACHINE](each)]
    decision = decide(seen=Observed(tuple(claimants), NOW))
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason.startswith("Nodes sheep-1, wolf all have the label")


def test_the_node_of_a_machine_is_waited_for_until_it_has_the_label() -> None:
    decision = decide(seen=Observed((registered("kubeadm://Machine-custom-1"),), NOW))
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
def test_a_node_claims_machines_by_its_label_and_by_its_provider_id(
    label: str, provider_id: str, claimed: set[str]
) -> None:
    """Wherever Nodes are found by the UID of a Machine, such as for the word on an etcd member."""
    labels = {"rke.cattle.io/machine": label} if label else {}
    shown = {"metadata": {"name": "sheep-1", "labels": labels}, "spec": {"providerID": provider_id}}
    for projection in (NODES, NODE_RECORD):
        assert set(projection.indexes["machine"](projection.project(shown))) == claimed
