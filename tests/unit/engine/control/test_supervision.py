"""A background task that raises is counted as a failure and restarted."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from herder.engine.control import supervision
from herder.engine.control.supervision import supervised
from herder.sim import loop as virtual


def test_a_failing_task_is_restarted_with_backoff() -> None:
    at: list[float] = []

    async def run() -> None:
        at.append(asyncio.get_running_loop().time())
        if len(at) < 5:
            raise RuntimeError("a bug")

    async def main() -> None:
        await supervised(run, name="test")

    before = supervision.FAILURES["test"]
    virtual.run(main())
    delays = [round(later - earlier, 3) for earlier, later in itertools.pairwise(at)]
    assert delays == [0.1, 0.2, 0.4, 0.8]
    assert supervision.FAILURES["test"] - before == 4


@pytest.mark.parametrize("failures", [1, 10, 5_000])
def test_the_backoff_is_bounded(failures: int) -> None:
    assert supervision.backoff(failures) <= supervision.RETRY_LIMIT
