from __future__ import annotations

import pytest

from herder.engine.apiserver.admission.chain import CREATE, DELETE, UPDATE, Attributes, Chain, denied_by_plugin
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import GroupResource, Object
from tests.unit.engine.apiserver.auth.fake_cluster import ALICE
from tests.unit.engine.apiserver.resources import resource

PODS = GroupResource("", "pods")


class RecordingPlugin:
    """A plugin that records its call in the object."""

    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = frozenset({""})

    def __init__(self, name: str, *, reinvokes: bool = False) -> None:
        self.name = name
        self.reinvokes = reinvokes

    async def admit(self, attributes: Attributes) -> None:
        attributes.object.setdefault("seen", []).append(self.name)
        attributes.reinvoke = attributes.reinvoke or self.reinvokes

    async def validate(self, attributes: Attributes) -> None:
        attributes.object.setdefault("judged", []).append(self.name)


def write(obj: Object | None, operation: str = CREATE, plural: str = "pods", subresource: str = "") -> Attributes:
    return Attributes(operation, resource(plural), "v1", ALICE, obj=obj, subresource=subresource)


async def test_plugins_run_in_order_with_webhooks_last() -> None:
    chain = Chain()
    chain.add(RecordingPlugin("webhooks"), last=True)
    chain.add(RecordingPlugin("first"))
    chain.add(RecordingPlugin("second"))
    obj: Object = {}
    await chain.admit(write(obj))
    await chain.validate(write(obj))
    assert obj == {"seen": ["first", "second", "webhooks"], "judged": ["first", "second", "webhooks"]}


async def test_a_plugin_sees_only_matching_writes() -> None:
    chain = Chain()
    seen: list[str] = []

    async def record_write(attributes: Attributes) -> None:
        seen.append(f"{attributes.operation} {attributes.resource.plural}/{attributes.subresource}")

    chain.add_mutating("pods", [PODS], record_write)
    chain.add_validating("deletes", None, record_write, operations=[DELETE], subresources=None)
    for attributes in (
        write({}), write({}, UPDATE), write({}, subresource="status"), write({}, plural="nodes"), write(None, DELETE),
        write(None, DELETE, "pods", "eviction"),
    ):  # fmt: skip
        await chain.admit(attributes)
        await chain.validate(attributes)
    assert seen == ["CREATE pods/", "UPDATE pods/", "DELETE pods/", "DELETE pods/eviction"]


async def test_a_plugin_added_later_is_called_from_then_on() -> None:
    chain = Chain()
    obj: Object = {}
    await chain.admit(write(obj))
    chain.add(RecordingPlugin("late"))
    await chain.admit(write(obj))
    assert obj == {"seen": ["late"]}


async def test_all_plugins_run_again_on_reinvocation() -> None:
    chain = Chain()
    chain.add(RecordingPlugin("a"))
    chain.add(RecordingPlugin("b", reinvokes=True))
    obj: Object = {}
    await chain.admit(write(obj))
    assert obj["seen"] == ["a", "b", "a", "b"]


async def test_the_first_denial_ends_the_chain() -> None:
    chain = Chain()

    async def refuse(attributes: Attributes) -> None:
        raise denied_by_plugin(attributes, "no")

    chain.add_validating("no", None, refuse)
    chain.add(RecordingPlugin("after"))
    obj: Object = {"metadata": {"generateName": "x-"}}
    with pytest.raises(Forbidden, match='pods "x-" is forbidden: no'):
        await chain.validate(write(obj))
    assert "judged" not in obj
