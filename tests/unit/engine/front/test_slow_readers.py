"""Clients that read slowly: a minimum rate, and limits on what their responses keep in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, replace
from typing import cast

import pytest

from herder.engine.front import limits
from herder.engine.front.connection import Connection, Front
from herder.engine.front.flow import Holder
from herder.engine.front.limits import Limits
from herder.engine.front.pace import Pace
from herder.engine.front.retained import over_limit, retained_bytes
from herder.engine.wire import LazyBody, Request, Response, Retained
from tests.unit.engine.front.sockets import RunningFront

MIB = 1 << 20
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

# --- minimum rate -----------------------------------------------------------------------------------------------------


def seconds_until_disconnected(bytes_per_second: float, limit: float = 10_000.0) -> float:
    """A client that always reads at this rate, while a response is written to it in large pieces."""
    pace, now, sent = Pace(), 1000.0, 48 << 10
    while now - 1000.0 < limit:
        deadline = pace.paused(now, limits.WRITE_HIGH_WATER)
        now += sent / bytes_per_second if bytes_per_second else limit
        if now >= deadline:
            return deadline - 1000.0
        pace.resumed(now, limits.WRITE_HIGH_WATER - sent)
    return limit


def test_a_client_that_reads_nothing_is_disconnected_after_the_stall() -> None:
    assert seconds_until_disconnected(0) == limits.STALL_SECONDS


@pytest.mark.parametrize("rate", [1, 100, 1000, limits.RESPONSE_BYTES_PER_SECOND / 2])
def test_a_client_that_trickles_is_disconnected_soon(rate: float) -> None:
    assert seconds_until_disconnected(rate) <= 3 * limits.STALL_SECONDS


@pytest.mark.parametrize("factor", [1.01, 2, 10])
def test_a_client_above_the_minimum_rate_is_not_disconnected(factor: float) -> None:
    assert seconds_until_disconnected(limits.RESPONSE_BYTES_PER_SECOND * factor) == 10_000.0


def test_time_without_a_backlog_does_not_count() -> None:
    """A watcher reads an event a minute, and stalls for most of a minute now and then."""
    pace, now = Pace(), 0.0
    for _ in range(10):
        assert pace.paused(now, limits.WRITE_HIGH_WATER) == now + limits.STALL_SECONDS
        pace.resumed(now + 50, limits.WRITE_HIGH_WATER)
        now += 200


class FakeTransport:
    def __init__(self) -> None:
        self.buffered = 0
        self.aborted = False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, _name: str) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


async def test_a_connection_counts_what_its_client_reads(
    fronted: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 1000.0}
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: clock["now"])
    connection, transport = Connection(cast(Front, fronted.front), loop), FakeTransport()
    connection.connection_made(cast(asyncio.Transport, transport))
    try:
        cycles = 0
        while not transport.aborted and cycles < 100:
            cycles += 1
            transport.buffered = limits.WRITE_HIGH_WATER
            connection.pause_writing()
            clock["now"] += 50
            connection.check(clock["now"])
            transport.buffered = 16 << 10
            connection.resume_writing()
        assert cycles == 2  # 48 KiB in 50 seconds are less than a tenth of the minimum
    finally:
        monkeypatch.undo()
        connection.connection_lost(None)


# --- retained state ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FakeReader:
    user: str
    state: Hashable
    size: int
    responding_since: float
    own: bool = False

    @property
    def reader(self) -> Holder:
        return (self.user, "")

    @property
    def retained(self) -> Retained | None:
        return Retained(self.state, self.size, self.own) if self.size else None


LIMITS = replace(Limits(), retained_bytes=100, retained_bytes_per_user=60)
NOW = 1000.0


def readers(*described: tuple[str, Hashable, int], age: float = 100) -> list[FakeReader]:
    """The first one is the oldest."""
    return [FakeReader(*each, NOW - age - len(described) + position) for position, each in enumerate(described)]


def aborted(found: list[FakeReader]) -> list[int]:
    return sorted(found.index(each) for each in over_limit(found, LIMITS, NOW))


def test_responses_of_one_state_are_counted_once() -> None:
    found = readers(*[("a", "same", 50)] * 100)
    assert retained_bytes(found) == {("a", ""): 50}
    assert aborted(found) == []


def test_the_oldest_responses_of_a_user_are_aborted() -> None:
    found = readers(("a", 1, 30), ("a", 2, 30), ("b", 1, 30), ("a", 3, 30), ("a", 3, 30))
    assert aborted(found) == [0]
    assert aborted([*readers(*[("a", number, 20) for number in range(50)])]) == [*range(47)]


def test_one_response_may_exceed_the_limit() -> None:
    assert aborted(readers(("a", 1, 1000))) == []
    assert aborted(readers(("a", 1, 1000), ("a", 2, 1000))) == [0]


def test_users_together_get_equal_shares() -> None:
    found = readers(("a", 1, 30), ("a", 2, 30), ("b", 3, 30), ("b", 4, 30), ("c", 5, 10))
    assert aborted(found) == [0, 2]
    assert sum(retained_bytes([each for number, each in enumerate(found) if number not in (0, 2)]).values()) <= 100


def test_responses_that_were_just_begun_are_not_aborted() -> None:
    assert aborted(readers(("a", 1, 50), ("a", 2, 50), ("a", 3, 50), age=0)) == []


def test_state_that_nothing_else_keeps_counts_at_once() -> None:
    found = [FakeReader("a", number, 30, NOW - 3 + number, own=True) for number in range(3)]
    assert aborted(found) == [0]


def test_the_work_grows_with_the_number_of_responses() -> None:
    counted = {"reads": 0}

    class Counting(FakeReader):
        @property
        def retained(self) -> Retained | None:
            counted["reads"] += 1
            return super().retained

    found = [Counting("a", number, 20, NOW - 10_000 + number) for number in range(1000)]
    assert len(list(over_limit(found, LIMITS, NOW))) == 997
    assert counted["reads"] <= 10 * len(found)


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["body", "pieces", "stream"])
async def test_a_front_counts_and_limits_responses_under_way(fronted: RunningFront, kind: str) -> None:
    size = 16 * MIB

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    async def handler(_: Request) -> Response:
        if kind == "stream":
            return Response(200, {}, stream=endless(), retained=Retained(object(), size))
        if kind == "pieces":
            return Response(200, {}, LazyBody(size, lambda: iter([b"x" * size])), retained=Retained(object(), size))
        return Response(200, {}, b"x" * size)

    def usage() -> int:
        found: int = fronted.front.usage()["retained_bytes"]["total"]
        return found

    fronted.recorder.handler = handler
    opened = [await fronted.connect() for _ in range(12)]
    for raw in opened:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        raw.send(GET)
    await wait_until(lambda: usage() == 12 * size)
    later = asyncio.get_running_loop().time() + 2 * limits.SLOT_SECONDS
    fronted.front.limit_retained(later)
    await wait_until(lambda: usage() <= Limits().retained_bytes_per_user)
    assert usage() == Limits().retained_bytes_per_user // size * size
    for raw in opened:
        raw.reset()
    await wait_until(lambda: usage() == 0)


async def test_responses_of_earlier_revisions_are_limited_when_they_begin(fronted: RunningFront) -> None:
    begun = 0

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    async def handler(_: Request) -> Response:
        nonlocal begun
        begun += 1
        return Response(200, {}, stream=endless(), retained=Retained(object(), 16 * MIB, own=True))

    fronted.recorder.handler = handler
    opened = [await fronted.connect() for _ in range(12)]
    for raw in opened:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        raw.send(GET)
    await wait_until(lambda: begun == 12 and len(fronted.front.connections) == 8)
    assert fronted.front.usage()["retained_bytes"]["total"] == Limits().retained_bytes_per_user
