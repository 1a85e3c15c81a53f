"""The work queue hands out each key once, never to two workers, and shares turns between groups."""

from __future__ import annotations

import asyncio

import pytest

from herder.engine.control.queue import BACKGROUND, BACKOFF_FIRST, URGENT, WorkQueue
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


# --- no group has all the workers -------------------------------------------------------------------------------


def hung_and_others(workers: int) -> WorkQueue[str]:
    queue: WorkQueue[str] = WorkQueue(group_of=lambda key: key.split("/")[0], workers=workers)
    for number in range(workers * 3):
        queue.add(f"hung/{number}")
    return queue


async def take_all(queue: WorkQueue[str], workers: int) -> list[str]:
    """What this many workers get who never come back."""
    takers = [asyncio.ensure_future(queue.take()) for _ in range(workers)]
    done, pending = await asyncio.wait(takers, timeout=0.01)
    for taker in pending:
        taker.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return sorted(taker.result() for taker in done)


@pytest.mark.parametrize(("workers", "half"), [(8, 4), (3, 1), (2, 1)])
async def test_a_group_has_at_most_half_of_the_workers_while_others_wait(workers: int, half: int) -> None:
    queue = hung_and_others(workers)
    for number in range(workers * 3):
        queue.add(f"other-{number % 4}/{number}")
    taken = await take_all(queue, workers)
    assert len(taken) == workers
    assert sum(key.startswith("hung/") for key in taken) <= half


@pytest.mark.parametrize(("workers", "most"), [(8, 7), (3, 2), (2, 1), (1, 1)])
async def test_a_group_alone_leaves_one_worker_to_whoever_comes(workers: int, most: int) -> None:
    queue = hung_and_others(workers)
    taken = await take_all(queue, workers)
    assert len(taken) == most
    queue.add("other/1")
    assert await take_all(queue, 1) == ["other/1"]


async def test_a_key_that_waits_for_its_groups_share_is_handed_out_when_there_is_one() -> None:
    queue = hung_and_others(2)
    first = await queue.take()
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.finished(first)
    assert (await waiting).startswith("hung/")
