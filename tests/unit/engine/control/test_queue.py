"""The work queue hands out each key once, never to two workers, and shares turns between groups."""

from __future__ import annotations

import asyncio

import pytest

from herder.engine.control.queue import BACKGROUND, BACKOFF_FIRST, URGENT, WorkQueue
from herder.sim import loop as virtual


async def drain(queue: WorkQueue[str], count: int) -> list[str]:
    keys = []
    for _ in range(count):
        key = await queue.take()
        keys.append(key)
        queue.finished(key)
    return keys


async def test_a_key_added_many_times_is_handed_out_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(5):
        queue.add("a")
    assert await drain(queue, 1) == ["a"]
    assert len(queue) == 0


async def test_a_key_added_while_it_is_processed_is_handed_out_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    key = await queue.take()
    queue.add("a")
    assert len(queue) == 0, "never two workers on one key"
    queue.finished(key)
    assert await queue.take() == "a"


async def test_urgent_keys_are_handed_out_first_and_a_queued_key_can_be_promoted() -> None:
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


def test_the_earliest_of_several_delays_applies() -> None:
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


async def test_closing_the_queue_cancels_waiting_workers() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_closed_queue_hands_out_no_queued_keys() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.close()
    with pytest.raises(asyncio.CancelledError):
        await queue.take()


async def test_the_wake_up_of_a_cancelled_worker_passes_to_another() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = asyncio.ensure_future(queue.take()), asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "a"


async def test_a_forgotten_key_is_not_delivered_later() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    queue.forget("a")
    await asyncio.sleep(0.05)
    assert len(queue) == 0


# --- worker limits per group ---------------------------------------------------------------------------------


def queue_of_hung_group(workers: int) -> WorkQueue[str]:
    queue: WorkQueue[str] = WorkQueue(group_of=lambda key: key.split("/")[0], workers=workers)
    for number in range(workers * 3):
        queue.add(f"hung/{number}")
    return queue


async def take_all(queue: WorkQueue[str], workers: int) -> list[str]:
    """Return the keys that this many workers receive if none of them finishes."""
    takes = [asyncio.ensure_future(queue.take()) for _ in range(workers)]
    done, pending = await asyncio.wait(takes, timeout=0.01)
    for worker in pending:
        worker.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return sorted(worker.result() for worker in done)


@pytest.mark.parametrize(("workers", "half"), [(8, 4), (3, 1), (2, 1)])
async def test_a_group_has_at_most_half_of_the_workers_while_others_wait(workers: int, half: int) -> None:
    queue = queue_of_hung_group(workers)
    for number in range(workers * 3):
        queue.add(f"other-{number % 4}/{number}")
    keys = await take_all(queue, workers)
    assert len(keys) == workers
    assert sum(key.startswith("hung/") for key in keys) <= half


@pytest.mark.parametrize(("workers", "expected"), [(8, 7), (3, 2), (2, 1), (1, 1)])
async def test_a_single_group_leaves_one_worker_free(workers: int, expected: int) -> None:
    queue = queue_of_hung_group(workers)
    keys = await take_all(queue, workers)
    assert len(keys) == expected
    queue.add("other/1")
    assert await take_all(queue, 1) == ["other/1"]


async def test_a_key_over_its_groups_limit_is_handed_out_when_a_worker_finishes() -> None:
    queue = queue_of_hung_group(2)
    first = await queue.take()
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.finished(first)
    assert (await waiting).startswith("hung/")
