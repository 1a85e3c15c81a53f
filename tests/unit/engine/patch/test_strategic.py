import copy
from typing import Any

import pytest

from herder.engine.meta.errors import StatusError
from herder.engine.patch import PatchSchema, StrategicPatchError, apply_strategic_patch

BY_NAME = {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"}
DEFINITIONS: dict[str, Any] = {
    "Item": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "value": {"type": "string"},
            "args": {"type": "array", "items": {"type": "string"}},
            "inner": {"type": "array", "items": {"$ref": "#/d/Item"}, **BY_NAME},
        },
    },
}
SCHEMA = PatchSchema(
    {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"allOf": [{"$ref": "#/d/Item"}]}, **BY_NAME},
            "words": {"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"},
            "atomic": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "one": {"$ref": "#/d/Item", "x-kubernetes-patch-strategy": "retainKeys"},
        },
    },
    DEFINITIONS,
)


def patched(doc: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    kept = copy.deepcopy((doc, patch))
    result = apply_strategic_patch(doc, patch, SCHEMA)
    assert (doc, patch) == kept
    return result


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def test_nested_lists_merge_by_their_key() -> None:
    doc = {"items": [{"name": "a", "value": "1", "inner": named("x")}, {"name": "b"}]}
    patch = {"items": [{"name": "a", "value": "2", "inner": named("y")}, {"name": "c"}]}
    assert patched(doc, patch)["items"] == [
        {"name": "a", "value": "2", "inner": named("y", "x")},
        {"name": "c"},
        {"name": "b"},
    ]


def test_a_delete_directive_removes_items() -> None:
    assert patched({"items": named("a", "b")}, {"items": [{"name": "a", "$patch": "delete"}]}) == {"items": named("b")}


def test_a_replace_directive_replaces_a_list() -> None:
    assert patched({"items": named("a")}, {"items": [{"$patch": "replace"}, {"name": "z"}]}) == {"items": named("z")}


def test_a_directive_replaces_or_empties_a_map() -> None:
    doc = {"labels": {"a": "1"}}
    assert patched(doc, {"labels": {"$patch": "replace", "b": "2"}}) == {"labels": {"b": "2"}}
    assert patched(doc, {"labels": {"$patch": "delete"}}) == {"labels": {}}


def test_primitives_merge_and_are_deleted_by_a_parallel_list() -> None:
    assert patched({"words": ["a", "b"]}, {"words": ["b", "c"]})["words"] == ["a", "b", "c"]
    assert patched({"words": ["a", "b"]}, {"$deleteFromPrimitiveList/words": ["a"]})["words"] == ["b"]


def test_atomic_lists_are_replaced() -> None:
    assert patched({"atomic": ["a"]}, {"atomic": ["b"]})["atomic"] == ["b"]


def test_set_element_order_sorts_a_list() -> None:
    doc = {"items": named("a", "b", "c", "d")}
    patch = {"items": named("e"), "$setElementOrder/items": named("d", "e", "b")}
    assert [item["name"] for item in patched(doc, patch)["items"]] == ["a", "c", "d", "e", "b"]


def test_retain_keys_clears_the_other_keys() -> None:
    doc = {"one": {"name": "a", "value": "v", "args": ["x"]}}
    patch = {"one": {"$retainKeys": ["name", "args"], "name": "b"}}
    assert patched(doc, patch)["one"] == {"name": "b", "args": ["x"]}


def test_nulls_delete_existing_fields_and_are_dropped_otherwise() -> None:
    doc = {"labels": {"a": "1", "b": "2"}}
    patch = {"labels": {"a": None, "c": None}, "one": {"value": None, "name": "n"}}
    assert patched(doc, patch) == {"labels": {"b": "2"}, "one": {"name": "n"}}


@pytest.mark.parametrize(
    ("patch", "code", "message"),
    [
        ({"items": [{"value": "x"}]}, 400, "map: map[value:x] does not contain declared merge key: name"),
        ({"items": ["x"]}, 400, "list element types are not identical: [[map[name:a]] [x]]"),
        ({"labels": {"$patch": "x"}}, 400, "unknown patch type: x in map: map[$patch:x]"),
        ({"$setElementOrder/": [1]}, 400, 'unable to find api field ""'),
        ({"$setElementOrder": [1]}, 400, "invalid patch format of setElementOrder list"),
        ({"$deleteFromPrimitiveList": [1]}, 400, "invalid patch format of primitive list"),
        ({"one": {"$retainKeys": [], "name": "x"}}, 400, "invalid patch format of retainKeys"),
    ],
)
def test_malformed_patches_are_rejected(patch: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(StrategicPatchError) as raised:
        apply_strategic_patch({"items": named("a"), "labels": {"a": "b"}, "one": {"name": "n"}}, patch, SCHEMA)
    assert (raised.value.code, raised.value.message) == (code, message)


def test_a_merge_key_that_is_not_a_scalar_does_not_crash() -> None:
    items = [{"name": {"a": 1}}, {"name": ["x"]}]
    result = apply_strategic_patch({"items": named("a")}, {"items": items}, SCHEMA)
    assert len(result["items"]) == 3


def test_lists_of_lists_cannot_be_merged() -> None:
    with pytest.raises(StatusError) as raised:
        apply_strategic_patch({"words": [["a"]]}, {"words": [["b"]]}, SCHEMA)
    assert raised.value.code == 422
