from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from herder.engine.client import kubeconfig
from tests.fuzz.server_pair import Pair
from tests.support.embedded import Embedded
from tests.support.engines import Engine


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A separate server whose process and memory the tests can inspect."""
    with Embedded(tmp_path_factory.mktemp("fuzzed")) as server:
        yield server


@pytest.fixture(scope="session")
async def pair(real_engine: Engine, fuzzed: Embedded) -> AsyncIterator[Pair]:
    pair = Pair.of(real_engine.connection, kubeconfig.load(fuzzed.kubeconfig))
    await pair.create_objects()
    yield pair
    await pair.close()
