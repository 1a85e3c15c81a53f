"""Access reviews of users, sent to the management cluster."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from herder.engine.client.client import Client, Page
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from herder.gateway.admission.access import Access

CLUSTERS = 500


class Reviewing:
    """A management API that allows every other cluster, and counts concurrent reviews."""

    in_flight, maximum = 0, 0

    async def list_all(self, *_: Any) -> Page:
        return Page([{"metadata": {"name": f"c-{number}"}} for number in range(CLUSTERS)], "1")

    async def create(self, _resource: Any, review: Object) -> Object:
        self.in_flight += 1
        self.maximum = max(self.maximum, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        number = int(review["spec"]["resourceAttributes"]["name"].removeprefix("c-"))
        return {"status": {"allowed": number % 2 == 0}}


async def test_reachable_clusters_are_reviewed_with_limited_concurrency() -> None:
    """Other requests are served in between, however many clusters there are."""
    api = Reviewing()
    found = await Access(cast(Client, api)).reachable(User("u-1"))
    assert list(found) == [f"c-{number}" for number in range(0, CLUSTERS, 2)]
    assert api.maximum <= 50
