"""The work queue hands out each key once, never to two workers, and shares turns between groups."""

from __future__ import annotations

import asyncio

import pytest

from herder.engine.runtime.queue import BACKGROUND, BACKOFF_FIRST, URGENT, WorkQueue
from herder.sim import loop as virtual


async def drain(queue: WorkQueue[str], count: int) -> list[str]:
    taken = []
    for _ in range(count):
        key = await queue.take()
        taken.append(key)
        queue.finished(key)
    return taken


async def test_a_key_added_many_times_is_handed_out_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(5):
        queue.add("a")
    assert await drain(queue, 1) == ["a"]
    assert len(queue) == 0


async def test_a_key_that_comes_back_while_worked_on_is_handed_out_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    key = await queue.take()
    queue.add("a")
    assert len(queue) == 0, "never two workers on one key"
    queue.finished(key)
    assert await queue.take() == "a"


async def test_urgent_keys_overtake_and_a_waiting_key_can_be_promoted() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("background", BACKGROUND)
    queue.add("normal")
    queue.add("later-urgent", BACKGROUND)
    queue.add("later-urgent", URGENT)
    assert await drain(queue, 3) == ["later-urgent", "normal", "background"]


async def test_groups_take_turns_so_a_busy_cluster_does_not_starve_a_quiet_one() -> None:
    queue: WorkQueue[str] = WorkQueue(group_of=lambda key: key[0])
    for number in range(3):
        queue.add(f"b{number}")
    queue.add("q0")
    assert await drain(queue, 4) == ["b0", "q0", "b1", "b2"]


def test_failures_back_off_exponentially_and_success_forgets_them() -> None:
    async def work() -> list[float]:
        queue: WorkQueue[str] = WorkQueue()
        delays = [queue.retry("a") for _ in range(4)]
        queue.succeeded("a")
        return [*delays, queue.retry("a")]

    assert virtual.run(work()) == [BACKOFF_FIRST * 2**n for n in (0, 1, 2, 3, 0)]


def test_of_several_delays_the_earliest_holds() -> None:
    async def work() -> tuple[float, int]:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 60)
        queue.add_after("a", 5)
        queue.add_after("a", 30)
        await queue.take()
        queue.finished("a")
        at = asyncio.get_running_loop().time()
        await asyncio.sleep(120)
        return at, len(queue)

    assert virtual.run(work()) == (5.0, 0)


async def test_closing_ends_waiting_workers() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_closed_queue_hands_out_nothing_more_though_keys_wait() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.close()
    with pytest.raises(asyncio.CancelledError):
        await queue.take()


async def test_a_wake_up_that_a_cancelled_worker_got_goes_to_another() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = asyncio.ensure_future(queue.take()), asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "a"


async def test_what_is_forgotten_is_not_delivered_later() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    queue.forget("a")
    await asyncio.sleep(0.05)
    assert len(queue) == 0
