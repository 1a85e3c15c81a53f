import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.engine.patch.fieldpath import fieldset
from herder.engine.patch.fieldpath.fieldset import (
    FieldSet,
    InvalidFieldSet,
    Path,
    from_fields_v1,
    from_paths,
    path_text,
)
from herder.engine.patch.fieldpath.path_element import canonical, key_element

ELEMENTS = st.sampled_from(["f:a", "f:b", "f:é", 'k:{"n":"x"}', 'k:{"n":"y"}', "v:1", "v:2", "v:10", 'v:"1"', "i:0"])
PATHS = st.lists(ELEMENTS, min_size=1, max_size=3).map(tuple)
PATH_SETS = st.frozensets(PATHS, max_size=8)


def members(fields: FieldSet) -> set[Path]:
    return set(fieldset.paths(fields))


def is_sound(fields: FieldSet) -> bool:
    """Return whether the set is canonical: a round trip through the wire format keeps it, including the order."""
    return json.dumps(from_fields_v1(fields)) == json.dumps(fields)


@given(PATH_SETS, PATH_SETS)
def test_sets_behave_like_sets_of_paths(left: frozenset[Path], right: frozenset[Path]) -> None:
    ours, theirs = from_paths(left), from_paths(right)
    assert members(ours) == left
    for operation, expected in [
        (fieldset.union, left | right),
        (fieldset.intersection, left & right),
        (fieldset.difference, left - right),
        (fieldset.recursive_difference, {p for p in left if not any(p[: len(q)] == q for q in right)}),
    ]:
        result = operation(ours, theirs)
        assert members(result) == expected, operation
        assert is_sound(result), operation
    assert (members(ours), members(theirs)) == (left, right)


@given(PATH_SETS, PATHS)
def test_membership(paths: frozenset[Path], path: Path) -> None:
    assert fieldset.contains(from_paths(paths), path) == (path in paths)


@given(PATH_SETS)
def test_leaves_are_the_members_without_members_below(paths: frozenset[Path]) -> None:
    leaves = {p for p in paths if not any(q != p and q[: len(p)] == p for q in paths)}
    assert members(fieldset.leaves(from_paths(paths))) == leaves


def test_elements_are_sorted_by_type_and_value() -> None:
    written = {
        "i:0": {},
        "v:true": {},
        'v:"a"': {},
        "v:10": {},
        "v:2": {},
        'k:{"p":10}': {},
        'k:{"p":9}': {},
        "f:z": {},
    }
    assert list(from_fields_v1(written)) == [
        "f:z", 'k:{"p":9}', 'k:{"p":10}', "v:2", "v:10", 'v:"a"', "v:true", "i:0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        ('k:{"b": 1, "a":"x"}', 'k:{"a":"x","b":1}'),
        ("v:1.0", "v:1"),
        ('v:"<"', 'v:"\\u003c"'),
        ('v:"\\u00e9"', 'v:"é"'),
        ("i:007", "i:7"),
    ],
)
def test_each_element_has_one_canonical_form(written: str, spelled: str) -> None:
    assert canonical(written) == spelled


def test_unknown_element_types_are_dropped() -> None:
    assert from_fields_v1({"f:a": {"x:later": {}}, "y:z": {}, ".": {}}) == {"f:a": {}}


@pytest.mark.parametrize("bad", [{"f": {}}, {"fa": {}}, {"f:a": 1}, {"v:{": {}}, {"k:[]": {}}, {"i:x": {}}, "text", 7])
def test_malformed_sets_are_rejected(bad: object) -> None:
    with pytest.raises(InvalidFieldSet):
        from_fields_v1(bad)


def test_paths_are_printed_as_by_kube_apiserver() -> None:
    port = key_element([("port", 80), ("protocol", "TCP")])
    assert path_text(("f:spec", "f:ports", port, "f:name")) == '.spec.ports[port=80,protocol="TCP"].name'
    assert path_text(("f:metadata", "f:finalizers", 'v:"a"')) == '.metadata.finalizers[="a"]'
    assert path_text(("f:list", "i:3")) == ".list[3]"
