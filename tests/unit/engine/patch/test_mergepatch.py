import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.engine.meta.errors import BadRequest
from herder.engine.patch import apply_merge_patch


@pytest.mark.parametrize(
    ("doc", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_rfc(doc: dict, patch: dict, result: dict) -> None:
    assert apply_merge_patch(doc, patch) == result


def test_nulls_in_new_lists_are_removed_from_objects_and_kept_as_items() -> None:
    assert apply_merge_patch({}, {"a": [None, {"b": None, "c": 1}]}) == {"a": [None, {"c": 1}]}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (None, "Invalid JSON Patch"),
        ([1], "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("x", "error decoding patch: json: cannot unmarshal string into Go value of type map[string]interface {}"),
    ],
)
def test_a_patch_that_is_not_an_object_is_a_bad_request(patch: object, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        apply_merge_patch({}, patch)
    assert raised.value.message == message


def merged_by_the_rfc(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged_by_the_rfc(result.get(key), value)
    return result


MAPS = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


@given(MAPS, MAPS)
def test_agrees_with_the_algorithm_of_the_rfc(doc: dict[str, Any], patch: dict[str, Any]) -> None:
    kept = copy.deepcopy((doc, patch))
    assert apply_merge_patch(doc, patch) == merged_by_the_rfc(doc, patch)
    assert (doc, patch) == kept


def test_the_result_shares_nothing_with_its_inputs() -> None:
    doc: dict[str, Any] = {"a": {"b": 1}}
    patch: dict[str, Any] = {"c": {"d": 2}}
    result = apply_merge_patch(doc, patch)
    result["a"]["b"] = result["c"]["d"] = 3
    assert (doc, patch) == ({"a": {"b": 1}}, {"c": {"d": 2}})
