"""The manifest of the cluster agent: customization of its Deployment."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.management.manifest import Agent, manifest
from herder.engine.meta.kinds import Object

AGENT: dict[str, Any] = {"server_url": "https://herder.example", "token": "t", "ca_checksum": "", "image": "agent:1"}


def pod(**options: Any) -> Object:
    (deployment,) = (each for each in manifest(Agent(**AGENT, **options)) if each["kind"] == "Deployment")
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def test_the_customization_of_the_user_is_applied() -> None:
    toleration = {"key": "dedicated", "operator": "Exists"}
    affinity = {"nodeAffinity": {}}
    resources = {"limits": {"memory": "1Gi"}}
    customization = {
        "appendTolerations": [toleration],
        "overrideAffinity": affinity,
        "overrideResourceRequirements": resources,
    }
    plain, customized = pod(), pod(customization=customization)
    assert customized["tolerations"] == [*plain["tolerations"], toleration]
    assert customized["affinity"] == affinity
    assert customized["containers"] == [plain["containers"][0] | {"resources": resources}]


@pytest.mark.parametrize("customization", [{}, [1], "x", {"appendTolerations": 1, "overrideAffinity": [2]}])
def test_anything_else_is_ignored(customization: Any) -> None:
    """Users can write anything into a management Cluster, which has no schema."""
    assert pod(customization=customization) == pod()
