import contextlib
import copy

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.engine.patch import (
    MAX_OPERATIONS,
    JsonPatchError,
    JsonPatchTestFailed,
    JsonPatchTooLarge,
    JsonPatchUndecodable,
    apply_json_patch,
)
from herder.engine.patch.patches import json_patch as ours

DOC = {"a": {"b": [1, 2, 3], "c": None, "d~e/f": "x"}, "n": 1}


@pytest.mark.parametrize(
    ("op", "result"),
    [
        ({"op": "add", "path": "/a/b/1", "value": 9}, [1, 9, 2, 3]),
        ({"op": "add", "path": "/a/b/-", "value": 9}, [1, 2, 3, 9]),
        ({"op": "add", "path": "/a/b/-1", "value": 9}, [1, 2, 3, 9]),
        ({"op": "remove", "path": "/a/b/0"}, [2, 3]),
        ({"op": "remove", "path": "/a/b/-1"}, [1, 2]),
        ({"op": "replace", "path": "/a/b/2", "value": 9}, [1, 2, 9]),
        ({"op": "move", "from": "/a/b/0", "path": "/a/b/2"}, [2, 3, 1]),
        ({"op": "copy", "from": "/a/b/0", "path": "/a/b/-"}, [1, 2, 3, 1]),
    ],
)
def test_operations_on_a_list(op: dict, result: list) -> None:
    assert apply_json_patch(DOC, [op])["a"]["b"] == result


def test_a_path_is_unescaped() -> None:
    assert apply_json_patch(DOC, [{"op": "remove", "path": "/a/d~0e~1f"}])["a"] == {"b": [1, 2, 3], "c": None}


def test_replacing_an_absent_key_adds_it() -> None:
    assert apply_json_patch(DOC, [{"op": "replace", "path": "/new", "value": 1}])["new"] == 1


def test_the_whole_document_can_be_replaced_and_tested() -> None:
    ops = [{"op": "replace", "path": "", "value": {"z": 1}}, {"op": "test", "path": "", "value": {"z": 1}}]
    assert apply_json_patch(DOC, ops) == {"z": 1}


def test_null_equals_an_absent_key() -> None:
    apply_json_patch(DOC, [{"op": "test", "path": "/nothing", "value": None}, {"op": "test", "path": "/a/c"}])


NOT_FOUND = "does not apply: doc is missing"
BAD_INDEX = "Unable to access invalid index"


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ({"op": "add", "path": "/x/y", "value": 1}, f'add operation {NOT_FOUND} path: "/x/y": missing value'),
        ({"op": "add", "path": "", "value": 1}, f'add operation {NOT_FOUND} path: "": missing value'),
        ({"op": "add", "value": 1}, "add operation failed to decode path: missing value"),
        (
            {"op": "add", "path": "/a/b/9", "value": 1},
            f"error in add for path: '/a/b/9': {BAD_INDEX}: 9: invalid index referenced",
        ),
        (
            {"op": "add", "path": "/a/b/x", "value": 1},
            "error in add for path: '/a/b/x': value was not a proper array index: 'x': "
            'strconv.Atoi: parsing "x": invalid syntax',
        ),
        (
            {"op": "remove", "path": "/x"},
            "error in remove for path: '/x': Unable to remove nonexistent key: x: missing value",
        ),
        (
            {"op": "remove", "path": "/a/b/3"},
            f"error in remove for path: '/a/b/3': {BAD_INDEX}: 3: invalid index referenced",
        ),
        ({"op": "remove", "path": "/x/y"}, f'remove operation {NOT_FOUND} path: "/x/y": missing value'),
        ({"op": "replace", "path": "/x/y", "value": 1}, f"replace operation {NOT_FOUND} path: /x/y: missing value"),
        ({"op": "replace", "path": "/a/b/7", "value": 1}, f"replace operation {NOT_FOUND} key: /a/b/7: missing value"),
        (
            {"op": "replace", "value": 1},
            "replace operation failed to decode path: operation missing path field: missing value",
        ),
        (
            {"op": "move", "path": "/x"},
            "move operation failed to decode from: operation, missing from field: missing value",
        ),
        (
            {"op": "move", "from": "/q", "path": "/x"},
            "error in move for path: 'q': Unable to remove nonexistent key: q: missing value",
        ),
        ({"op": "copy", "from": "/q/r", "path": "/x"}, f"copy operation {NOT_FOUND} from path: /q/r: missing value"),
        (
            {"op": "copy", "from": "/n", "path": "/q/r"},
            f"copy operation {NOT_FOUND} destination path: /q/r: missing value",
        ),
        (
            {"op": "test", "path": "/a/b/5", "value": 1},
            f"error in test for path: '/a/b/5': {BAD_INDEX}: 5: invalid index referenced",
        ),
        (
            {"op": "test", "path": "/n/x", "value": 1},
            "test operation does not apply: is missing path: /n/x: missing value",
        ),
        ({"op": "dance", "path": "/n"}, "Unexpected kind: dance"),
        ({"path": "/n"}, "Unexpected kind: unknown"),
    ],
)
def test_inapplicable_operations_are_rejected_with_the_upstream_message(op: dict, why: str) -> None:
    with pytest.raises(JsonPatchError) as raised:
        apply_json_patch(DOC, [op])
    assert raised.value.why == why
    assert (raised.value.code, raised.value.reason) == (422, "Invalid")
    assert raised.value.message == "the server rejected our request due to an error in our request"


@pytest.mark.parametrize("expected", [2, 1.0, True, "1", None])
def test_a_failed_test_has_its_own_error(expected: object) -> None:
    with pytest.raises(JsonPatchTestFailed) as raised:
        apply_json_patch(DOC, [{"op": "test", "path": "/n", "value": expected}])
    assert raised.value.why == "testing value /n failed: test failed"
    assert raised.value.code == 422


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"op": "add"}, "cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        (["x"], "cannot unmarshal string into Go value of type handlers.jsonPatchOp"),
        ([{"op": 1}], "cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
        ([{"op": "add", "path": True}], "cannot unmarshal bool into Go struct field jsonPatchOp.path of type string"),
    ],
)
def test_a_malformed_patch_is_a_bad_request(ops: object, message: str) -> None:
    with pytest.raises(JsonPatchUndecodable) as raised:
        apply_json_patch(DOC, ops)
    assert raised.value.message == f"error decoding patch: json: {message}"
    assert raised.value.code == 400


def test_too_many_operations_are_rejected() -> None:
    op = {"op": "test", "path": "/n", "value": 1}
    apply_json_patch(DOC, [op] * MAX_OPERATIONS)
    with pytest.raises(JsonPatchTooLarge, match="maximum operations in a JSON patch is 10000, got 10001") as raised:
        apply_json_patch(DOC, [op] * (MAX_OPERATIONS + 1))
    assert raised.value.code == 413


def test_copy_operations_have_a_size_limit() -> None:
    ops = [{"op": "copy", "from": "/a", "path": "/a/b/-"}] * 40
    with pytest.raises(JsonPatchError) as raised:
        apply_json_patch(DOC, ops)
    assert "exceeding the limit 3145728" in raised.value.why


VALUES = st.recursive(
    st.none() | st.integers(-3, 3) | st.sampled_from(["", "x", "~"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "~/"]), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "~/"]), VALUES, max_size=3)


@given(DOCUMENTS, DOCUMENTS)
def test_agrees_with_another_implementation(before: dict, after: dict) -> None:
    patch = list(jsonpatch.make_patch(before, after))
    kept = copy.deepcopy((before, patch))
    assert ours.same_json(apply_json_patch(before, patch), after)
    assert (before, patch) == kept


PATHS = ["", "/", "/a", "/a/b", "/a/0", "/b/-", "/a/~0~1", "a/b", "//", "/a/-9", "/a/99999999999999999999"]
OPERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"]),
        "path": st.sampled_from(PATHS),
        "from": st.sampled_from(["", "/", "/a", "/b", "/a/0"]),
        "value": VALUES,
    },
)


@given(DOCUMENTS, st.lists(OPERATIONS, max_size=4))
def test_no_patch_modifies_its_input_document(doc: dict, ops: list) -> None:
    kept = copy.deepcopy(doc)
    with contextlib.suppress(JsonPatchError):
        apply_json_patch(doc, ops)
    assert doc == kept
