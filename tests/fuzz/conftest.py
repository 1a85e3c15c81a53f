from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from herder.engine.client import kubeconfig
from tests.fuzz.world import Pair
from tests.support.embedded import Embedded
from tests.support.engines import Engine


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A server of our own, whose process and memory can be looked at."""
    with Embedded(tmp_path_factory.mktemp("fuzzed")) as server:
        yield server


@pytest.fixture(scope="session")
async def pair(real_engine: Engine, fuzzed: Embedded) -> AsyncIterator[Pair]:
    pair = Pair.of(real_engine.connection, kubeconfig.load(fuzzed.kubeconfig))
    await pair.furnish()
    yield pair
    await pair.close()
