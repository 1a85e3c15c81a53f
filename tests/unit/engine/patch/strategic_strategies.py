"""Hypothesis strategies for pod templates and strategic merge patches of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c", "d"])
ENVIRONMENT = st.fixed_dictionaries({"name": NAMES, "value": NAMES})
CONTAINERS = st.fixed_dictionaries(
    {"name": NAMES, "image": NAMES},
    optional={
        "args": st.lists(NAMES, max_size=2),
        "env": st.lists(ENVIRONMENT, max_size=3, unique_by=lambda item: item["name"]),
    },
)
SOURCES = [
    {"emptyDir": {}},
    {"hostPath": {"path": "/x", "type": ""}},
    {"configMap": {"name": "q", "defaultMode": 420}},
]
VOLUMES = st.builds(lambda name, source: {"name": name, **source}, NAMES, st.sampled_from(SOURCES))
POD_SPECS = st.fixed_dictionaries(
    {
        "containers": st.lists(CONTAINERS, min_size=1, max_size=3, unique_by=lambda item: item["name"]),
        "volumes": st.lists(VOLUMES, max_size=3, unique_by=lambda item: item["name"]),
    }
)
FINALIZER = st.sampled_from(["x.y/a", "x.y/b", "x.y/c"])
FINALIZERS = st.lists(FINALIZER, max_size=3, unique=True)


def with_directives(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    deletion = st.builds(lambda name: {"name": name, "$patch": "delete"}, NAMES)
    return items | deletion | st.just({"$patch": "replace"})


ORDERS = st.lists(NAMES, max_size=4, unique=True).map(lambda names: [{"name": name} for name in names])
PATCHED_ENVIRONMENT = st.fixed_dictionaries({"name": NAMES}, optional={"value": NAMES | st.none()})
PATCHED_CONTAINERS = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "image": NAMES,
        "args": st.lists(NAMES, max_size=2) | st.none(),
        "env": st.lists(with_directives(PATCHED_ENVIRONMENT), max_size=3),
        "$setElementOrder/env": ORDERS,
    },
)
PATCHED_VOLUMES = VOLUMES | VOLUMES.map(lambda volume: {**volume, "$retainKeys": list(volume)})
LABELS = st.dictionaries(NAMES, NAMES | st.none(), max_size=2)
LABEL_PATCHES = LABELS | st.sampled_from([{"$patch": "replace", "z": "z"}, {"$patch": "delete"}, None])


@st.composite
def finalizer_patches(draw: st.DrawFn) -> dict[str, Any]:
    """Added and deleted finalizers are disjoint, because the result is random on the real server otherwise."""
    metadata: dict[str, Any] = {}
    added = draw(st.none() | FINALIZERS)
    if added is not None:
        metadata["finalizers"] = added
    deleted = draw(st.none() | FINALIZERS)
    if deleted is not None:
        metadata["$deleteFromPrimitiveList/finalizers"] = [item for item in deleted if item not in (added or ())]
    elif draw(st.booleans()):
        metadata["$setElementOrder/finalizers"] = draw(FINALIZERS)
    if draw(st.booleans()):
        metadata["labels"] = draw(LABEL_PATCHES)
    return metadata


SPEC_PATCHES = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(with_directives(PATCHED_CONTAINERS), max_size=3),
        "$setElementOrder/containers": ORDERS,
        "volumes": st.lists(with_directives(PATCHED_VOLUMES), max_size=3),
        "$setElementOrder/volumes": ORDERS,
    },
)
PATCHES = st.builds(
    lambda metadata, spec: {"metadata": metadata, "template": {"spec": spec}}, finalizer_patches(), SPEC_PATCHES
)
