"""Hypothesis strategies for Widgets and writes to them by several managers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.unit.engine.patch.kinds import API_VERSION, KIND
from tests.unit.engine.patch.servers import Request

WORDS = st.sampled_from(["a", "b", "c", 'q"x', "<&>", "é"])
NUMBERS = st.integers(0, 3)
TEXTS_BY_KEY = st.dictionaries(WORDS, WORDS, max_size=3)


def unique(items: st.SearchStrategy[Any], key: Any = None) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=3, unique_by=key or (lambda item: item))


STRUCT = st.fixed_dictionaries({}, optional={"a": WORDS, "b": NUMBERS})
PORT = st.fixed_dictionaries(
    {"port": NUMBERS},
    optional={"protocol": st.sampled_from(["TCP", "UDP"]), "note": WORDS, "tags": TEXTS_BY_KEY},
)
NAMED = st.fixed_dictionaries({"name": WORDS}, optional={"value": WORDS, "inner": st.lists(WORDS, max_size=2)})
FREE = st.recursive(
    st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)

SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": NUMBERS,
        "title": WORDS | st.none(),
        "on": st.booleans(),
        "ratio": st.sampled_from([0.5, 1.25, 2]),
        "size": NUMBERS | WORDS,
        "granular": TEXTS_BY_KEY,
        "atomic": TEXTS_BY_KEY,
        "struct": STRUCT,
        "atomicStruct": STRUCT,
        "set": unique(WORDS),
        "numbers": unique(NUMBERS),
        "list": st.lists(WORDS, max_size=3),
        "named": unique(NAMED, lambda item: item["name"]),
        "ports": unique(PORT, lambda item: (item["port"], item.get("protocol", "TCP"))),
        "free": st.dictionaries(WORDS, FREE, max_size=2),
    },
)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": WORDS,
        "conditions": unique(
            st.fixed_dictionaries({"type": WORDS}, optional={"status": WORDS, "reason": WORDS}),
            lambda item: item["type"],
        ),
    },
)
LABELS = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]), max_size=2)


@st.composite
def widgets(draw: st.DrawFn) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "w"}
    labels = draw(LABELS)
    if labels:
        metadata["labels"] = labels
    body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    if draw(st.integers(0, 4)):
        body["spec"] = draw(SPECS)
    if draw(st.integers(0, 2)) == 0:
        body["status"] = draw(STATUSES)
    return body


MANAGERS = st.sampled_from(["one", "two", "kubectl"])
MERGE_PATCHES = st.fixed_dictionaries({}, optional={"spec": SPECS, "status": STATUSES})


@st.composite
def requests(draw: st.DrawFn) -> Request:
    manager = draw(MANAGERS)
    subresource = draw(st.sampled_from(["", "", "", "status"]))
    verb = draw(st.sampled_from(["apply", "apply", "apply", "merge", "update"]))
    if verb == "apply":
        return Request("apply", manager, draw(widgets()), draw(st.booleans()), subresource)
    body = draw(MERGE_PATCHES) if verb == "merge" else draw(widgets())
    return Request(verb, manager, body, subresource=subresource)


FIRST = st.builds(Request, st.sampled_from(["create", "apply"]), MANAGERS, widgets())
HISTORIES = st.tuples(FIRST, st.lists(requests(), min_size=1, max_size=6)).map(lambda pair: [pair[0], *pair[1]])
