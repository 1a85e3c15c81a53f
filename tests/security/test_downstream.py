"""What downstream clusters send: a watch line without end. Responses and lists are in `tests/unit/engine/client`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from herder.engine.client.client import EVENT_BYTES, _Splitter
from herder.engine.wire import ResponseTooLarge
from tests.support.attacks.attacker import TURN_MS
from tests.support.attacks.turns import in_own_turns, measured_turns


class CountingBuffer(bytearray):
    """Counts the bytes that are searched."""

    searched = 0

    def find(self, *arguments: Any) -> int:
        start = arguments[1] if len(arguments) > 1 else 0
        self.searched += len(self) - start
        return super().find(*arguments)


@pytest.mark.parametrize("start", [b'{"type":"ADDED","object":{"a":"', b'{\n  "type": "ADDED",\n'])
@pytest.mark.parametrize("size", [1 << 10, 64 << 10, 1 << 20])
async def test_an_endless_watch_line_is_searched_once_and_limited(start: bytes, size: int) -> None:
    splitter, buffer = _Splitter(), CountingBuffer()
    splitter._buffer = buffer
    splitter.feed(start)
    fed = len(start)

    async def feed() -> None:
        """Each chunk arrives in a turn of its own."""
        nonlocal fed
        for _ in range(2 * EVENT_BYTES // size):
            fed += size
            assert splitter.feed(b"x" * size) == []
            await asyncio.sleep(0)

    with measured_turns() as turns, pytest.raises(ResponseTooLarge):
        await in_own_turns(feed())
    assert turns.longest * 1000 <= TURN_MS, turns.what
    assert len(buffer) == fed <= EVENT_BYTES + size
    assert fed / 2 <= buffer.searched <= 2 * fed
