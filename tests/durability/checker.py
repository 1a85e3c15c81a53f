"""Says whether a store kept its promises: compares what was reported before a crash with what is there after it.

Promises: an acknowledged write is there, with its revisions; nothing is there that nobody asked for; changes of one
write are there together or not at all; revisions only rise and are never given out again; a watch, live or replayed
from any revision, tells exactly the committed history in order; every past state can be read as it was.
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
    Watching,
    operation_of,
)


class Broken(AssertionError):
    """A promise was not kept."""


class Fact(NamedTuple):
    """One committed change."""

    revision: int
    key: Key
    operation: str
    deleted: bool


class Checker:
    """Follows one store through any number of crashes."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        """The committed history, also of what was compacted since."""
        self._given_out = 0
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
        self._given_out = max(self._given_out, store.revision)
        self._compacted = store.compacted

    def _last(self) -> int:
        return self.facts[-1].revision if self.facts else 0

    def _check_revisions(self, store: Store, report: Sequence[Line]) -> None:
        promised = [self._given_out]
        for line in report:
            if isinstance(line, Opened):
                require(line.revision >= self._given_out, f"opened at {line.revision}, after {self._given_out}")
                promised.append(line.revision)
            elif isinstance(line, Acknowledged):
                promised += line.revisions
            elif isinstance(line, Seen):
                promised += [revision for revision, _ in line.events]
        require(store.revision >= max(promised), f"revision went back to {store.revision} from {max(promised)}")

    def _check_known(self, recovered: list[Fact], compacted: int) -> None:
        """What earlier crashes left must still be the same."""
        known = [fact for fact in self.facts if fact.revision > compacted]
        require(recovered == known, f"history changed: {difference(recovered, known)}")

    def _with_compacted(self, new: list[Fact], store: Store, report: Sequence[Line]) -> list[Fact]:
        """New history that was compacted before the crash is only known by its acknowledgements."""
        intents = {line.operation: line for line in report if isinstance(line, Intent)}
        gone = [
            Fact(revision, key, line.operation, deleted)
            for line in report
            if isinstance(line, Acknowledged)
            for revision, (key, deleted) in zip(line.revisions, intents[line.operation].changes, strict=True)
            if self._last() < revision <= store.compacted
        ]
        return sorted(gone) + new

    def _check_new(self, new: list[Fact], report: Sequence[Line]) -> None:
        require(all(a.revision < b.revision for a, b in itertools.pairwise(new)), "revisions are not rising")
        require(not new or new[0].revision > self._given_out, "a revision was given out twice")
        intents = {line.operation: line for line in report if isinstance(line, Intent)}
        by_operation: dict[str, list[Fact]] = {}
        for fact in new:
            by_operation.setdefault(fact.operation, []).append(fact)
        for operation, facts in by_operation.items():
            require(operation in intents, f"nobody asked for {operation}")
            found = [(fact.key, fact.deleted) for fact in facts]
            require(found == intents[operation].changes, f"{operation} is there in part: {found}")
            span = facts[-1].revision - facts[0].revision
            require(span == len(facts) - 1, f"{operation} was torn apart by others")
        for line in report:
            if isinstance(line, Acknowledged):
                found_at = [fact.revision for fact in by_operation.get(line.operation, [])]
                require(found_at == line.revisions, f"acknowledged at {line.revisions}, found at {found_at}: {line}")

    def _check_watches(self, report: Sequence[Line]) -> None:
        """Each watch of the crashed process saw exactly the history from where it started to where it came."""
        watches = {line.watch: line for line in report if isinstance(line, Watching)}
        for number, watch in watches.items():
            seen = [
                event for line in report if isinstance(line, Seen) and line.watch == number for event in line.events
            ]
            if seen:
                wanted = [
                    (fact.revision, fact.operation)
                    for fact in self.facts
                    if watch.since < fact.revision <= seen[-1][0]
                    and fact.key.resource == watch.resource
                    and watch.namespace in ("", fact.key.namespace)
                ]
                require(seen == wanted, f"watch {watch} saw other events: {difference(seen, wanted)}")

    def _check_compaction(self, store: Store, report: Sequence[Line]) -> None:
        done = [line.revision for line in report if isinstance(line, Compacting) and line.done]
        asked = [line.revision for line in report if isinstance(line, Compacting)]
        require(store.compacted >= max([self._compacted, *done]), "the compacted revision went back")
        if self.facts:  # a store killed between its first two files goes on far beyond whatever may have been given out
            require(store.compacted <= max([self._compacted, *asked]), "more was compacted than anybody asked for")

    async def _check_states(self, store: Store, pick: random.Random) -> None:
        """The present, a past moment, and a replay from there, are what the history says."""
        for resource in RESOURCES:
            found = [(record.key, record.revision) for record in store.list(resource)]
            require(found == self._state(resource, store.revision), f"live {resource} are wrong")
        moment = pick.randint(store.compacted, store.revision)
        if self.facts and pick.random() < 0.8:
            moment = max(store.compacted, pick.choice(self.facts).revision)
        for resource in RESOURCES:
            past = [(record.key, record.revision) for record in await store.list_at(resource, "", moment)]
            require(past == self._state(resource, moment), f"{resource} at {moment} are wrong")
        wanted = [fact for fact in self.facts if fact.revision > moment]
        found_facts = await replay(store, moment)
        require(found_facts == wanted, f"replay from {moment} is wrong: {difference(found_facts, wanted)}")

    def _state(self, resource: str, moment: int) -> list[tuple[Key, int]]:
        state: dict[Key, int] = {}
        for fact in self.facts:
            if fact.revision <= moment and fact.key.resource == resource:
                if fact.deleted:
                    state.pop(fact.key, None)
                else:
                    state[fact.key] = fact.revision
        return sorted(state.items(), key=lambda item: item[0].path)


async def replay(store: Store, since: int) -> list[Fact]:
    """All events after a revision, as watches tell them, each checked to be what it says."""
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
    """Every event names the state before it, which selectors of watches depend on."""
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


def difference(found: Sequence[object], wanted: Sequence[object]) -> str:
    at = next((n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    return f"{len(found)} instead of {len(wanted)}, at {at}: {found[at : at + 2]} instead of {wanted[at : at + 2]}"


def require(kept: bool, otherwise: str) -> None:
    if not kept:
        raise Broken(otherwise)
