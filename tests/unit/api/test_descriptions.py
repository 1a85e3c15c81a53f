"""Every field of Herder's kinds has a description, which `kubectl explain` shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from herder.api.crds import SETTING_CRD
from herder.api.identity.crds import CRDS as IDENTITY_CRDS
from herder.api.machines.crds import CRDS as MACHINE_CRDS
from herder.api.machines.crds import driver_definitions
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.engine.meta.kinds import Object

DRIVER_CRDS = driver_definitions("shed", {"size": {"type": "string"}})
ALL = (*MANAGEMENT_CRDS, *RKE_CRDS, *MACHINE_CRDS, *DRIVER_CRDS, *IDENTITY_CRDS, SETTING_CRD)


def fields(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """All properties with their paths; [] and {} stand for items and values."""
    for name, part in (schema.get("properties") or {}).items():
        yield f"{path}.{name}", part
        yield from fields(part, f"{path}.{name}")
    for part, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(part), dict):
            yield from fields(schema[part], path + suffix)


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition["metadata"]["name"])
def test_every_field_is_described_by_a_sentence(definition: Object) -> None:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["description"]
    found = {path: str(part.get("description") or "") for path, part in fields(schema)}
    del found[".metadata"]  # described by the API server
    assert [path for path, text in found.items() if not text] == []
    assert [path for path, text in found.items() if not text[0].isupper() or not text.endswith(".")] == []
