"""Randomly corrupted CRDs are rejected with reasons, or work."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from herder.engine.apiserver.builtin import resources
from herder.engine.apiserver.crds import DefinitionStrategy, resource_from_crd
from herder.engine.apiserver.openapi.v2 import build_v2
from herder.engine.apiserver.openapi.v2_protobuf import encode_document
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.apiserver.tables import render
from herder.engine.meta.errors import BadRequest, FieldError
from herder.engine.meta.kinds import GroupResource, Object
from tests.unit.engine.apiserver.crds.samples import NOW, context, definition

CASES = 2_000
_REFUSED = msgspec.json.decode((Path(__file__).parent / "refused_definitions.json").read_bytes())
_BASES = [definition(settled=False), *(case["definition"] for case in _REFUSED.values())]
_JUNK: list[Any] = [
    None, "", 0, -1, 1.5, True, [], {}, ".spec", "[", "(", "object", "array", "string", ["a"], {"a": 1}, [None], 10**30,
    {"type": "string"}, {"type": "object", "properties": {}}, "self.a == 1", [{"rule": "self"}],
]  # fmt: skip
_KEYWORDS = (
    "type", "properties", "items", "additionalProperties", "x-kubernetes-validations", "default", "required", "enum",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-int-or-string", "nullable", "format",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "pattern", "anyOf", "oneOf", "not",
)  # fmt: skip


@pytest.fixture(scope="module")
def definitions() -> Any:
    found = Registry(resources()).get(GroupResource("apiextensions.k8s.io", "customresourcedefinitions"))
    assert found is not None
    return found.versions["v1"].model


@pytest.mark.parametrize("seed", range(4))
def test_a_corrupted_definition_is_rejected_or_works(definitions: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(CASES // 4):
        crd = copy.deepcopy(chance.choice(_BASES))
        for _ in range(chance.randint(1, 3)):
            corrupt(crd, chance)
        try:
            decoded, _ = definitions.decode(copy.deepcopy(crd))
        except BadRequest:
            continue
        problems = refusals(decoded)
        if not problems:
            use(decoded)


def corrupt(crd: Object, chance: random.Random) -> None:
    places = [path for path in paths(crd) if path and path[0] in {"spec", "metadata"}]
    if not places:
        return
    path = chance.choice(places)
    holder: Any = crd
    for step in path[:-1]:
        holder = holder[step]
    junk = copy.deepcopy(chance.choice(_JUNK))
    how = chance.random()
    if how < 0.4 or isinstance(holder, list):
        holder[path[-1]] = junk
    elif how < 0.6:
        del holder[path[-1]]
    else:
        holder[chance.choice(_KEYWORDS)] = junk


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for step, child in inner:
        yield from paths(child, (*path, step))


def refusals(crd: Object) -> list[FieldError]:
    strategy = DefinitionStrategy()
    strategy.default(crd, context())
    strategy.prepare_create(crd, context())
    list(strategy.warnings(crd, None))
    return list(strategy.validate(crd, context()))


def use(crd: Object) -> None:
    """Use everything that an accepted CRD offers."""
    resource = resource_from_crd(crd)
    for version in resource.versions.values():
        kind = {"apiVersion": resource.api_version(version.name), "kind": resource.kind}
        obj, _ = version.model.decode({**kind, "metadata": {"name": "x"}, "spec": {"size": 1, "color": "x"}})
        version.model.default(obj)
        version.model.validate(obj, None)
        assert version.model.merge_type is not None
        render(resource, version.name, [obj], now=NOW)
    assert encode_document(build_v2(Registry([resource])))
