"""One manager for each engine, on which all its scenarios run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.provisioning.scenarios import Running
from tests.support.provisioned import SITES
from tests.support.simulated_nodes import install_driver


@pytest.fixture(scope="module")
async def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """On the engine that the module names; only those scenarios that were chosen."""
    engine = request.module.ENGINE
    items = [item for item in request.session.items if item.path == request.path]
    chosen = [str(item.callspec.params["scenario"]) for item in items if isinstance(item, pytest.Function)]
    async with SITES[engine](tmp_path_factory.mktemp(engine)) as site:
        await install_driver(site)
        scenarios = Running(site, chosen)
        try:
            yield scenarios
        finally:
            await scenarios.stop()
