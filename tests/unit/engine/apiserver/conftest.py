from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from tests.unit.engine.apiserver.api import Api, serve_widgets, start

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
async def running() -> AsyncIterator[Api]:
    server, clock = await start()
    yield Api(server, clock)
    await server.stop()


@pytest.fixture
async def api(running: Api) -> Api:
    """The module's server, with a namespace of the test's own."""
    name = f"ns-{next(_numbers)}"
    created = await running.post("/api/v1/namespaces", {"metadata": {"name": name}})
    assert created.status == 201, created.body
    return Api(running.server, running.clock, namespace=name)


@pytest.fixture
async def widgets(api: Api) -> str:
    """Path of the test's widgets."""
    await serve_widgets(api)
    return f"/apis/example.com/v1/namespaces/{api.namespace}/widgets"
