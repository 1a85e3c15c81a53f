"""Events of a provisioning Cluster: connection, readiness, deletion and errors."""

from __future__ import annotations

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.controllers.provisioning.cluster.events import condition_events
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition, new_object


def events(before: list[Object], after: list[Object]) -> list[tuple[str, str, str]]:
    cluster = new_object(PROVISIONING_CLUSTER, "meadow", "fleet-default", status={"conditions": before})
    return [(each.type, each.reason, each.message) for each in condition_events(cluster, after)]


PROBLEM = "spec.kubernetesVersion: required"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("Connected", "False", "", ""), ("Connected", "True", "", ""), ("Normal", "AgentConnected")),
        (("Connected", "True", "", ""), ("Connected", "False", "", "lost"), ("Warning", "AgentDisconnected")),
        (("Connected", "", "", ""), ("Connected", "False", "", "never"), None),
        (("Ready", "Unknown", "", "waiting"), ("Ready", "True", "", ""), ("Normal", "Ready")),
        (("Ready", "True", "", ""), ("Ready", "Unknown", "Waiting", "draining"), ("Normal", "NotReady")),
        (("Ready", "Unknown", "", "waiting"), ("Ready", "Unknown", "", "still waiting"), None),
        (("RKECluster", "True", "", ""), ("RKECluster", "False", "Error", PROBLEM), ("Warning", "RKEClusterFailed")),
        (("RKECluster", "False", "Error", PROBLEM), ("RKECluster", "False", "Error", PROBLEM), None),
        (("Updated", "True", "", ""), ("Updated", "False", "Error", PROBLEM), None),  # that of RKECluster is enough
        (("Removed", "", "", ""), ("Removed", "Unknown", "", "waiting for machines"), ("Normal", "Deleting")),
        (("Removed", "Unknown", "", "a"), ("Removed", "Unknown", "", "b"), None),
    ],
)
def test_transitions_are_events(
    before: tuple[str, ...], after: tuple[str, ...], expected: tuple[str, str] | None
) -> None:
    def listed(fields: tuple[str, ...]) -> list[Object]:
        type_, status, reason, message = fields
        return [new_condition(type_, status, reason, message=message)] if status else []

    found = events(listed(before), listed(after))
    assert [each[:2] for each in found] == ([expected] if expected else [])
