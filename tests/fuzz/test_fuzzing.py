"""A seeded sample of what `python -m tests.fuzz` runs for hours."""

from __future__ import annotations

import asyncio

from tests.fuzz import memory, sockets, storing
from tests.fuzz.generating import generate
from tests.fuzz.running import run
from tests.fuzz.world import Pair
from tests.support.embedded import Embedded

INPUTS = 1500
SEED = 11
_MEMORY = 400 << 20  # far above what a server with a handful of objects needs, far below what a leak would take


async def test_random_inputs_are_answered_as_the_real_server_answers_them(pair: Pair) -> None:
    inputs = ((number, generate(SEED, number)) for number in range(INPUTS))
    summary = await run(pair.real.connection, pair.embedded.connection, inputs, seed=SEED)
    assert summary.failures == []
    assert summary.disagreements == {}, summary.text(examples=True)


async def test_what_is_stored_can_be_read_back(pair: Pair) -> None:
    told = await storing.run(pair, SEED, 80)
    assert told.failures == []
    assert told.kept
    assert told.kinds


async def test_bytes_on_a_socket_get_the_same_codes(pair: Pair) -> None:
    contents = sockets.EXCHANGES.values()
    real, embedded = await asyncio.gather(
        asyncio.gather(*(sockets.exchange(pair.real, content) for content in contents)),
        asyncio.gather(*(sockets.exchange(pair.embedded, content) for content in contents)),
    )
    for name, theirs, ours in zip(sockets.EXCHANGES, real, embedded, strict=True):
        if name in sockets.DIFFERENT:
            assert ours, name
            assert all(code < 500 for code in ours), name
        else:
            assert ours == theirs, name


async def test_noise_on_sockets_is_survived(pair: Pair, fuzzed: Embedded) -> None:
    told = await sockets.run(pair, SEED, 150)
    assert told.failures == []
    assert fuzzed.process is not None
    assert fuzzed.process.poll() is None
    assert memory.resident(fuzzed) < _MEMORY
