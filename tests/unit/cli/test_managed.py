"""Managed clusters as people name them."""

from __future__ import annotations

import json
from typing import Any, cast

import click
import pytest

from herder.cli.cluster.lookup import cluster_named
from herder.engine.client.client import Client
from herder.engine.wire import Response


class Manager:
    """Tells of these clusters: ID → name."""

    def __init__(self, **clusters: str) -> None:
        self._clusters = clusters

    async def raw(self, *_: Any, **__: Any) -> Response:
        data = [{"id": cluster.replace("_", "-"), "name": name} for cluster, name in self._clusters.items()]
        return Response(200, {}, json.dumps({"data": data}).encode())


async def found(name: str, **clusters: str) -> tuple[str, str]:
    return await cluster_named(cast(Client, Manager(**clusters)), name)


async def test_a_cluster_is_found_by_its_id_and_by_its_name() -> None:
    assert await found("c-m-1", c_m_1="team", c_m_2="other") == ("c-m-1", "team")
    assert await found("team", c_m_1="team", c_m_2="other") == ("c-m-1", "team")
    assert await found("c-m-1", c_m_1="c-m-1") == ("c-m-1", "c-m-1")


async def test_an_id_that_is_the_name_of_another_cluster_is_not_guessed_at() -> None:
    """Users choose IDs of management Clusters: an administrator would get into the cluster of another user."""
    with pytest.raises(click.ClickException, match="is the ID of one cluster and the name of another"):
        await found("c-team", c_m_1="c-team", c_team="mallory's")
