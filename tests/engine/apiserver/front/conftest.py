from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.engine.apiserver.api import start
from tests.engine.apiserver.front.sockets import Fronted, Told


@pytest.fixture
async def fronted() -> AsyncIterator[Fronted]:
    """A front without TLS on a handler of the test's own."""
    server, _ = await start()
    fronted = await Fronted.listen(Told(server))
    yield fronted
    await fronted.stop()
    await server.stop()
