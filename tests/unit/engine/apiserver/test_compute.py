"""Large requests are processed one at a time per user, and a few at a time in total."""

from __future__ import annotations

import asyncio

import pytest

from herder.engine.apiserver.compute import MAX_LARGE_REQUESTS, MAX_WAITING_PER_USER, ThreadExecutor
from herder.engine.meta.errors import TooManyRequests
from herder.engine.meta.work import metered
from herder.engine.patch.fieldpath.path_element import value_element


class Requests:
    """Large requests that stay in progress until the test ends them."""

    def __init__(self) -> None:
        self.executor = ThreadExecutor()
        self.processed: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def send(self, *names: str) -> None:
        """Send requests; the user is the first letter of the name."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.ensure_future(self._process(name))
        await self._settle()

    async def _process(self, name: str) -> None:
        async with self.executor.large_request(name[0]):
            self.processed.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await self._settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_user_has_one_large_request_at_a_time_and_delays_no_other_user() -> None:
    requests = Requests()
    await requests.send("a1", "a2", "a3", "b1")
    assert requests.processed == ["a1", "b1"]
    await requests.end("a1")
    assert requests.processed == ["a1", "b1", "a2"]
    await requests.end("b1")
    assert requests.processed == ["a1", "b1", "a2"]
    await requests.end("a2")
    assert requests.processed[-1] == "a3"
    await requests.end("a3")


async def test_users_take_turns_when_all_slots_are_in_use() -> None:
    requests = Requests()
    users = [chr(ord("a") + number) for number in range(MAX_LARGE_REQUESTS + 2)]
    await requests.send(*(f"{user}{number}" for user in users for number in (1, 2)))
    assert requests.processed == [f"{user}1" for user in users[:MAX_LARGE_REQUESTS]]
    await requests.end("a1")
    assert requests.processed[-1] == f"{users[MAX_LARGE_REQUESTS]}1", (
        "the second request of a waits for all users' first"
    )
    await requests.end("b1")
    assert requests.processed[-1] == f"{users[MAX_LARGE_REQUESTS + 1]}1"
    await requests.end("c1")
    assert requests.processed[-1] == "a2"
    for task in requests.tasks.values():
        task.cancel()
    await asyncio.wait(requests.tasks.values())


@pytest.mark.parametrize("cancelled", ["a1", "a2"])
async def test_clients_that_disconnect_free_their_slot(cancelled: str) -> None:
    requests = Requests()
    await requests.send("a1", "a2", "a3")
    await requests.cancel(cancelled)
    if cancelled == "a2":
        await requests.end("a1")
        assert requests.processed == ["a1", "a3"]
    else:
        assert requests.processed == ["a1", "a2"]
        await requests.end("a2")
    await requests.end("a3")
    await requests.send("a4")
    assert requests.processed[-1] == "a4"
    await requests.end("a4")


async def test_a_user_with_too_many_queued_requests_is_rejected() -> None:
    requests = Requests()
    await requests.send(*(f"a{number}" for number in range(MAX_WAITING_PER_USER + 1)))
    await requests.send("a-last")
    with pytest.raises(TooManyRequests):
        await requests.tasks["a-last"]
    await requests.send("b1")
    assert requests.processed[-1] == "b1"
    for task in requests.tasks.values():
        task.cancel()
    await asyncio.wait(requests.tasks.values())


def test_parts_of_large_documents_are_not_cached() -> None:
    assert value_element("a small one") is value_element("a small one")
    with metered(1_000, large=True):
        assert value_element("of a large one") is not value_element("of a large one")
