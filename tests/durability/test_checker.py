"""Every kind of violated guarantee is detected by the checker."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from herder.engine.store import Key, Put, Store

from .checker import Checker, GuaranteeViolation
from .traffic import Acknowledged, Compacting, Failed, Intent, Line, Opened, Seen, WatchStarted, encoder

ONE = Key("pods", "one", "n1")
TWO = Key("pods", "one", "n2")


async def store_and_report() -> tuple[Store, list[Line]]:
    """A store, and a matching report."""
    store = Store.open(None, clock=lambda: 0.0)
    report: list[Line] = [Opened(0, 0), WatchStarted(0, "pods", "", 0)]
    for operation, keys in {"a": [ONE], "b": [ONE, TWO], "c": [TWO]}.items():
        report.append(Intent(operation, [(key, False) for key in keys]))
        records = await store.write(*(Put(key, encoder(operation, "")) for key in keys))
        revisions = [record.revision for record in records]
        report += [Acknowledged(operation, revisions), Seen(0, [(revision, operation) for revision in revisions])]
    return store, report


async def test_a_correct_store_passes_repeatedly() -> None:
    store, report = await store_and_report()
    checker = Checker()
    await checker.check(store, report, random.Random(1))
    await checker.check(store, [Opened(4, 0)], random.Random(2))
    assert [fact.revision for fact in checker.facts] == [1, 2, 3, 4]


VIOLATIONS: dict[str, Callable[[list[Line]], list[Line]]] = {
    "a lost write": lambda report: [*report, Intent("d", [(ONE, False)]), Acknowledged("d", [5])],
    "a write at another revision": lambda report: [
        Acknowledged("c", [3]) if line == Acknowledged("c", [4]) else line for line in report
    ],
    "a write that was not requested": lambda report: [
        line for line in report if getattr(line, "operation", "") != "c" and line != Seen(0, [(4, "c")])
    ],
    "half of a write": lambda report: [
        Intent("b", [(ONE, False), (TWO, False), (Key("pods", "one", "n3"), False)])
        if isinstance(line, Intent) and line.operation == "b"
        else line
        for line in report
        if line != Acknowledged("b", [2, 3])
    ],
    "an event that a watch missed": lambda report: [line for line in report if line != Seen(0, [(2, "b"), (3, "b")])],
    "an event received twice": lambda report: [*report, Seen(0, [(4, "c")])],
    "events out of order": lambda report: [
        Seen(0, [(3, "b"), (2, "b")]) if isinstance(line, Seen) and len(line.events) == 2 else line for line in report
    ],
    "an event from nowhere": lambda report: [*report, Seen(0, [(9, "z")])],
    "a compaction undone": lambda report: [*report, Compacting(3, done=True)],
    "traffic that failed": lambda report: [*report, Failed("it broke")],
}


@pytest.mark.parametrize("violation", VIOLATIONS)
async def test_the_checker_detects_violations(violation: str) -> None:
    store, report = await store_and_report()
    with pytest.raises(GuaranteeViolation):
        await Checker().check(store, VIOLATIONS[violation](report), random.Random(1))


async def test_the_checker_detects_changed_history() -> None:
    store, report = await store_and_report()
    checker = Checker()
    await checker.check(store, report, random.Random(1))
    store._database.connection.execute("DELETE FROM revisions WHERE revision = 1")
    other = Store(store._database, None, clock=lambda: 0.0, inline=True)
    with pytest.raises(GuaranteeViolation, match="history changed"):
        await checker.check(other, [], random.Random(1))


async def test_the_checker_detects_decreasing_revisions() -> None:
    store, report = await store_and_report()
    checker = Checker()
    await checker.check(store, report, random.Random(1))
    with pytest.raises(GuaranteeViolation, match="opened at 3"):
        await checker.check(store, [Opened(3, 0)], random.Random(1))
