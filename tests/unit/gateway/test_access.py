"""What a user may do, asked of the management cluster."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from herder.engine.client.client import Client, Page
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from herder.gateway.admission.access import Access

CLUSTERS = 500


class Reviewing:
    """A management API that allows every other cluster, and counts what is asked at once."""

    asked, most = 0, 0

    async def list_all(self, *_: Any) -> Page:
        return Page([{"metadata": {"name": f"c-{number}"}} for number in range(CLUSTERS)], "1")

    async def create(self, _resource: Any, review: Object) -> Object:
        self.asked += 1
        self.most = max(self.most, self.asked)
        await asyncio.sleep(0)
        self.asked -= 1
        number = int(review["spec"]["resourceAttributes"]["name"].removeprefix("c-"))
        return {"status": {"allowed": number % 2 == 0}}


async def test_the_clusters_of_a_user_are_looked_up_a_few_at_a_time() -> None:
    """Others get their turn in between, however many clusters there are."""
    api = Reviewing()
    found = await Access(cast(Client, api)).reachable(User("u-1"))
    assert list(found) == [f"c-{number}" for number in range(0, CLUSTERS, 2)]
    assert api.most <= 50
