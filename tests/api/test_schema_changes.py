"""Events of objects that were stored before their schema changed."""

from __future__ import annotations

import pytest

from tests.api.objects import CRDS, Obj, custom, define, definition, spec_schema
from tests.support.api import Api
from tests.support.engines import unique


class Changing:
    """A kind whose field `went` goes and whose field `came` comes, with a default, after one object was stored."""

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
async def changing(api: Api) -> Changing:
    kind = Changing(api)
    await kind.store()
    await kind.change_schema()
    return kind


def told(event: Obj) -> tuple[str, Obj]:
    return event["type"], event["object"]["spec"]


async def test_a_deletion_is_told_by_todays_schema(api: Api, changing: Changing) -> None:
    async with api.watch(api.at(changing.resource)) as events:
        assert told(await events.next()) == ("ADDED", {"came": "y"})
        (await api.delete(changing.url)).expect(200)
        assert told(await events.next()) == ("DELETED", {"came": "y"})


async def test_an_object_that_stops_matching_is_told_by_todays_schema(api: Api, changing: Changing) -> None:
    async with api.watch(f"{api.at(changing.resource)}?labelSelector=seen") as events:
        assert told(await events.next()) == ("ADDED", {"came": "y"})
        (await api.patch(changing.url, {"metadata": {"labels": None}})).expect(200)
        assert told(await events.next()) == ("DELETED", {"came": "y"})
