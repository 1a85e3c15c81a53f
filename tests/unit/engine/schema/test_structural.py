"""Schemas are rejected with kube-apiserver's messages, and the schemas of Cluster API are accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from herder.engine.schema import check_structural, compile_schema, unrecognized_formats
from tests.support.peers import peer
from tests.unit.engine.schema.cases import RULE_SCHEMAS, SCHEMAS, obj
from tests.unit.engine.schema.real_server import RECORDED

ANSWERS = json.loads(RECORDED.read_text())
ALL = {**SCHEMAS, **RULE_SCHEMAS}
PATH = "spec.validation.openAPIV3Schema"


@pytest.mark.parametrize("name", ALL)
def test_a_schema_is_rejected_as_by_kube_apiserver(name: str) -> None:
    errors = check_structural(ALL[name], PATH)
    assert sorted([error.kind, error.field, error.body] for error in errors) == ANSWERS["schemas"][name]


def test_with_a_status_subresource_few_fields_are_allowed_at_the_root() -> None:
    errors = check_structural(obj({"status": obj({})}, maxProperties=5), PATH, status_subresource=True)
    assert [error.field for error in errors] == [PATH]
    assert "fields are allowed at the root of the schema if the status subresource is enabled" in errors[0].body


def cluster_api_definitions() -> list[Path]:
    return sorted((peer("capi-core").parent / "config" / "crd" / "bases").glob("*.yaml"))


def test_the_schemas_of_cluster_api_are_accepted() -> None:
    checked = 0
    for path in cluster_api_definitions():
        definition = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        for version in definition["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            assert check_structural(schema, PATH) == [], (path.name, version["name"])
            compile_schema(schema).validate({"apiVersion": "x/v1", "kind": "X", "metadata": {}})
            checked += 1
    assert checked > 20


def test_unrecognized_formats_are_reported() -> None:
    schema = obj({
        "a": {"type": "string", "format": "nonsense"}, "b": {"type": "string", "format": "date-time"},
        "c": {"type": "integer", "format": "int8"}, "d": {"type": "array", "items": {"type": "object", "format": "x"}},
    })  # fmt: skip
    assert unrecognized_formats(schema) == ["nonsense", "int8", "x"]
