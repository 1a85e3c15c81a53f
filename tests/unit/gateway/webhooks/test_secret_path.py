"""The secret part in the paths of webhooks that look up objects."""

from __future__ import annotations

import os

from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.gateway.webhooks import node_driver_review
from herder.gateway.webhooks.configurations import CLUSTER_API, MACHINES
from herder.gateway.webhooks.secret_path import KEY, NAME, hidden, secret_part, with_hidden_paths
from tests.unit.gateway.webhooks.test_reconcile import NAMESPACE, client

__all__ = ["client"]


async def test_replicas_share_the_secret_part(client: Client) -> None:
    first = await secret_part(client, NAMESPACE, os.urandom)
    assert len(first) == 32
    assert await secret_part(client, NAMESPACE, os.urandom) == first
    stored = await client.get(SECRET.resource, NAME, namespace=NAMESPACE)
    assert [*stored["data"]] == [KEY]


def test_only_webhooks_that_look_up_objects_have_a_secret_part() -> None:
    (machines,) = with_hidden_paths(MACHINES, [node_driver_review.PATH], "part")
    assert [hook.path for hook in machines.webhooks] == [hidden(node_driver_review.PATH, "part")]
    assert with_hidden_paths(CLUSTER_API, [node_driver_review.PATH], "part") == CLUSTER_API
