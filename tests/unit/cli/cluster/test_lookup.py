"""Lookup of managed clusters by ID or name."""

from __future__ import annotations

import json
from typing import Any, cast

import click
import pytest

from herder.cli.cluster.lookup import cluster_named
from herder.engine.client.client import Client
from herder.engine.wire import Response


class Manager:
    """Serves these clusters, given as ID → name."""

    def __init__(self, **clusters: str) -> None:
        self._clusters = clusters

    async def raw(self, *_: Any, **__: Any) -> Response:
        data = [{"id": cluster.replace("_", "-"), "name": name} for cluster, name in self._clusters.items()]
        return Response(200, {}, json.dumps({"data": data}).encode())


async def looked_up(name: str, **clusters: str) -> tuple[str, str]:
    return await cluster_named(cast(Client, Manager(**clusters)), name)


async def test_a_cluster_is_found_by_its_id_and_by_its_name() -> None:
    assert await looked_up("c-m-1", c_m_1="team", c_m_2="other") == ("c-m-1", "team")
    assert await looked_up("team", c_m_1="team", c_m_2="other") == ("c-m-1", "team")
    assert await looked_up("c-m-1", c_m_1="c-m-1") == ("c-m-1", "c-m-1")


async def test_an_id_that_is_also_the_name_of_another_cluster_is_ambiguous() -> None:
    """Users choose the IDs of management Clusters, and could lead an administrator into their own cluster."""
    with pytest.raises(click.ClickException, match="is the ID of one cluster and the name of another"):
        await looked_up("c-team", c_m_1="c-team", c_team="mallory's")
