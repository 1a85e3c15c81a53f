"""The connection to the workload cluster: when it is kept, and what its health is called."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from herder.api.capi.conditions import condition
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Connect
from herder.engine.runtime.view import ConnectionStatus
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.herd import (
    DEFINITIONS,
    GOING,
    PROVISIONED,
    UP,
    cluster,
    decide,
    infra,
    machine,
    plane,
    secret,
    status_after,
    told,
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


KNOWN = {"conditions": [condition("RemoteConnectionProbe", "True", "ProbeSucceeded")]}
NOT_YET = ("False", "ProbeFailed", "Remote connection not established yet")
REACHED = ("True", "ProbeSucceeded", "")


@pytest.mark.parametrize(
    ("status", "credentials", "link", "expected"),
    [
        pytest.param({}, False, None, NOT_YET, id="nothing to connect with"),
        pytest.param(KNOWN, False, None, NOT_YET, id="nor any more"),
        pytest.param({}, True, None, NOT_YET, id="not tried yet"),
        pytest.param(KNOWN, True, None, REACHED, id="not tried since a restart: what was known holds"),
        pytest.param({}, True, ConnectionStatus(ago(20), None, "refused"), NOT_YET, id="tried for a short while"),
        pytest.param(
            {},
            True,
            ConnectionStatus(ago(50), None, "refused"),
            ("False", "ProbeFailed", "Remote connection probe failed"),
            id="never reached",
        ),
        pytest.param({}, True, ConnectionStatus(ago(600), ago(300)), REACHED, id="reached, and quiet since"),
        pytest.param({}, True, ConnectionStatus(ago(600), ago(49), "timeout"), REACHED, id="lost a moment ago"),
        pytest.param(
            KNOWN,
            True,
            ConnectionStatus(ago(600), ago(50), "timeout"),
            ("False", "ProbeFailed", "Remote connection probe failed, probe last succeeded at 2026-01-01T11:59:10Z"),
            id="lost",
        ),
    ],
)
def test_remote_connection_probe(
    status: Object, credentials: bool, link: ConnectionStatus | None, expected: tuple[str, str, str]
) -> None:
    secrets = [secret("c-kubeconfig")] if credentials else []
    after = status_after(cluster(status=status), *DEFINITIONS, infra(PROVISIONED), plane(), *secrets, link=link)
    assert told(after, "RemoteConnectionProbe") == expected


CONNECT = (Connect("ns/c", credential="77"),)


@pytest.mark.parametrize(
    ("made", "objects", "kept"),
    [
        pytest.param(cluster(), [infra(), secret("c-kubeconfig")], (), id="no infrastructure yet"),
        pytest.param(cluster(), [infra(PROVISIONED)], (), id="no kubeconfig yet"),
        pytest.param(cluster(), [infra(PROVISIONED), secret("c-kubeconfig")], CONNECT, id="both"),
        pytest.param(cluster(paused=True), [infra(PROVISIONED), secret("c-kubeconfig")], CONNECT, id="paused"),
        pytest.param(
            cluster(meta=GOING, status={"initialization": UP}),
            [machine("w"), secret("c-kubeconfig")],
            CONNECT,
            id="going",
        ),
    ],
)
def test_when_the_connection_is_kept(made: Object, objects: list[Object], kept: tuple[Connect, ...]) -> None:
    assert decide(made, *DEFINITIONS, *objects).observe == kept


@pytest.mark.parametrize(
    ("link", "wakes"),
    [
        (ConnectionStatus(ago(600), ago(300)), None),
        (ConnectionStatus(ago(600), ago(20), "timeout"), NOW + timedelta(seconds=30)),
        (ConnectionStatus(ago(10), None, "refused"), NOW + timedelta(seconds=40)),
        (ConnectionStatus(ago(600), ago(300), "timeout"), None),
    ],
)
def test_a_lost_connection_is_looked_at_again_when_its_grace_ends(
    link: ConnectionStatus, wakes: datetime | None
) -> None:
    objects = [cluster(), *DEFINITIONS, infra(PROVISIONED), plane(), secret("c-kubeconfig")]
    assert decide(*objects, link=link).wake_at == wakes
