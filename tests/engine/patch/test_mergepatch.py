import copy
from typing import Any

import pytest
from hypothesis import given

from herder.engine.meta.errors import BadRequest
from herder.engine.patch import apply_merge_patch
from tests.engine.patch.test_jsonpatch import DOCUMENTS


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


def test_nulls_inside_new_lists_vanish_from_objects_but_not_from_the_list() -> None:
    assert apply_merge_patch({}, {"a": [None, {"b": None, "c": 1}]}) == {"a": [None, {"c": 1}]}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (None, "Invalid JSON Patch"),
        ([1], "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("x", "error decoding patch: json: cannot unmarshal string into Go value of type map[string]interface {}"),
    ],
)
def test_a_patch_that_is_no_object_is_a_bad_request(patch: object, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        apply_merge_patch({}, patch)
    assert raised.value.message == message


@given(DOCUMENTS, DOCUMENTS)
def test_merging_twice_is_merging_once(doc: dict[str, Any], patch: dict[str, Any]) -> None:
    kept = copy.deepcopy((doc, patch))
    once = apply_merge_patch(doc, patch)
    assert (doc, patch) == kept
    assert apply_merge_patch(once, patch) == once
    assert all(key not in once for key, value in patch.items() if value is None)
