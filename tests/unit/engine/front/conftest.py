from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.engine.front.sockets import Fronted, Told


@pytest.fixture
async def fronted() -> AsyncIterator[Fronted]:
    """A front without TLS on a handler of the test's own."""
    fronted = await Fronted.listen(Told())
    yield fronted
    await fronted.stop()
