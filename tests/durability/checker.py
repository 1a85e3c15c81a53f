"""Checks the guarantees of a store: compares the report before a crash with the store after it.

Guarantees: an acknowledged write exists, with its revisions; every change was requested; changes of one write exist
together or not at all; revisions only increase and are never reused; a watch, live or replayed from any revision,
returns exactly the committed history in order; every past state can be read as it was.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from herder.engine.store import Event, Key, Store

from .traffic import (
    RESOURCES,
    Acknowledged,
    Compacting,
    Failed,
    Intent,
    Line,
    Opened,
    Seen,
    Value,
    WatchStarted,
    operation_of,
)


class GuaranteeViolation(AssertionError):
    """The store violated a guarantee."""


class Fact(NamedTuple):
    """One committed change."""

    revision: int
    key: Key
    operation: str
    deleted: bool


class Checker:
    """Checks one store through any number of crashes."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        """The committed history, including compacted changes."""
        self._last_issued = 0
        self._compacted = 0

    async def check(self, store: Store, report: Sequence[Line], pick: random.Random) -> None:
        require(not [line for line in report if isinstance(line, Failed)], f"the traffic failed: {report[-1:]}")
        recovered = await replay(store, store.compacted)
        self._check_revisions(store, report)
        self._check_known([fact for fact in recovered if fact.revision <= self._last()], store.compacted)
        new = [fact for fact in recovered if fact.revision > self._last()]
        new = self._with_compacted(new, store, report)
        self._check_new(new, report)
        self.facts += new
        self._check_watches(report)
        self._check_compaction(store, report)
        await self._check_states(store, pick)
        self._last_issued = max(self._last_issued, store.revision)
        self._compacted = store.compacted

    def _last(self) -> int:
        return self.facts[-1].revision if self.facts else 0

    def _check_revisions(self, store: Store, report: Sequence[Line]) -> None:
        known_revisions = [self._last_issued]
        for line in report:
            if isinstance(line, Opened):
                require(line.revision >= self._last_issued, f"opened at {line.revision}, after {self._last_issued}")
                known_revisions.append(line.revision)
            elif isinstance(line, Acknowledged):
                known_revisions += line.revisions
            elif isinstance(line, Seen):
                known_revisions += [revision for revision, _ in line.events]
        require(
            store.revision >= max(known_revisions),
            f"revision went back to {store.revision} from {max(known_revisions)}",
        )

    def _check_known(self, recovered: list[Fact], compacted: int) -> None:
        """The history before earlier crashes must not change."""
        known = [fact for fact in self.facts if fact.revision > compacted]
        require(recovered == known, f"history changed: {difference(recovered, known)}")

    def _with_compacted(self, new: list[Fact], store: Store, report: Sequence[Line]) -> list[Fact]:
        """New history that was compacted before the crash is known only by its acknowledgements."""
        intents = {line.operation: line for line in report if isinstance(line, Intent)}
        compacted_facts = [
            Fact(revision, key, line.operation, deleted)
            for line in report
            if isinstance(line, Acknowledged)
            for revision, (key, deleted) in zip(line.revisions, intents[line.operation].changes, strict=True)
            if self._last() < revision <= store.compacted
        ]
        return sorted(compacted_facts) + new

    def _check_new(self, new: list[Fact], report: Sequence[Line]) -> None:
        require(all(a.revision < b.revision for a, b in itertools.pairwise(new)), "revisions are not rising")
        require(not new or new[0].revision > self._last_issued, "a revision was issued twice")
        intents = {line.operation: line for line in report if isinstance(line, Intent)}
        by_operation: dict[str, list[Fact]] = {}
        for fact in new:
            by_operation.setdefault(fact.operation, []).append(fact)
        for operation, facts in by_operation.items():
            require(operation in intents, f"{operation} was not requested")
            found = [(fact.key, fact.deleted) for fact in facts]
            require(found == intents[operation].changes, f"{operation} exists only in part: {found}")
            span = facts[-1].revision - facts[0].revision
            require(span == len(facts) - 1, f"{operation} is interleaved with others")
        for line in report:
            if isinstance(line, Acknowledged):
                found_at = [fact.revision for fact in by_operation.get(line.operation, [])]
                require(found_at == line.revisions, f"acknowledged at {line.revisions}, found at {found_at}: {line}")

    def _check_watches(self, report: Sequence[Line]) -> None:
        """Each watch of the crashed process received exactly the history between its start and its last event."""
        watches = {line.watch: line for line in report if isinstance(line, WatchStarted)}
        for number, watch in watches.items():
            seen = [
                event for line in report if isinstance(line, Seen) and line.watch == number for event in line.events
            ]
            if seen:
                expected = [
                    (fact.revision, fact.operation)
                    for fact in self.facts
                    if watch.since < fact.revision <= seen[-1][0]
                    and fact.key.resource == watch.resource
                    and watch.namespace in ("", fact.key.namespace)
                ]
                require(seen == expected, f"watch {watch} saw other events: {difference(seen, expected)}")

    def _check_compaction(self, store: Store, report: Sequence[Line]) -> None:
        done = [line.revision for line in report if isinstance(line, Compacting) and line.done]
        requested = [line.revision for line in report if isinstance(line, Compacting)]
        require(store.compacted >= max([self._compacted, *done]), "the compacted revision went back")
        if self.facts:  # a store killed between its first two files resumes far beyond any issued revision
            require(store.compacted <= max([self._compacted, *requested]), "more was compacted than requested")

    async def _check_states(self, store: Store, pick: random.Random) -> None:
        """The current state, a past state, and a replay from there match the history."""
        for resource in RESOURCES:
            found = [(record.key, record.revision) for record in store.list(resource)]
            require(found == self._state(resource, store.revision), f"live {resource} are wrong")
        at_revision = pick.randint(store.compacted, store.revision)
        if self.facts and pick.random() < 0.8:
            at_revision = max(store.compacted, pick.choice(self.facts).revision)
        for resource in RESOURCES:
            past = [(record.key, record.revision) for record in await store.list_at(resource, "", at_revision)]
            require(past == self._state(resource, at_revision), f"{resource} at {at_revision} are wrong")
        expected = [fact for fact in self.facts if fact.revision > at_revision]
        replayed = await replay(store, at_revision)
        require(replayed == expected, f"replay from {at_revision} is wrong: {difference(replayed, expected)}")

    def _state(self, resource: str, at_revision: int) -> list[tuple[Key, int]]:
        state: dict[Key, int] = {}
        for fact in self.facts:
            if fact.revision <= at_revision and fact.key.resource == resource:
                if fact.deleted:
                    state.pop(fact.key, None)
                else:
                    state[fact.key] = fact.revision
        return sorted(state.items(), key=lambda item: item[0].path)


async def replay(store: Store, since: int) -> list[Fact]:
    """All events after a revision, as watches return them; the content of each is verified."""
    facts = []
    for resource in RESOURCES:
        watch = store.watch(resource, since=since)
        latest: dict[Key, int] = {}
        while batch := await watch.catch_up():
            for event in batch:
                facts.append(fact_of(event))
                check_chain(event, latest, since)
        watch.close()
    return sorted(facts)


def check_chain(event: Event, latest: dict[Key, int], since: int) -> None:
    """Every event contains the previous state, on which selectors of watches depend."""
    key, previous = event.record.key, event.previous.revision if event.previous else 0
    before = latest.get(key)
    require(
        previous == before if before is not None else previous <= since, f"{event} follows {previous}, not {before}"
    )
    if event.previous is not None:
        require(msgspec.json.decode(event.previous.value, type=Value).revision == previous, f"{event} has another past")
    latest[key] = 0 if event.deleted else event.revision


def fact_of(event: Event) -> Fact:
    value = msgspec.json.decode(event.record.value, type=Value)
    require(value.revision == event.revision, f"{event} carries revision {value.revision}")
    return Fact(event.revision, event.record.key, operation_of(event.record.value), event.deleted)


def difference(found: Sequence[object], expected: Sequence[object]) -> str:
    at = next(
        (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    return f"{len(found)} instead of {len(expected)}, at {at}: {found[at : at + 2]} instead of {expected[at : at + 2]}"


def require(holds: bool, message: str) -> None:
    if not holds:
        raise GuaranteeViolation(message)
