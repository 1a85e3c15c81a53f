from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.engine.front.sockets import RecordingHandler, RunningFront


@pytest.fixture
async def fronted() -> AsyncIterator[RunningFront]:
    """A front without TLS whose handler the test can set."""
    fronted = await RunningFront.listen(RecordingHandler())
    yield fronted
    await fronted.stop()
