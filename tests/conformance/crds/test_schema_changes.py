"""Watch events of objects that were stored under an older schema."""

from __future__ import annotations

import pytest

from tests.conformance.objects import CRDS, Obj, custom, define, definition, spec_schema
from tests.support.api import Api
from tests.support.engines import unique


class ChangingKind:
    """A kind that loses the field `went` and gains the field `came`, with a default, after one object was stored."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.group = f"{unique('changing')}.example.com"
        self.resource = f"{self.group}/v1/gadgets"

    async def store(self) -> None:
        schema = spec_schema(went={"type": "string"})
        await define(self.api, definition(self.group, "gadgets", "Gadget", schema))
        obj = custom(self.group, "Gadget", "g", {"went": "x"})
        obj["metadata"]["labels"] = {"seen": "yes"}
        await self.api.create(self.resource, obj)

    async def change_schema(self) -> None:
        schema = spec_schema(came={"type": "string", "default": "y"})
        versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
        (
            await self.api.patch(self.api.cluster(CRDS, f"gadgets.{self.group}"), {"spec": {"versions": versions}})
        ).expect(200)
        await self.api.until(self.url, lambda answer: answer.body["spec"] == {"came": "y"})

    @property
    def url(self) -> str:
        return self.api.at(self.resource, "g")


@pytest.fixture
async def changing(api: Api) -> ChangingKind:
    kind = ChangingKind(api)
    await kind.store()
    await kind.change_schema()
    return kind


def type_and_spec(event: Obj) -> tuple[str, Obj]:
    return event["type"], event["object"]["spec"]


async def test_a_deleted_event_follows_the_current_schema(api: Api, changing: ChangingKind) -> None:
    async with api.watch(api.at(changing.resource)) as events:
        assert type_and_spec(await events.next()) == ("ADDED", {"came": "y"})
        (await api.delete(changing.url)).expect(200)
        assert type_and_spec(await events.next()) == ("DELETED", {"came": "y"})


async def test_an_event_of_a_no_longer_matching_object_follows_the_current_schema(
    api: Api, changing: ChangingKind
) -> None:
    async with api.watch(f"{api.at(changing.resource)}?labelSelector=seen") as events:
        assert type_and_spec(await events.next()) == ("ADDED", {"came": "y"})
        (await api.patch(changing.url, {"metadata": {"labels": None}})).expect(200)
        assert type_and_spec(await events.next()) == ("DELETED", {"came": "y"})
