"""Effects are performed at least once, retried while they are wanted, and their results kept for who asked."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

import pytest

from herder.engine.control.tasks import Tasks
from herder.engine.meta.errors import NotFound
from herder.engine.runtime.decision import Effect, EffectResult
from herder.engine.runtime.effects import MAX_RESULTS, UNUSED_SECONDS, Effects, error_text
from herder.sim import loop as virtual

EFFECT = Effect("do", ("uid", "1", "step"), {"x": 1}, "because")


class Performing:
    """A performer that fails as often as told, and a controller that asks again for as long as it wants to."""

    def __init__(self, failures: int = 0, *, wanted: int = 1000) -> None:
        self.failures = failures
        self.wanted = wanted
        self.calls: list[float] = []
        self.woken = 0
        self.effects = Effects({"do": self._do}, Tasks())

    async def _do(self, arguments: Mapping[str, Any]) -> str:
        self.calls.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        if len(self.calls) <= self.failures:
            raise RuntimeError("not yet")
        return f"done with {arguments['x']}"

    def ask(self) -> None:
        self.effects.perform(EFFECT, "asker", self.woke)

    def woke(self) -> None:
        self.woken += 1
        if self.woken < self.wanted and not (result := self.effects.results[EFFECT.key]).done:
            assert result.error == "RuntimeError: not yet"
            self.ask()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return virtual.run(work)


def test_one_that_works_is_performed_once_however_often_it_is_asked_for() -> None:
    async def work() -> Performing:
        performing = Performing()
        for _ in range(3):
            performing.ask()
        await asyncio.sleep(10)
        performing.ask()
        await asyncio.sleep(10)
        return performing

    performing = run(work())
    assert len(performing.calls) == 1
    assert performing.effects.results[EFFECT.key] == EffectResult("done with 1", attempts=1)
    assert performing.woken == 1


def test_one_that_fails_is_tried_again_with_growing_pauses_until_it_works() -> None:
    async def work() -> Performing:
        performing = Performing(failures=4)
        performing.ask()
        await asyncio.sleep(100)
        return performing

    performing = run(work())
    assert performing.calls == pytest.approx([0, 1.1, 3.2, 7.3, 15.4])
    assert performing.effects.results[EFFECT.key] == EffectResult("done with 1", attempts=5)


def test_one_that_is_no_longer_asked_for_is_not_tried_again() -> None:
    async def work() -> Performing:
        performing = Performing(failures=100, wanted=3)
        performing.ask()
        await asyncio.sleep(1000)
        return performing

    assert len(run(work()).calls) == 3


def test_results_go_with_the_object_that_asked_also_those_that_come_late() -> None:
    async def work() -> Performing:
        performing = Performing()
        performing.ask()
        await asyncio.sleep(0.05)
        performing.effects.forget("asker")
        await asyncio.sleep(10)
        return performing

    performing = run(work())
    assert len(performing.effects.results) == 0


def test_another_objects_departure_leaves_results_alone() -> None:
    async def work() -> Performing:
        performing = Performing()
        performing.ask()
        await asyncio.sleep(1)
        performing.effects.forget("another")
        return performing

    assert run(work()).effects.results


def test_of_one_that_is_asked_for_under_ever_new_keys_only_the_latest_results_are_kept() -> None:
    async def work() -> Performing:
        performing = Performing()
        for number in range(MAX_RESULTS + 5):
            performing.effects.perform(replace(EFFECT, key=("uid", str(number))), "asker", lambda: None)
            await asyncio.sleep(1)
        return performing

    results = run(work()).effects.results
    assert len(results) == MAX_RESULTS
    assert ("uid", "4") not in results
    assert ("uid", "5") in results


async def test_one_that_nobody_performs_is_an_error() -> None:
    with pytest.raises(LookupError, match="effect performer 'else' is not registered"):
        Performing().effects.perform(Effect("else", ("k",), {}, "because"), "asker", lambda: None)


# --- what was done and is gone ----------------------------------------------------------------------------------------

REPEATED = replace(EFFECT, repeat=True)


def test_one_that_is_requested_although_it_is_done_is_performed_again_ever_more_slowly() -> None:
    """It is requested while what it created is missing: somebody deleted it."""

    async def work() -> Performing:
        performing = Performing()

        def ask() -> None:
            if asyncio.get_running_loop().time() < 100:
                performing.effects.perform(REPEATED, "asker", ask)

        ask()
        await asyncio.sleep(500)
        return performing

    performing = run(work())
    pauses = [later - earlier for earlier, later in itertools.pairwise(performing.calls)]
    assert pauses == pytest.approx([5.1, 10.1, 20.1, 40.1])


def test_a_result_that_nobody_looks_at_is_dropped() -> None:
    """It may hold a secret, and is out of date."""

    async def work() -> Performing:
        performing = Performing()
        performing.ask()
        for _ in range(10):
            await asyncio.sleep(UNUSED_SECONDS / 2)
            assert performing.effects.results.get(EFFECT.key) is not None, "one that is looked at is kept"
        await asyncio.sleep(2 * UNUSED_SECONDS + 1)
        return performing

    performing = run(work())
    assert len(performing.effects.results) == 0
    assert not performing.effects._requests
    assert not performing.effects._requester_of


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_failure_is_logged_once_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> str:
        performing = Performing(failures=5)
        performing.ask()
        await asyncio.sleep(10)
        error = performing.effects.perform(EFFECT, "asker", lambda: None)
        await asyncio.sleep(500)
        return error

    assert run(work()) == "RuntimeError: not yet"
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert told[0].__dict__["fields"]["error"] == "RuntimeError: not yet"


def test_an_error_of_a_decoder_tells_no_secret() -> None:
    def fail(decode: Callable[[], Any]) -> str:
        try:
            decode()
        except Exception as error:
            return error_text(error)
        raise AssertionError

    for decode in (
        lambda: int("hunter2"),
        lambda: json.loads('{"password": hunter2'),
        lambda: {}["hunter2"],
        lambda: b"\xffhunter2".decode(),
    ):
        text = fail(decode)
        assert "hunter2" not in text
        assert " at " in text
    assert fail(_refuse) == 'NotFound: secrets "a" not found'


def _refuse() -> None:
    raise NotFound('secrets "a" not found')
