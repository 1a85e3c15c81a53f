from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.engine.apiserver.auth.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    created = World()
    yield created
    await created.close()
