"""InMemoryBootstrapConfig: when the bootstrap data are made, what they are, and in how many writes."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import PAUSED
from herder.api.inmemory import names
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP
from herder.controllers.inmemory.bootstrap import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision
from tests.support.views import NOW
from tests.unit.controllers.inmemory.stage import (
    EARLIER,
    cluster,
    condition,
    decide,
    flat,
    legacy,
    machine,
    made,
    only_patch,
    patched,
    secret,
)


def config(owner: Object | None = None, **more: Any) -> Object:
    return made(IN_MEMORY_BOOTSTRAP, "m", owner=machine() if owner is None else owner, spec={}, **more)


def decided(*objects: Object) -> Decision:
    return decide(CONTROLLER, "m", *objects)


def test_a_secret_and_one_write_tell_of_the_data() -> None:
    decision = decided(config(), machine(), cluster())
    create, _ = flat(decision)
    assert isinstance(create, Create)
    assert create.kind == SECRET
    assert create.obj["type"] == "cluster.x-k8s.io/secret"
    assert create.obj["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "c"}
    (owner,) = create.obj["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("InMemoryBootstrapConfig", True)
    told = patched(config(), decision)
    assert told["status"]["dataSecretName"] == create.obj["metadata"]["name"] == "m"
    assert told["status"]["initialization"] == {"dataSecretCreated": True}
    assert told["status"]["ready"] is True
    assert condition(told, "Ready") == ("True", "Ready", "")
    assert condition(told, "Paused") == ("False", "NotPaused", "")
    assert legacy(told, "Ready")["status"] == "True"


@pytest.mark.parametrize("control_plane", [False, True])
def test_the_data_are_a_script_that_leaves_the_sentinel_file(control_plane: bool) -> None:
    of = machine(control_plane=control_plane)
    create = flat(decided(config(of), of, cluster()))[0]
    assert isinstance(create, Create)
    text = base64.b64decode(create.obj["data"]["value"]).decode()
    assert text.startswith("#!/bin/sh\n")
    assert "/run/cluster-api/bootstrap-success.complete" in text
    assert ("node.cluster.x-k8s.io/uninitialized" in text) is not control_plane


@pytest.mark.parametrize(
    ("objects", "waits_for"),
    [
        ([made(IN_MEMORY_BOOTSTRAP, "m", spec={})], "waiting for the Machine controller to set the owner reference"),
        ([config(), machine()], "its Cluster does not exist"),
        ([config(), machine(), cluster(provisioned=False)], "the cluster's infrastructure is not provisioned"),
        ([config(), machine(), cluster(initialized=False)], "the control plane is not initialized"),
        ([config(), machine(deleting=True), cluster()], "its Machine is being deleted"),
    ],
)
def test_it_waits_for_others_and_writes_nothing_meanwhile(objects: list[Object], waits_for: str) -> None:
    decision = decided(*objects)
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason == waits_for


def test_machines_of_the_control_plane_come_before_it_is_initialized() -> None:
    of = machine(control_plane=True)
    assert len(flat(decided(config(of), of, cluster(initialized=False)))) == 2


def test_where_the_secret_is_there_already_only_the_telling_is_left() -> None:
    decision = decided(config(), machine(), cluster(), secret("m"))
    assert only_patch(decision)["status"]["dataSecretName"] == "m"


def test_once_told_nothing_more_is_written() -> None:
    first = decided(config(), machine(), cluster())
    again = decided(patched(config(), first), machine(), cluster(), secret("m"))
    assert again.writes == ()
    assert again.wait is None


def test_the_delay_counts_from_when_the_cluster_is_ready_for_the_machine() -> None:
    slow = config(annotations={names.BOOTSTRAP_DELAY: "100"})
    decision = decided(slow, machine(), cluster(since=EARLIER + timedelta(seconds=10)))
    assert decision.writes == ()
    assert decision.wake_at == EARLIER + timedelta(seconds=110)
    assert len(flat(decide(CONTROLLER, "m", slow, machine(), cluster(), now=NOW + timedelta(seconds=100)))) == 2


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (names.FAIL, "Broken", "Broken"),
        (names.NEVER_READY, "true", "NeverReady"),
        (names.BOOTSTRAP_DELAY, "soon", "InvalidAnnotation"),
    ],
)
def test_trouble_that_is_asked_for_is_told(annotation: str, value: str, reason: str) -> None:
    bad = config(annotations={annotation: value})
    told = patched(bad, decided(bad, machine(), cluster()))
    assert condition(told, "Ready")[:2] == ("False", reason)
    assert "dataSecretName" not in told["status"]
    assert told["status"].get("failureReason") == ("Broken" if annotation == names.FAIL else None)
    assert decided(told, machine(), cluster()).writes == ()


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([config(), machine(), cluster(paused=True)], "Cluster spec.paused is set to true"),
        (
            [config(annotations={PAUSED: ""}), machine(), cluster()],
            "InMemoryBootstrapConfig has the cluster.x-k8s.io/paused annotation",
        ),
    ],
)
def test_while_paused_it_says_so_and_does_nothing(objects: list[Object], message: str) -> None:
    told = patched(objects[0], decided(*objects))
    assert condition(told, "Paused") == ("True", "Paused", message)
    assert "dataSecretName" not in told["status"]
    assert decided(told, *objects[1:]).writes == ()


def test_a_config_that_is_going_is_left_alone() -> None:
    assert decided(config(deleting=True), machine(), cluster()) == Decision()
