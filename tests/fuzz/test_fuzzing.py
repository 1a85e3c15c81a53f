"""A seeded sample of the hour-long `python -m tests.fuzz`."""

from __future__ import annotations

import asyncio

from tests.fuzz import memory, roundtrip, sockets
from tests.fuzz.inputs.generators import generate
from tests.fuzz.runner import run
from tests.fuzz.server_pair import Pair
from tests.support.embedded import Embedded

INPUTS = 1500
SEED = 11
_MEMORY = 400 << 20  # far above the needs of a server with few objects, far below a leak


async def test_random_inputs_get_the_same_responses(pair: Pair) -> None:
    inputs = ((number, generate(SEED, number)) for number in range(INPUTS))
    summary = await run(pair.real.connection, pair.embedded.connection, inputs, seed=SEED)
    assert summary.failures == []
    assert summary.disagreements == {}, summary.text(examples=True)


async def test_stored_objects_can_be_read_back(pair: Pair) -> None:
    results = await roundtrip.run(pair, SEED, 80)
    assert results.failures == []
    assert results.kept
    assert results.kinds


async def test_raw_bytes_get_the_same_codes(pair: Pair) -> None:
    contents = sockets.EXCHANGES.values()
    real, embedded = await asyncio.gather(
        asyncio.gather(*(sockets.exchange(pair.real, content) for content in contents)),
        asyncio.gather(*(sockets.exchange(pair.embedded, content) for content in contents)),
    )
    for name, theirs, ours in zip(sockets.EXCHANGES, real, embedded, strict=True):
        if name in sockets.DIFFERENCES:
            assert ours, name
            assert all(code < 500 for code in ours), name
        else:
            assert ours == theirs, name


async def test_misbehaving_clients_are_survived(pair: Pair, fuzzed: Embedded) -> None:
    results = await sockets.run(pair, SEED, 150)
    assert results.failures == []
    assert fuzzed.process is not None
    assert fuzzed.process.poll() is None
    assert memory.resident(fuzzed) < _MEMORY
