from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.engine.runner.engines import NODES, EmbeddedEngine, Engine, RealEngine


@pytest.fixture(scope="session", params=["embedded", "real"])
async def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    directory: Path = tmp_path_factory.mktemp(f"runner-{request.param}")
    found = EmbeddedEngine(directory) if request.param == "embedded" else RealEngine(directory)
    await found.connect()
    try:
        await found.until(NODES, "herder-runner", lambda node: node["status"].get("addresses"), namespace="")
        yield found
    finally:
        await found.client.close()
        found.stop()
