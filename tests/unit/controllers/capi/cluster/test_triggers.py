"""What sets the Cluster controller off, and what does not; and what it does not look at."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.controllers.capi.cluster.controller import CONTROLLER
from herder.controllers.capi.cluster.references import definitions_of, reference_to, references_of
from herder.engine.control.cache import Change, Key, key_of
from herder.engine.meta.kinds import Kind, Object
from tests.unit.controllers.capi.cluster.herd import (
    DEFINITIONS,
    INFRA,
    PROVISIONED,
    cluster,
    decide,
    definition,
    good,
    infra,
    look,
    machine,
    machine_set,
    pool,
)


def sets_off(kind: Kind, old: Object | None, new: Object | None) -> list[Key]:
    known = [cluster()]

    def lookup(index: tuple[str, str]) -> list[Key]:
        values_of = CONTROLLER.indexers(CLUSTER)[index[0]]
        return [key_of(obj) for obj in known if index[1] in values_of(obj)]

    change = Change(key_of(new or old or {}), old, new)
    if kind == INFRA:
        assert CONTROLLER.dynamic_watches is not None
        return CONTROLLER.dynamic_watches.affected(kind, change, lookup)
    return [key for watch in CONTROLLER.kinds() if watch.kind == kind for key in watch.affected(change, lookup)]


OURS = [Key("ns", "c")]
UNREADY = condition("Ready", "False", "NotReady", "no node")


def changed(obj: Object, **status: Any) -> Object:
    return {**obj, "status": {**obj["status"], **status}}


@pytest.mark.parametrize(
    ("kind", "old", "new", "keys"),
    [
        pytest.param(MACHINE, None, machine("w"), OURS, id="a new Machine"),
        pytest.param(MACHINE, machine("w"), None, OURS, id="a Machine that is gone"),
        pytest.param(MACHINE, machine("w"), good("w"), OURS, id="a Machine that became ready"),
        pytest.param(
            MACHINE,
            machine("w", UNREADY),
            machine("w", {**UNREADY, "message": "no disk"}),
            OURS,
            id="a Machine with other words",
        ),
        pytest.param(
            MACHINE, good("w"), changed(good("w"), phase="Running", addresses=[{}]), [], id="a Machine's other fields"
        ),
        pytest.param(
            MACHINE,
            good("w"),
            changed(good("w"), nodeRef={"name": "n"}),
            [],
            id="a worker's node",
        ),
        pytest.param(
            MACHINE,
            good("cp", control_plane=True),
            changed(good("cp", control_plane=True), nodeRef={"name": "n"}),
            OURS,
            id="a control plane Machine's node",
        ),
        pytest.param(MACHINE, None, machine("w", meta={"labels": {}}), [], id="a Machine of no cluster"),
        pytest.param(MACHINE_DEPLOYMENT, pool("d"), pool("d", readyReplicas=1), OURS, id="a deployment's counters"),
        pytest.param(MACHINE_DEPLOYMENT, pool("d", owned=False), pool("d"), OURS, id="a deployment that was adopted"),
        pytest.param(
            MACHINE_DEPLOYMENT,
            pool("d"),
            {**pool("d"), "metadata": {**pool("d")["metadata"], "annotations": {"a": "b"}}},
            [],
            id="a deployment's annotations",
        ),
        pytest.param(MACHINE_SET, machine_set("s"), machine_set("s", replicas=1), OURS, id="a standalone set"),
        pytest.param(
            MACHINE_SET,
            machine_set("s", owned=False),
            machine_set("s", owned=False, replicas=1),
            [],
            id="a deployment's set",
        ),
        pytest.param(MACHINE_SET, machine_set("s", owned=False), None, OURS, id="a deployment's set that is gone"),
        pytest.param(INFRA, infra(), infra(meta={"annotations": {"beat": "7"}}), [], id="a provider's heartbeat"),
        pytest.param(INFRA, None, infra(meta={"labels": {}, "ownerReferences": []}), OURS, id="what it names, unowned"),
        pytest.param(INFRA, infra(), infra(PROVISIONED), OURS, id="what it names, provisioned"),
        pytest.param(
            INFRA,
            None,
            {**infra(), "metadata": {"name": "other", "namespace": "ns"}},
            [],
            id="another of the same kind",
        ),
        pytest.param(DEFINITION, None, definition(INFRA), OURS, id="the definition of a kind that it names"),
        pytest.param(DEFINITION, definition(INFRA, "v1beta1"), definition(INFRA), OURS, id="its contract changed"),
    ],
)
def test_what_sets_it_off(kind: Kind, old: Object | None, new: Object | None, keys: list[Key]) -> None:
    assert sets_off(kind, old, new) == keys


@pytest.mark.parametrize(
    ("field", "value", "matters"),
    [
        ("metadata.annotations", {"cluster.x-k8s.io/paused": ""}, True),
        ("metadata.deletionTimestamp", "2026-01-01T11:00:00Z", True),
        ("metadata.resourceVersion", "99", False),
        ("spec.paused", True, True),
        ("status.conditions", [condition("ControlPlaneInitialized", "False", "Restoring")], True),
        ("status.workers", {"replicas": 3}, False),
    ],
)
def test_which_of_its_own_changes_matter(field: str, value: Any, matters: bool) -> None:
    section, name = field.split(".")
    old = cluster()
    new = {**old, section: {**old[section], name: value}}
    assert (sets_off(CLUSTER, old, new) == OURS) is matters


def test_references_are_indexed_by_what_they_lead_to() -> None:
    assert set(reference_to(infra())) <= set(references_of(cluster()))
    assert definition(INFRA)["metadata"]["name"] in list(definitions_of(cluster()))
    assert list(references_of({"metadata": {"name": "c"}, "spec": {"infrastructureRef": {"kind": "Half"}}})) == []


def test_machines_that_have_nothing_to_tell_are_counted_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    herd = [good(f"w-{number:03}") for number in range(200)]
    view = look(cluster(), *DEFINITIONS, *herd, machine("w-200", UNREADY))
    read: list[str] = []
    select = type(view).select

    def counting(self: Any, kind: Kind, **how: Any) -> list[Object]:
        found = select(self, kind, **how)
        if kind == MACHINE:
            read.extend(obj["metadata"]["name"] for obj in found)
        return found

    monkeypatch.setattr(type(view), "select", counting)
    CONTROLLER.reconcile(view)
    assert set(read) == {"w-200"}


def test_a_cluster_of_many_is_decided_as_one_of_few() -> None:
    few = decide(cluster(), *DEFINITIONS, *[good(f"w-{number}") for number in range(3)])
    many = decide(cluster(), *DEFINITIONS, *[good(f"w-{number}") for number in range(300)])
    assert few == many
