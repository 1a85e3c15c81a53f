from typing import Any

import pytest

from herder.engine.patch.fieldpath.paths import owned_paths
from herder.engine.patch.typed.compare import compare
from herder.engine.patch.typed.items import extract_items
from herder.engine.patch.typed.list_items import TypedError
from herder.engine.patch.typed.types import DEDUCED, type_from_schema
from herder.engine.patch.typed.validate import check
from tests.unit.engine.patch.kinds import widget
from tests.unit.engine.patch.servers import WIDGET_TYPE

REF = {"$ref": "#/components/schemas/Meta"}
RECURSIVE: dict[str, Any] = {
    "Meta": {
        "type": "object",
        "properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}},
    },
    "Node": {"type": "object", "properties": {"child": {"$ref": "#/x/Node"}, "any": {}, "n": {"type": "integer"}}},
}
BUILTIN: dict[str, Any] = {
    "type": "object",
    "required": ["list"],
    "properties": {
        "metadata": {"allOf": [REF], "default": {}},
        "root": {"$ref": "#/x/Node", "default": {}},
        "whole": {"$ref": "#/x/Node", "x-kubernetes-map-type": "atomic"},
        "list": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "text": {"type": "string", "default": ""},
        "time": {"type": "string", "format": "date-time"},
    },
}


def test_definitions_are_looked_up_lazily() -> None:
    looked_up: list[str] = []

    def definition(name: str) -> dict[str, Any]:
        looked_up.append(name)
        found: dict[str, Any] = RECURSIVE[name]
        return found

    of = type_from_schema(BUILTIN, definition)
    assert looked_up == []
    check(of, {"text": "x"})
    assert looked_up == []
    check(of, {"root": {"child": {"child": {"n": 1}}}})
    assert looked_up == ["Node"]


def test_a_type_may_contain_itself() -> None:
    of = type_from_schema(BUILTIN, RECURSIVE)
    assert of.loose
    value = {"root": {"child": {"n": 1}}}
    assert owned_paths(of, value) == {"f:root": {"f:child": {"f:n": {}}}}


def test_a_reference_may_make_a_type_atomic() -> None:
    of = type_from_schema(BUILTIN, RECURSIVE)
    assert owned_paths(of, {"whole": {"child": {"n": 1}}}) == {"f:whole": {}}


def test_zero_values_of_a_struct_equal_missing_fields() -> None:
    of = type_from_schema(BUILTIN, RECURSIVE)
    found = compare(of, {}, {"root": {"n": 1}, "list": ["a"], "text": "", "time": None})
    assert found.changed == {"f:list": {'v:"a"': {}}, "f:root": {"f:n": {}}}
    assert found.removed == {}


def test_a_custom_resource_has_no_implicit_zero_values() -> None:
    found = compare(WIDGET_TYPE, {}, {"spec": {"struct": {"a": "x"}}})
    assert found.changed == {"f:spec": {".": {}, "f:struct": {".": {}, "f:a": {}}}}


def test_true_differs_from_one() -> None:
    assert compare(WIDGET_TYPE, {"spec": {"free": {"a": True}}}, {"spec": {"free": {"a": 1}}}).changed == {
        "f:spec": {"f:free": {"f:a": {}}}
    }
    assert compare(WIDGET_TYPE, {"spec": {"ratio": 1}}, {"spec": {"ratio": 1.0}}).changed == {}


def test_a_value_that_changes_its_type_is_compared_as_a_whole_and_in_parts() -> None:
    found = compare(DEDUCED, {"a": {"b": 1}}, {"a": 2})
    assert (found.changed, found.removed) == ({"f:a": {}}, {"f:a": {"f:b": {}}})
    found = compare(DEDUCED, {"a": 2}, {"a": {"b": 1}})
    assert found.changed == {"f:a": {".": {}, "f:b": {}}}


def test_duplicates_are_owned_without_their_fields() -> None:
    one, two = {"name": "a", "value": "1"}, {"name": "a", "value": "2"}
    found = compare(WIDGET_TYPE, {"spec": {"named": [one]}}, {"spec": {"named": [one, two]}})
    assert found.changed == {"f:spec": {"f:named": {'k:{"name":"a"}': {}}}}
    assert found.removed == {"f:spec": {"f:named": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:value": {}}}}}


def test_types_are_deduced_without_a_schema() -> None:
    value = {"spec": {"list": [1, {"a": 2}], "map": {"x": None}}, "metadata": {"labels": {"a": "b"}}}
    check(type_from_schema(None), value)
    assert owned_paths(DEDUCED, value) == {
        "f:metadata": {".": {}, "f:labels": {".": {}, "f:a": {}}},
        "f:spec": {".": {}, "f:list": {}, "f:map": {".": {}, "f:x": {}}},
    }


def test_every_type_error_is_reported() -> None:
    with pytest.raises(TypedError) as raised:
        check(WIDGET_TYPE, widget(replicas="x", ports=[{"port": 1, "note": 2}]))
    assert str(raised.value) == (
        "errors:\n"
        "  .spec.replicas: expected numeric (int or float), got string\n"
        '  .spec.ports[port=1,protocol="TCP"].note: expected string, got &value.valueUnstructured{Value:2}'
    )


def test_the_fields_of_a_manager_can_be_extracted() -> None:
    value = widget(replicas=1, title="t", named=[{"name": "a", "value": "v"}, {"name": "b"}])
    owned = {"f:spec": {"f:replicas": {}, "f:named": {'k:{"name":"a"}': {".": {}, "f:name": {}}}}}
    assert extract_items(WIDGET_TYPE, value, owned) == {"spec": {"replicas": 1, "named": [{"name": "a"}]}}
