"""Columns and rows of built-in kinds, as recorded from a real kube-apiserver 1.36.3."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from herder.engine.apiserver.builtin import resources
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.apiserver.tables import render
from herder.engine.meta.kinds import GroupResource

PRINTED: list[dict[str, Any]] = msgspec.json.decode((Path(__file__).parent / "real_tables.json").read_bytes())


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(resources())


@pytest.mark.parametrize("printed", PRINTED, ids=[f"{e['kind']}-{e['object']['metadata']['name']}" for e in PRINTED])
def test_a_row_matches_kube_apiserver(registry: Registry, printed: dict[str, Any]) -> None:
    resource = registry.get(GroupResource(printed["group"], printed["plural"]))
    if resource is None:
        pytest.skip("not served")
    now = datetime.fromisoformat(printed["now"])
    table = render(resource, printed["version"], [printed["object"]], now=now)
    columns = [[c["name"], c["type"], c["format"], c["priority"]] for c in table["columnDefinitions"]]
    assert columns == printed["columns"]
    assert table["rows"][0]["cells"] == printed["cells"]
