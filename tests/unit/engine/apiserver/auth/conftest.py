from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.engine.apiserver.auth.fake_cluster import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    created = FakeCluster()
    yield created
    await created.close()
