"""The connection to the workload cluster: when it is established, and how its health is reported."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from herder.api.capi.conditions import condition
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Connect
from herder.engine.runtime.view import ConnectionStatus
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    DELETING,
    FULLY_INITIALIZED,
    PROVISIONED,
    cluster,
    infra,
    machine,
    plane,
    reconcile_cluster,
    secret,
    status_after,
    status_condition,
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


PREVIOUSLY_CONNECTED = {"conditions": [condition("RemoteConnectionProbe", "True", "ProbeSucceeded")]}
NOT_YET = ("False", "ProbeFailed", "Remote connection not established yet")
CONNECTED = ("True", "ProbeSucceeded", "")


@pytest.mark.parametrize(
    ("status", "credentials", "connection", "expected"),
    [
        pytest.param({}, False, None, NOT_YET, id="no kubeconfig"),
        pytest.param(PREVIOUSLY_CONNECTED, False, None, NOT_YET, id="kubeconfig was deleted"),
        pytest.param({}, True, None, NOT_YET, id="not tried yet"),
        pytest.param(PREVIOUSLY_CONNECTED, True, None, CONNECTED, id="not tried since a restart: condition is kept"),
        pytest.param({}, True, ConnectionStatus(ago(20), None, "refused"), NOT_YET, id="tried for a short while"),
        pytest.param(
            {},
            True,
            ConnectionStatus(ago(50), None, "refused"),
            ("False", "ProbeFailed", "Remote connection probe failed"),
            id="never reached",
        ),
        pytest.param({}, True, ConnectionStatus(ago(600), ago(300)), CONNECTED, id="reached, no failure since"),
        pytest.param({}, True, ConnectionStatus(ago(600), ago(49), "timeout"), CONNECTED, id="lost less than 50 s ago"),
        pytest.param(
            PREVIOUSLY_CONNECTED,
            True,
            ConnectionStatus(ago(600), ago(50), "timeout"),
            ("False", "ProbeFailed", "Remote connection probe failed, probe last succeeded at 2026-01-01T11:59:10Z"),
            id="lost",
        ),
    ],
)
def test_remote_connection_probe(
    status: Object, credentials: bool, connection: ConnectionStatus | None, expected: tuple[str, str, str]
) -> None:
    secrets = [secret("c-kubeconfig")] if credentials else []
    after = status_after(
        cluster(status=status), *DEFINITIONS, infra(PROVISIONED), plane(), *secrets, connection=connection
    )
    assert status_condition(after, "RemoteConnectionProbe") == expected


CONNECT = (Connect("ns/c", credential="77"),)


@pytest.mark.parametrize(
    ("cluster_object", "objects", "expected"),
    [
        pytest.param(cluster(), [infra(), secret("c-kubeconfig")], (), id="no infrastructure yet"),
        pytest.param(cluster(), [infra(PROVISIONED)], (), id="no kubeconfig yet"),
        pytest.param(cluster(), [infra(PROVISIONED), secret("c-kubeconfig")], CONNECT, id="both"),
        pytest.param(cluster(paused=True), [infra(PROVISIONED), secret("c-kubeconfig")], CONNECT, id="paused"),
        pytest.param(
            cluster(metadata=DELETING, status={"initialization": FULLY_INITIALIZED}),
            [machine("w"), secret("c-kubeconfig")],
            CONNECT,
            id="being deleted",
        ),
    ],
)
def test_when_the_cluster_is_connected(
    cluster_object: Object, objects: list[Object], expected: tuple[Connect, ...]
) -> None:
    assert reconcile_cluster(cluster_object, *DEFINITIONS, *objects).observe == expected


@pytest.mark.parametrize(
    ("connection", "wake_at"),
    [
        (ConnectionStatus(ago(600), ago(300)), None),
        (ConnectionStatus(ago(600), ago(20), "timeout"), NOW + timedelta(seconds=30)),
        (ConnectionStatus(ago(10), None, "refused"), NOW + timedelta(seconds=40)),
        (ConnectionStatus(ago(600), ago(300), "timeout"), None),
    ],
)
def test_lost_connection_is_rechecked_when_its_grace_period_ends(
    connection: ConnectionStatus, wake_at: datetime | None
) -> None:
    objects = [cluster(), *DEFINITIONS, infra(PROVISIONED), plane(), secret("c-kubeconfig")]
    assert reconcile_cluster(*objects, connection=connection).wake_at == wake_at
