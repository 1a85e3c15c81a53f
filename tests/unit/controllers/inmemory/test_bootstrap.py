"""InMemoryBootstrapConfig: when bootstrap data is created, its content, and the number of writes."""

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
from tests.support.builders import condition_fields, legacy_condition_of, only_patch, patched, writes_of
from tests.support.views import NOW
from tests.unit.controllers.inmemory.objects import (
    A_MINUTE_AGO,
    cluster,
    machine,
    member_object,
    reconcile_object,
    secret,
)


def config(owner: Object | None = None, **options: Any) -> Object:
    return member_object(IN_MEMORY_BOOTSTRAP, "m", owner=machine() if owner is None else owner, spec={}, **options)


def reconcile(*objects: Object) -> Decision:
    return reconcile_object(CONTROLLER, "m", *objects)


def test_bootstrap_data_is_a_secret_and_one_status_write() -> None:
    decision = reconcile(config(), machine(), cluster())
    create, _ = writes_of(decision)
    assert isinstance(create, Create)
    assert create.kind == SECRET
    assert create.obj["type"] == "cluster.x-k8s.io/secret"
    assert create.obj["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "c"}
    (owner,) = create.obj["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("InMemoryBootstrapConfig", True)
    updated = patched(config(), decision)
    assert updated["status"]["dataSecretName"] == create.obj["metadata"]["name"] == "m"
    assert updated["status"]["initialization"] == {"dataSecretCreated": True}
    assert updated["status"]["ready"] is True
    assert condition_fields(updated, "Ready") == ("True", "Ready", "")
    assert condition_fields(updated, "Paused") == ("False", "NotPaused", "")
    assert legacy_condition_of(updated, "Ready")["status"] == "True"


def test_an_owner_reference_alone_creates_no_bootstrap_data() -> None:
    foreign = machine()
    foreign["spec"]["bootstrap"]["configRef"]["name"] = "other"
    assert reconcile(config(), foreign, cluster()).writes == ()


@pytest.mark.parametrize("control_plane", [False, True])
def test_bootstrap_data_is_a_script_that_creates_the_sentinel_file(control_plane: bool) -> None:
    owner_machine = machine(control_plane=control_plane)
    create = writes_of(reconcile(config(owner_machine), owner_machine, cluster()))[0]
    assert isinstance(create, Create)
    text = base64.b64decode(create.obj["data"]["value"]).decode()
    assert text.startswith("#!/bin/sh\n")
    assert "/run/cluster-api/bootstrap-success.complete" in text
    assert ("node.cluster.x-k8s.io/uninitialized" in text) is not control_plane


@pytest.mark.parametrize(
    ("objects", "waits_for"),
    [
        (
            [member_object(IN_MEMORY_BOOTSTRAP, "m", spec={})],
            "waiting for the Machine controller to set the owner reference",
        ),
        ([config(), machine()], "its Cluster does not exist"),
        ([config(), machine(), cluster(provisioned=False)], "the cluster's infrastructure is not provisioned"),
        ([config(), machine(), cluster(initialized=False)], "the control plane is not initialized"),
        ([config(), machine(deleting=True), cluster()], "its Machine is being deleted"),
    ],
)
def test_waiting_config_is_not_written(objects: list[Object], waits_for: str) -> None:
    decision = reconcile(*objects)
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason == waits_for


def test_control_plane_machines_do_not_wait_for_the_control_plane() -> None:
    owner_machine = machine(control_plane=True)
    assert len(writes_of(reconcile(config(owner_machine), owner_machine, cluster(initialized=False)))) == 2


def test_existing_secret_is_only_reported_in_the_status() -> None:
    decision = reconcile(config(), machine(), cluster(), secret("m"))
    assert only_patch(decision)["status"]["dataSecretName"] == "m"


def test_ready_config_is_not_written() -> None:
    first = reconcile(config(), machine(), cluster())
    second = reconcile(patched(config(), first), machine(), cluster(), secret("m"))
    assert second.writes == ()
    assert second.wait is None


def test_bootstrap_delay_counts_from_cluster_readiness() -> None:
    delayed = config(annotations={names.BOOTSTRAP_DELAY: "100"})
    decision = reconcile(delayed, machine(), cluster(since=A_MINUTE_AGO + timedelta(seconds=10)))
    assert decision.writes == ()
    assert decision.wake_at == A_MINUTE_AGO + timedelta(seconds=110)
    assert (
        len(
            writes_of(
                reconcile_object(CONTROLLER, "m", delayed, machine(), cluster(), now=NOW + timedelta(seconds=100))
            )
        )
        == 2
    )


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (names.FAIL, "Broken", "Broken"),
        (names.NEVER_READY, "true", "NeverReady"),
        (names.BOOTSTRAP_DELAY, "soon", "InvalidAnnotation"),
    ],
)
def test_injected_faults_are_reported_in_conditions(annotation: str, value: str, reason: str) -> None:
    faulty = config(annotations={annotation: value})
    updated = patched(faulty, reconcile(faulty, machine(), cluster()))
    assert condition_fields(updated, "Ready")[:2] == ("False", reason)
    assert "dataSecretName" not in updated["status"]
    assert updated["status"].get("failureReason") == ("Broken" if annotation == names.FAIL else None)
    assert reconcile(updated, machine(), cluster()).writes == ()


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
def test_paused_object_only_reports_its_pause(objects: list[Object], message: str) -> None:
    updated = patched(objects[0], reconcile(*objects))
    assert condition_fields(updated, "Paused") == ("True", "Paused", message)
    assert "dataSecretName" not in updated["status"]
    assert reconcile(updated, *objects[1:]).writes == ()


def test_deleting_config_is_ignored() -> None:
    assert reconcile(config(deleting=True), machine(), cluster()) == Decision()
