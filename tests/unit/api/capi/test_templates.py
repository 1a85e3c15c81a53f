"""Which changes of a template need new Machines."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.templates import differences, needs_rollout


def template(metadata: Any = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": metadata or {}, "spec": {"clusterName": "c", **spec}}


def ref(kind: str, name: str, group: str = "g") -> dict[str, str]:
    return {"apiGroup": group, "kind": kind, "name": name}


@pytest.mark.parametrize(
    "changed",
    [
        template(metadata={"labels": {"a": "b"}}),
        template(minReadySeconds=5),
        template(deletion={"nodeDrainTimeoutSeconds": 5}),
        template(readinessGates=[{"conditionType": "X"}]),
        template(taints=[{"key": "k"}]),
        template(version=""),
        template(bootstrap={}),
    ],
)
def test_in_place_changes_need_no_rollout(changed: dict[str, Any]) -> None:
    assert not needs_rollout(template(), changed)


@pytest.mark.parametrize(
    ("current", "desired", "expected"),
    [
        (template(version="v1"), template(version="v2"), ["Version v1, v2 required"]),
        (template(), template(version="v2"), ["Version , v2 required"]),
        (template(failureDomain="a"), template(failureDomain="b"), ["Failure domain a, b required"]),
        (
            template(infrastructureRef=ref("HutTemplate", "a")),
            template(infrastructureRef=ref("HutTemplate", "b")),
            ["Hut is not up-to-date"],
        ),
        (
            template(infrastructureRef=ref("HutTemplate", "a")),
            template(infrastructureRef=ref("HutTemplate", "a", "other")),
            ["Hut is not up-to-date"],
        ),
        (
            template(bootstrap={"configRef": ref("PlanTemplate", "a")}),
            template(bootstrap={"configRef": ref("PlanTemplate", "b")}),
            ["Plan is not up-to-date"],
        ),
        (
            template(bootstrap={"configRef": ref("PlanTemplate", "a")}),
            template(bootstrap={"dataSecretName": "s"}),
            ["Plan is not up-to-date"],
        ),
        (
            template(bootstrap={"dataSecretName": "a"}),
            template(bootstrap={"dataSecretName": "b"}),
            ["spec.bootstrap.dataSecretName a, b required"],
        ),
    ],
)
def test_differences_that_need_a_rollout_are_described(
    current: dict[str, Any], desired: dict[str, Any], expected: list[str]
) -> None:
    assert differences(current, desired) == expected
