"""JSONPath of printer columns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.engine.apiserver.tables.jsonpath import JsonPath, JsonPathError

OBJ: dict[str, Any] = {
    "metadata": {"name": "a", "annotations": {"example.com/key": "annotated", "plain": "x"}},
    "spec": {"size": 3, "tags": ["x", "y", "z"], "none": None, "on": True},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "weight": 5},
            {"type": "Synced", "status": "False", "weight": 7, "why": "because"},
        ]
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".metadata.name", ["a"]),
        ("metadata.name", ["a"]),
        ("$.metadata.name", ["a"]),
        (".spec.size", [3]),
        (".spec.none", [None]),
        (".spec.missing.deeper", []),
        (".spec.size.deeper", []),
        (".spec.tags[0]", ["x"]),
        (".spec.tags[-1]", ["z"]),
        (".spec.tags[9]", []),
        (".spec.tags[*]", ["x", "y", "z"]),
        (".spec.tags[0:2]", ["x", "y"]),
        (".spec.tags[:]", ["x", "y", "z"]),
        (".spec.tags[::2]", ["x", "z"]),
        (".spec.tags[0,2]", ["x", "z"]),
        (r".metadata.annotations.example\.com/key", ["annotated"]),
        (".metadata.annotations['example.com/key']", ["annotated"]),
        ('.metadata.annotations["plain"]', ["x"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type=='Synced')].status", ["False"]),
        ('.status.conditions[?(@.type!="Ready")].type', ["Synced"]),
        (".status.conditions[?(@.weight>5)].type", ["Synced"]),
        (".status.conditions[?(@.weight<=5)].type", ["Ready"]),
        (".status.conditions[?(@.why)].type", ["Synced"]),
        ('.status.conditions[?(@.type=="[Ready]")].status', []),
        (".spec[?(@.x==1)]", []),
        ("..type", ["Ready", "Synced"]),
        (".spec.*", [3, ["x", "y", "z"], None, True]),
    ],
)
def test_paths_select_the_same_values_as_kubectl(path: str, found: list[Any]) -> None:
    values = JsonPath(path).find(OBJ)
    assert sorted(values, key=repr) == sorted(found, key=repr)


@pytest.mark.parametrize("path", [".spec.tags[", ".spec.tags[x]", ".a[?(@.b==c)]", ".spec.tags[]", "}"])
def test_invalid_paths_are_rejected_when_parsed(path: str) -> None:
    with pytest.raises(JsonPathError):
        JsonPath(path)


@given(st.text(alphabet=".[]*?()@='\"\\ab01:,-$<>! ", max_size=20))
def test_any_text_is_either_rejected_or_evaluated(text: str) -> None:
    try:
        path = JsonPath(text)
    except JsonPathError:
        return
    assert isinstance(path.find(OBJ), list)
