"""Flow control over sockets: fair queuing between users, 429 over the limits, and a memory budget for bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from herder.engine.front import limits
from herder.engine.front.flow import Limiter
from herder.engine.front.http import HttpFront
from herder.engine.front.limits import Limits
from herder.engine.meta.errors import StatusError, TooManyRequests
from herder.engine.wire import Request, Response, User
from tests.unit.engine.front.sockets import TIMEOUT, Raw, RunningFront

LIMITS = Limits(
    in_flight=3, in_flight_per_user=2, queued_per_user=2, long_running_per_user=1, connections_per_user=20,
    body_bytes=400_000, body_bytes_per_user=200_000,
)  # fmt: skip


class Api:
    """An API that reads the user from a header, responds when the test allows it, and counts admitted requests."""

    receives_body = True

    def __init__(self) -> None:
        self.running: list[str] = []
        self.answers = asyncio.Event()
        self.bodies: list[int] = []

    async def handle(self, request: Request) -> Response:
        name = request.headers.get("user", "")
        groups = ("system:masters",) if name == "root" else ()
        try:
            await request.admit(User(name, groups=groups) if name else None, long_running=request.is_streaming)
            await request.receive_body()
        except StatusError as error:
            return Response(error.code, dict(error.headers), b"")
        self.bodies.append(len(request.body))
        self.running.append(name)
        await self.answers.wait()
        return Response(200, {}, b"ok")


class Served(RunningFront):
    api: Api

    async def ask_as(self, user: str, path: str = "/", length: int = 0) -> Raw:
        raw = await self.connect()
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *([f"User: {user}"] if user else [])]
        raw.send("\r\n".join([*lines, "", ""]).encode())
        return raw

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not holds():
                await asyncio.sleep(0.005)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    api = Api()
    front = HttpFront(api, clock=lambda: datetime.now(UTC), body_bytes=150_000, limit=LIMITS)
    _, port = await front.listen("127.0.0.1", 0, None)
    served = Served(None, front, port)  # type: ignore[arg-type]
    served.api = api
    yield served
    api.answers.set()
    await served.stop()


async def test_a_users_requests_over_the_limit_wait_and_then_get_429(served: Served) -> None:
    raws = [await served.ask_as("a") for _ in range(4)]
    await served.until(lambda: served.front.usage()["in_flight"]["waiting"] == 2)
    assert served.api.running == ["a", "a"]
    refused = await (await served.ask_as("a")).answer()
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    served.api.answers.set()
    assert [(await raw.answer()).status for raw in raws] == [200] * 4
    await served.until(lambda: served.front.usage()["in_flight"]["total"] == 0)


async def test_one_users_queue_does_not_delay_another(served: Served) -> None:
    for _ in range(4):
        await served.ask_as("a")
    await served.until(lambda: served.front.usage()["in_flight"]["waiting"] == 2)
    await served.ask_as("b")
    await served.until(lambda: served.api.running == ["a", "a", "b"])


async def test_anonymous_users_share_the_limit_of_their_address(served: Served) -> None:
    for _ in range(4):
        await served.ask_as("")
    await served.until(lambda: served.front.usage()["in_flight"]["waiting"] == 2)
    assert (await (await served.ask_as("")).answer()).status == 429


async def test_administrators_are_exempt_from_limits_on_requests(served: Served) -> None:
    for _ in range(8):
        await served.ask_as("root")
    await served.until(lambda: served.api.running == ["root"] * 8)


async def test_a_client_that_disconnects_frees_its_place_in_the_queue(served: Served) -> None:
    raws = [await served.ask_as("a") for _ in range(4)]
    await served.until(lambda: served.front.usage()["in_flight"]["waiting"] == 2)
    for raw in raws:
        raw.reset()
    await served.until(lambda: served.front.usage()["in_flight"] == {"total": 0, "largest_user": 0, "waiting": 0})


async def test_long_running_requests_are_counted_separately(served: Served) -> None:
    await served.ask_as("a", "/?watch=true")
    await served.until(lambda: served.api.running == ["a"])
    assert (await (await served.ask_as("a", "/?watch=true")).answer()).status == 429
    await served.ask_as("a")
    await served.until(lambda: served.api.running == ["a", "a"])


async def test_a_body_waits_for_room_in_the_budget_of_its_user(served: Served) -> None:
    first, second = await served.ask_as("a", length=120_000), await served.ask_as("a", length=120_000)
    await served.until(lambda: served.front.usage()["body_bytes"]["waiting"] == 1)
    other = await served.ask_as("b", length=120_000)
    other.send(b"x" * 120_000)
    await served.until(lambda: served.api.bodies == [120_000])
    assert served.front.usage()["body_bytes"]["total"] == 240_000
    served.api.answers.set()
    for raw in (first, second):
        raw.send(b"x" * 120_000)
    assert [(await raw.answer()).status for raw in (first, second, other)] == [200] * 3
    await served.until(lambda: served.front.usage()["body_bytes"]["total"] == 0)


async def test_the_connections_of_a_user_are_limited(served: Served) -> None:
    served.api.answers.set()
    for _ in range(LIMITS.connections_per_user):
        assert (await (await served.ask_as("root")).answer()).status == 200
    refused = await (await served.ask_as("root")).answer()
    assert (refused.status, refused.headers["connection"]) == (429, "close")


async def test_queues_are_served_round_robin() -> None:
    limiter = Limiter(1, 1, queued=10)
    await limiter.acquire(("busy", ""))
    served: list[str] = []

    async def one(name: str) -> None:
        await limiter.acquire((name, ""))
        served.append(name)
        limiter.release((name, ""))

    waiting = [asyncio.ensure_future(one(name)) for name in ("a", "a", "a", "b", "c")]
    await asyncio.sleep(0)
    limiter.release(("busy", ""))
    await asyncio.gather(*waiting)
    assert served[:3] == ["a", "b", "c"]
    assert limiter.usage() == {"total": 0, "largest_user": 0, "waiting": 0}


async def test_a_large_request_is_not_starved() -> None:
    limiter = Limiter(10, 10, queued=10)
    await limiter.acquire(("a", ""), 5)
    large = asyncio.ensure_future(limiter.acquire(("b", ""), 8))
    await asyncio.sleep(0)
    limiter.release(("a", ""), 5)
    await large
    assert not limiter.try_acquire(("c", ""), 3)
    with pytest.raises(TooManyRequests):
        await limiter.acquire(("c", ""), 11)


def sweep(served: Served, seconds: float) -> None:
    """Run the front's periodic check as if this many seconds had passed."""
    now = asyncio.get_running_loop().time() + seconds
    for connection in list(served.front.connections):
        connection.check(now)


async def test_a_slow_request_becomes_long_running_and_frees_its_slot(served: Served) -> None:
    """Otherwise a few users of clusters that never finish a response would occupy all slots."""
    slow = [await served.ask_as("a"), await served.ask_as("b"), await served.ask_as("c")]
    await served.until(lambda: len(served.api.running) == 3)
    waiting = await served.ask_as("d")
    await served.until(lambda: served.front.usage()["in_flight"]["waiting"] == 1)
    sweep(served, limits.SLOT_SECONDS - 1)
    assert served.front.usage()["long_running"]["total"] == 0
    sweep(served, limits.SLOT_SECONDS + 1)
    await served.until(lambda: served.api.running[3:] == ["d"])
    usage = served.front.usage()
    assert (usage["in_flight"]["total"], usage["long_running"]["total"]) == (1, 3)
    served.api.answers.set()
    assert [(await raw.answer()).status for raw in (*slow, waiting)] == [200] * 4
    await served.until(lambda: not any(served.front.usage()[each]["total"] for each in ("in_flight", "long_running")))


async def test_slow_requests_over_the_long_running_limit_are_aborted(served: Served) -> None:
    slow = [await served.ask_as("a") for _ in range(2)]  # one long-running request is allowed
    await served.until(lambda: len(served.api.running) == 2)
    sweep(served, limits.SLOT_SECONDS + 1)
    await served.until(lambda: served.front.usage()["in_flight"]["total"] == 0)
    assert served.front.usage()["long_running"]["total"] == 1
    served.api.answers.set()
    ended = 0
    for raw in slow:
        try:
            assert (await raw.answer()).status == 200
        except (ConnectionError, EOFError, asyncio.IncompleteReadError):
            ended += 1
    assert ended == 1
