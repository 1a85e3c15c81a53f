from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conformance.objects import custom, define, definition
from tests.support.api import Api
from tests.support.engines import unique
from tests.support.manager.admission_servers import admission_server


@dataclass(frozen=True)
class Widgets:
    """A custom resource that many tests share."""

    group: str

    @property
    def resource(self) -> str:
        return f"{self.group}/v1/widgets"

    def named(self, name: str, spec: Any = None, **more: Any) -> dict[str, Any]:
        return custom(self.group, "Widget", name, spec, **more)


@pytest.fixture(scope="session")
async def widgets(admin: Api) -> Widgets:
    group = f"{unique('suite')}.example.com"
    replicas = {"type": "integer", "minimum": 0, "maximum": 100, "default": 1}
    part = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "color": {"type": "string"}},
    }
    spec = {
        "type": "object",
        "properties": {
            "replicas": replicas,
            "color": {"type": "string", "enum": ["red", "green", "blue"]},
            "size": {"x-kubernetes-int-or-string": True},
            "parts": {
                "type": "array",
                "items": part,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "steps": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "notes": {"type": "object", "additionalProperties": {"type": "string"}},
            "when": {"type": "string", "format": "date-time"},
        },
    }
    status = {
        "type": "object",
        "properties": {
            "replicas": {"type": "integer"},
            "selector": {"type": "string"},
            "phase": {"type": "string"},
        },
    }
    crd = definition(
        group,
        "widgets",
        "Widget",
        {"type": "object", "properties": {"spec": spec, "status": status}},
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        selectableFields=[{"jsonPath": ".spec.color"}],
        additionalPrinterColumns=[
            {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
            {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "description": "how many"},
            {"name": "Size", "type": "string", "jsonPath": ".spec.size", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    )
    crd["spec"]["names"] |= {"shortNames": [unique("wd")], "categories": ["all"]}
    await define(admin, crd)
    return Widgets(group)


@pytest.fixture(scope="session", params=["embedded", "real"])
async def admission_admin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Api]:
    """The administrator of a server with Herder's admission rules."""
    async with admission_server(request.param, tmp_path_factory.mktemp(request.param)) as api:
        yield api
