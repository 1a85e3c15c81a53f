"""Effects are performed at least once, retried while they are requested, and their results kept for the requester."""

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


class PerformerHarness:
    """A performer that fails `failures` times, and a controller that repeats its request `wanted` times."""

    def __init__(self, failures: int = 0, *, wanted: int = 1000) -> None:
        self.failures = failures
        self.wanted = wanted
        self.calls: list[float] = []
        self.woken = 0
        self.effects = Effects({"do": self._perform}, Tasks())

    async def _perform(self, arguments: Mapping[str, Any]) -> str:
        self.calls.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        if len(self.calls) <= self.failures:
            raise RuntimeError("not yet")
        return f"done with {arguments['x']}"

    def request(self) -> None:
        self.effects.perform(EFFECT, "asker", self.on_wake)

    def on_wake(self) -> None:
        self.woken += 1
        if self.woken < self.wanted and not (result := self.effects.results[EFFECT.key]).done:
            assert result.error == "RuntimeError: not yet"
            self.request()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return virtual.run(work)


def test_a_successful_effect_is_performed_once_for_many_requests() -> None:
    async def work() -> PerformerHarness:
        harness = PerformerHarness()
        for _ in range(3):
            harness.request()
        await asyncio.sleep(10)
        harness.request()
        await asyncio.sleep(10)
        return harness

    harness = run(work())
    assert len(harness.calls) == 1
    assert harness.effects.results[EFFECT.key] == EffectResult("done with 1", attempts=1)
    assert harness.woken == 1


def test_a_failing_effect_is_retried_with_backoff_until_it_succeeds() -> None:
    async def work() -> PerformerHarness:
        harness = PerformerHarness(failures=4)
        harness.request()
        await asyncio.sleep(100)
        return harness

    harness = run(work())
    assert harness.calls == pytest.approx([0, 1.1, 3.2, 7.3, 15.4])
    assert harness.effects.results[EFFECT.key] == EffectResult("done with 1", attempts=5)


def test_an_effect_that_is_no_longer_requested_is_not_retried() -> None:
    async def work() -> PerformerHarness:
        harness = PerformerHarness(failures=100, wanted=3)
        harness.request()
        await asyncio.sleep(1000)
        return harness

    assert len(run(work()).calls) == 3


def test_results_are_dropped_with_the_requesting_object_even_if_they_arrive_late() -> None:
    async def work() -> PerformerHarness:
        harness = PerformerHarness()
        harness.request()
        await asyncio.sleep(0.05)
        harness.effects.forget("asker")
        await asyncio.sleep(10)
        return harness

    harness = run(work())
    assert len(harness.effects.results) == 0


def test_forgetting_another_object_keeps_the_results() -> None:
    async def work() -> PerformerHarness:
        harness = PerformerHarness()
        harness.request()
        await asyncio.sleep(1)
        harness.effects.forget("another")
        return harness

    assert run(work()).effects.results


def test_only_the_latest_results_of_one_requester_are_kept() -> None:
    async def work() -> PerformerHarness:
        harness = PerformerHarness()
        for number in range(MAX_RESULTS + 5):
            harness.effects.perform(replace(EFFECT, key=("uid", str(number))), "asker", lambda: None)
            await asyncio.sleep(1)
        return harness

    results = run(work()).effects.results
    assert len(results) == MAX_RESULTS
    assert ("uid", "4") not in results
    assert ("uid", "5") in results


async def test_an_effect_without_a_performer_raises() -> None:
    with pytest.raises(LookupError, match="effect performer 'else' is not registered"):
        PerformerHarness().effects.perform(Effect("else", ("k",), {}, "because"), "asker", lambda: None)


# --- lost and unread results --------------------------------------------------------------------------------------

REPEATED = replace(EFFECT, repeat=True)


def test_a_repeatable_effect_is_performed_again_with_backoff() -> None:
    """A controller requests it while the object that it created is missing because a user deleted it."""

    async def work() -> PerformerHarness:
        harness = PerformerHarness()

        def request() -> None:
            if asyncio.get_running_loop().time() < 100:
                harness.effects.perform(REPEATED, "asker", request)

        request()
        await asyncio.sleep(500)
        return harness

    harness = run(work())
    delays = [later - earlier for earlier, later in itertools.pairwise(harness.calls)]
    assert delays == pytest.approx([5.1, 10.1, 20.1, 40.1])


def test_an_unread_result_is_dropped() -> None:
    """It may hold a secret, and it is out of date."""

    async def work() -> PerformerHarness:
        harness = PerformerHarness()
        harness.request()
        for _ in range(10):
            await asyncio.sleep(UNUSED_SECONDS / 2)
            assert harness.effects.results.get(EFFECT.key) is not None, "one that is looked at is kept"
        await asyncio.sleep(2 * UNUSED_SECONDS + 1)
        return harness

    harness = run(work())
    assert len(harness.effects.results) == 0
    assert not harness.effects._requests
    assert not harness.effects._requester_of


# --- errors -------------------------------------------------------------------------------------------------------


def test_a_failure_is_logged_once_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> str:
        harness = PerformerHarness(failures=5)
        harness.request()
        await asyncio.sleep(10)
        error = harness.effects.perform(EFFECT, "asker", lambda: None)
        await asyncio.sleep(500)
        return error

    assert run(work()) == "RuntimeError: not yet"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].__dict__["fields"]["error"] == "RuntimeError: not yet"


def test_a_decoder_error_contains_no_secret() -> None:
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
