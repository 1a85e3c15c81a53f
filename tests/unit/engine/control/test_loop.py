"""Workers of a control loop survive any exception: it is logged with its object, counted, and the key is retried."""

from __future__ import annotations

import asyncio
import logging

import pytest

from herder.app.host.log_format import JsonFormatter
from herder.engine.control import metrics
from herder.engine.control.loop import ORDINARY_CONFLICTS, ControlLoop, Result, describe
from herder.engine.control.metrics import LoopMetrics, Metrics
from herder.engine.logs import get_logger
from herder.engine.meta.errors import Conflict
from herder.sim import loop as virtual
from tests.support.manager.provisioned import conflicts_in

log = get_logger("herder.test")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class LoopHarness:
    """Run a loop whose reconciler raises the next error given for a key, one for each attempt."""

    def __init__(self, errors: dict[str, list[BaseException]]) -> None:
        self.errors = errors
        self.reconciled: list[str] = []
        self.failed: list[tuple[str, str]] = []
        self.metrics = LoopMetrics("test")
        self.loop: ControlLoop[str] = ControlLoop(
            "test", self.reconcile, failed=lambda key, error: self.failed.append((key, describe(error))),
            metrics=self.metrics,
        )  # fmt: skip

    async def reconcile(self, key: str) -> None:
        self.reconciled.append(key)
        if self.errors.get(key):
            raise self.errors[key].pop(0)

    async def run(self, *keys: str, seconds: float = 1000.0) -> None:
        running = asyncio.ensure_future(self.loop.run())
        for key in keys:
            self.loop.add(key)
        await asyncio.sleep(seconds)
        assert not running.done()
        running.cancel()


@pytest.mark.parametrize(
    "error",
    [KeyError("metadata"), RecursionError(), MemoryError(), Unprintable(), asyncio.CancelledError(), TimeoutError()],
    ids=lambda error: type(error).__name__,
)
def test_a_failing_key_is_retried_and_does_not_block_others(error: BaseException) -> None:
    harness = LoopHarness({"bad": [error, error]})
    virtual.run(harness.run("bad", "good"))
    assert harness.reconciled == ["bad", "good", "bad", "bad"]
    assert harness.metrics.results == {"success": 2, "requeue": 0, "error": 2}
    assert harness.failed == [("bad", describe(error))] * 2


def test_an_error_without_text_is_described_by_its_type() -> None:
    assert describe(Unprintable()) == "Unprintable"


def test_a_failing_failure_handler_does_not_stop_the_worker() -> None:
    attempts: list[str] = []

    async def reconcile(key: str) -> None:
        attempts.append(key)
        if len(attempts) == 1:
            raise KeyError(key)

    def failed(_key: str, _error: BaseException) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        loop: ControlLoop[str] = ControlLoop("test", reconcile, failed=failed, metrics=LoopMetrics("test"))
        running = asyncio.ensure_future(loop.run())
        loop.add("a")
        await asyncio.sleep(10)
        running.cancel()

    virtual.run(main())
    assert attempts == ["a", "a"]


def test_conflicts_are_requeued_silently_up_to_a_limit() -> None:
    conflicts: list[BaseException] = [Conflict("the object has been modified") for _ in range(ORDINARY_CONFLICTS + 1)]
    harness = LoopHarness({"a": conflicts})
    virtual.run(harness.run("a"))
    assert harness.metrics.results == {"success": 1, "requeue": ORDINARY_CONFLICTS + 1, "error": 0}
    assert harness.failed == [("a", "the object has been modified")]


def test_conflicts_are_counted_in_the_log_of_a_manager(caplog: pytest.LogCaptureFixture) -> None:
    """`assert_few_conflicts` reads the log of a manager: it must find the conflicts that this loop reports there."""
    harness = LoopHarness({"ns/a": [Conflict("the object has been modified")], "other/b": [Conflict("modified")]})
    with caplog.at_level(logging.DEBUG, "herder.engine.control.loop"):
        virtual.run(harness.run("ns/a", "other/b"))
    lines = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert [(each["controller"], each["object"]) for each in conflicts_in(lines, "ns")] == [("test", "ns/a")]


def test_a_cancelled_worker_stops() -> None:
    async def reconcile(_key: str) -> None:
        await asyncio.sleep(1e6)

    async def main() -> bool:
        loop: ControlLoop[str] = ControlLoop("test", reconcile, metrics=LoopMetrics("test"))
        worker = asyncio.ensure_future(loop.work())
        loop.add("a")
        await asyncio.sleep(1)
        worker.cancel()
        await asyncio.wait([worker])
        return worker.cancelled()

    assert virtual.run(main())


def test_a_key_added_while_it_is_reconciled_is_reconciled_again_by_one_worker() -> None:
    running, max_running, done = 0, 0, 0

    async def main() -> None:
        async def reconcile(key: str) -> None:
            nonlocal running, max_running, done
            running += 1
            max_running = max(max_running, running)
            if not done:
                loop.add(key)
            await asyncio.sleep(1)
            running -= 1
            done += 1

        loop: ControlLoop[str] = ControlLoop("test", reconcile, workers=4, metrics=LoopMetrics("test"))
        work = asyncio.ensure_future(loop.run())
        loop.add("a")
        await asyncio.sleep(5)
        work.cancel()

    virtual.run(main())
    assert (done, max_running) == (2, 1)


def test_all_workers_serve_keys_of_one_group() -> None:
    max_running, running = 0, 0

    async def main() -> None:
        async def reconcile(_key: int) -> None:
            nonlocal max_running, running
            running += 1
            max_running = max(max_running, running)
            await asyncio.sleep(1)
            running -= 1

        loop: ControlLoop[int] = ControlLoop("test", reconcile, workers=4, metrics=LoopMetrics("test"))
        work = asyncio.ensure_future(loop.run())
        for key in range(8):
            loop.add(key)
        await asyncio.sleep(5)
        work.cancel()

    virtual.run(main())
    assert max_running == 4


def test_a_key_is_requeued_after_the_requested_delay() -> None:
    at: list[float] = []

    async def reconcile(_key: str) -> Result:
        at.append(asyncio.get_running_loop().time())
        return Result(requeue_after=60.0)

    async def main() -> None:
        loop: ControlLoop[str] = ControlLoop("test", reconcile, metrics=LoopMetrics("test"))
        work = asyncio.ensure_future(loop.run())
        loop.add("a")
        await asyncio.sleep(150)
        work.cancel()

    virtual.run(main())
    assert [round(each - at[0]) for each in at] == [0, 60, 120]


def test_other_tasks_run_between_keys_that_never_await() -> None:
    order: list[str] = []

    async def reconcile(key: int) -> None:
        order.append(str(key))

    async def other() -> None:
        order.append("other")

    async def main() -> None:
        loop: ControlLoop[int] = ControlLoop("test", reconcile, metrics=LoopMetrics("test"))
        for key in range(100):
            loop.add(key)
        work = asyncio.ensure_future(loop.run())
        await asyncio.sleep(0)
        asyncio.ensure_future(other())  # noqa: RUF006 - it ends at once
        await asyncio.sleep(1)
        work.cancel()

    virtual.run(main())
    assert order.index("other") < 10


def test_log_lines_carry_controller_object_and_reconcile_id(caplog: pytest.LogCaptureFixture) -> None:
    async def reconcile(key: str) -> None:
        log.info("first")
        await asyncio.gather(asyncio.create_task(started()))
        log.info("last", object="another")

    async def started() -> None:
        log.info("in a task")

    async def main() -> None:
        loop: ControlLoop[str] = ControlLoop("test", reconcile, metrics=LoopMetrics("test"))
        work = asyncio.ensure_future(loop.run())
        loop.add("default/a")
        await asyncio.sleep(1)
        loop.add("default/b")
        await asyncio.sleep(1)
        work.cancel()
        log.info("outside")

    with caplog.at_level(logging.INFO):
        virtual.run(main())
    records = [record for record in caplog.records if record.name == "herder.test"]
    lines = [(record.getMessage(), record.__dict__["fields"]) for record in records]
    ids = [fields.get("reconcile_id") for _, fields in lines]
    assert [(text, fields.get("controller"), fields.get("object")) for text, fields in lines[:3]] == [
        ("first", "test", "default/a"),
        ("in a task", "test", "default/a"),
        ("last", "test", "another"),  # a field of the log call takes precedence
    ]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert lines[-1] == ("outside", {})


def test_a_slow_reconcile_is_logged_with_its_object(caplog: pytest.LogCaptureFixture) -> None:
    async def reconcile(_key: str) -> None:
        await asyncio.sleep(12)

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        loop: ControlLoop[str] = ControlLoop("test", reconcile, metrics=LoopMetrics("test"), stopwatch=clock)
        work = asyncio.ensure_future(loop.run())
        loop.add("default/a")
        await asyncio.sleep(20)
        work.cancel()

    virtual.run(main())
    (record,) = [record for record in caplog.records if record.getMessage() == "slow reconcile"]
    fields = record.__dict__["fields"]
    assert (fields["controller"], fields["object"], fields["seconds"]) == ("test", "default/a", 12.0)


def test_metrics_match_controller_runtime() -> None:
    harness = Metrics()
    loop = harness.of("widgets")
    for seconds in (0.004, 0.005, 3.0, 20.0):
        loop.observe("success", seconds)
    loop.observe("error", 0.1)
    text = harness.render().decode()
    for line in (
        "# TYPE controller_runtime_reconcile_total counter",
        'controller_runtime_reconcile_total{controller="widgets",result="success"} 4.0',
        'controller_runtime_reconcile_total{controller="widgets",result="requeue"} 0.0',
        'controller_runtime_reconcile_total{controller="widgets",result="error"} 1.0',
        "# TYPE controller_runtime_reconcile_time_seconds histogram",
        'controller_runtime_reconcile_time_seconds_bucket{controller="widgets",le="0.005"} 2.0',
        'controller_runtime_reconcile_time_seconds_bucket{controller="widgets",le="5.0"} 4.0',
        'controller_runtime_reconcile_time_seconds_bucket{controller="widgets",le="+Inf"} 5.0',
        'controller_runtime_reconcile_time_seconds_count{controller="widgets"} 5.0',
    ):
        assert line in text.splitlines(), line


def test_metrics_of_loops_with_the_same_name_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_PROCESS_LOOPS", {})

    async def reconcile(_key: str) -> None:
        return None

    async def main() -> str:
        loops = [ControlLoop("garbage-collector", reconcile) for _ in range(2)]
        for loop in loops:
            loop.add("a")
        text = Metrics().render().decode()
        assert 'workqueue_depth{name="garbage-collector"} 2.0' in text
        work = [asyncio.ensure_future(loop.run()) for loop in loops]
        await asyncio.sleep(1)
        for each in work:
            each.cancel()
        return Metrics().render().decode()

    text = virtual.run(main())
    assert 'controller_runtime_reconcile_total{controller="garbage-collector",result="success"} 2.0' in text
