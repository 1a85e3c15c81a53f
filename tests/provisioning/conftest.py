"""One manager per engine, on which all its scenarios run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.provisioning.scenarios import ScenarioRuns
from tests.support.manager.provisioned import SITES
from tests.support.manager.simulated_nodes import install_driver


@pytest.fixture(scope="module")
async def scenario_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ScenarioRuns]:
    """The selected scenarios, running on the engine that the module names."""
    engine = request.module.ENGINE
    items = [item for item in request.session.items if item.path == request.path]
    chosen = [str(item.callspec.params["scenario"]) for item in items if isinstance(item, pytest.Function)]
    async with SITES[engine](tmp_path_factory.mktemp(engine)) as site:
        await install_driver(site)
        runs = ScenarioRuns(site, chosen)
        try:
            yield runs
        finally:
            await runs.stop()
