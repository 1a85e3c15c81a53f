"""Background work survives any exception: it is counted and tried again, and holds up no other."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from herder.engine import supervision
from herder.engine.supervision import RetryQueue, supervised
from herder.sim import loop as virtual


def test_a_task_that_fails_is_started_again_ever_more_slowly() -> None:
    at: list[float] = []

    async def run() -> None:
        at.append(asyncio.get_running_loop().time())
        if len(at) < 5:
            raise RuntimeError("a bug")

    async def main() -> None:
        await supervised(run, name="test")

    before = supervision.FAILURES["test"]
    virtual.run(main())
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(at)]
    assert pauses == [0.1, 0.2, 0.4, 0.8]
    assert supervision.FAILURES["test"] - before == 4


def test_a_key_that_fails_holds_up_no_other_and_is_tried_again() -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        handled.append(key)
        if key == "bad" and handled.count("bad") < 3:
            raise KeyError("metadata")

    async def main() -> None:
        queue = RetryQueue(handle, name="test")
        running = asyncio.ensure_future(queue.run())
        queue.add("bad")
        queue.add("good")
        await asyncio.sleep(10)
        assert handled == ["bad", "good", "bad", "bad"]
        assert not running.done()
        running.cancel()

    virtual.run(main())


def test_a_key_added_while_it_is_handled_is_handled_again_by_one_worker() -> None:
    at_once, most = 0, 0

    async def handle(key: str) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if queue_of[0] is not None:
            queue, queue_of[0] = queue_of[0], None
            queue.add(key)
        await asyncio.sleep(1)
        at_once -= 1
        done.append(key)

    done: list[str] = []
    queue_of: list[RetryQueue[str] | None] = []

    async def main() -> None:
        queue = RetryQueue(handle, name="test", workers=4)
        queue_of.append(queue)
        running = asyncio.ensure_future(queue.run())
        queue.add("a")
        await asyncio.sleep(5)
        running.cancel()

    virtual.run(main())
    assert (done, most) == (["a", "a"], 1)


@pytest.mark.parametrize("failures", [1, 10, 5_000])
def test_the_pause_is_bounded(failures: int) -> None:
    assert supervision.backoff(failures) <= supervision.RETRY_LIMIT
