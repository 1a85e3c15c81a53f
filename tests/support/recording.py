"""What a watcher sees of Cluster API's objects, put so that two recordings can be compared.

Of each object all that was ever told of its phase and of each of its conditions, in order. Names that were generated
stand for what the object is, times for nothing. Conditions are kept apart from one another: which of two moves first
when both do in one instant is nobody's promise.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any

from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from tests.support.capi import events_of

FLEETING_SECONDS = 3.0
"""What is told for less may be missed: reports may be put off for two seconds, so that what holds for a moment is told
for as long, or not at all."""
QUIET_SECONDS = 2.6
"""Reports of progress may be put off for two seconds; when nothing was told for longer, all is told."""


class Names:
    """What generated names and values stand for: the sets of a deployment are told apart by their order."""

    def __init__(self, cluster: str) -> None:
        random = "[a-z0-9]{5}"
        self._sets: list[str] = []
        self._patterns = [
            (re.compile(rf"\b{cluster}-workers-{random}-{random}\b"), self._worker),
            (re.compile(rf"\b{cluster}-workers-{random}\b"), self._set),
            (re.compile(rf"\b{cluster}-(?!workers\b){random}\b"), lambda _name: "<control plane machine>"),
            (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), lambda _time: "<time>"),
        ]

    def masked(self, text: str) -> str:
        for pattern, name in self._patterns:
            text = pattern.sub(lambda match, name=name: name(match[0]), text)  # type: ignore[misc]
        return text

    def _set(self, name: str) -> str:
        if name not in self._sets:
            self._sets.append(name)
        return f"<set {self._sets.index(name) + 1}>"

    def _worker(self, name: str) -> str:
        return f"<machine of {self._set(name.rpartition('-')[0])}>"


@dataclass
class Told:
    text: str
    since: float
    until: float = inf

    @property
    def fleeting(self) -> bool:
        return self.until - self.since < FLEETING_SECONDS


@dataclass
class Life:
    """Of one object, by condition (or `phase`, or `life`), what was told one after the other."""

    kind: str
    role: str
    told: dict[str, list[Told]] = field(default_factory=dict)

    def tell(self, what: str, text: str, now: float) -> None:
        known = self.told.setdefault(what, [])
        if known and known[-1].text == text:
            return
        if known:
            known[-1].until = now
        known.append(Told(text, now))

    def end(self, now: float) -> None:
        for told in self.told.values():
            told[-1].until = min(told[-1].until, now)
        self.tell("life", "gone", now)


class Recording:
    def __init__(self, cluster: str) -> None:
        self.lives: dict[str, Life] = {}  # by uid
        self.seen: list[Object] = []  # every object in every state that was told
        self.names = Names(cluster)
        self._last_news = 0.0

    def by_role(self) -> dict[str, list[Life]]:
        """Which of several alike comes first is chance."""
        found: dict[str, list[Life]] = {}
        for life in self.lives.values():
            found.setdefault(f"{life.kind} {life.role}", []).append(life)
        return found

    async def quiet(self) -> None:
        loop = asyncio.get_running_loop()
        while (left := self._last_news + QUIET_SECONDS - loop.time()) > 0:
            await asyncio.sleep(left)

    def see(self, type_: str, obj: Object) -> None:
        now = self._last_news = asyncio.get_running_loop().time()
        meta = obj["metadata"]
        life = self.lives.setdefault(meta["uid"], Life(obj["kind"], self.names.masked(meta["name"])))
        self.seen.append(obj)
        if type_ == "DELETED":
            life.end(now)
            return
        life.tell("life", "going" if meta.get("deletionTimestamp") else "there", now)
        for what, text in _told(obj.get("status") or {}):
            life.tell(what, self.names.masked(text), now)


def _told(status: Object) -> Iterable[tuple[str, str]]:
    yield "phase", str(status.get("phase", ""))
    for condition in status.get("conditions") or ():
        yield condition["type"], _words(condition, "status", "reason", "message")
    older: Any = (status.get("deprecated") or {}).get("v1beta1") or {}
    for condition in older.get("conditions") or ():
        yield f"v1beta1 {condition['type']}", _words(condition, "status", "severity", "reason", "message")


def _words(condition: Object, *parts: str) -> str:
    return " | ".join(str(condition.get(part, "")) for part in parts)


@asynccontextmanager
async def recorded(client: Client, namespace: str, cluster: str, kinds: Iterable[Kind]) -> AsyncIterator[Recording]:
    recording = Recording(cluster)

    async def watch(kind: Kind) -> None:
        async for event in events_of(client, kind, namespace):
            if event.type != "BOOKMARK":
                recording.see(event.type, event.object)

    watching = [asyncio.ensure_future(watch(kind)) for kind in kinds]
    try:
        yield recording
    finally:
        ended = [task.exception() or "ended" for task in watching if task.done() and not task.cancelled()]
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    assert not ended, f"a watch was not there to the end: {ended}"


# --- an object without what is chance ---------------------------------------------------------------------------

_CHANCE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b"), "<uid>"),
    (re.compile(r"\b\d{5,10}-[a-z0-9]{5}\b"), "<template hash>"),
    (re.compile(r'(?<="port": )\d+|(?<=127\.0\.0\.1:)\d+'), "0"),
    (re.compile(r"\b10\.\d+\.\d+\.\d+\b"), "<address>"),
)


def normalized(names: Names, obj: Object) -> str:
    """As JSON, without times, identities, revisions, ports and generated names."""
    meta = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    meta["managedFields"] = sorted(meta["managedFields"], key=lambda entry: json.dumps(entry, sort_keys=True))
    text = json.dumps({**obj, "metadata": meta}, sort_keys=True)
    for pattern, stand_in in _CHANCE:
        text = pattern.sub(stand_in, text)
    return names.masked(text)


# --- two of them ------------------------------------------------------------------------------------------------


def differences(left: Recording, right: Recording) -> list[str]:
    """In words, one for each object and condition that two recordings tell differently."""
    ours, theirs = left.by_role(), right.by_role()
    found = [f"{role}: only in one of them" for role in sorted(ours.keys() ^ theirs.keys())]
    for role in sorted(ours.keys() & theirs.keys()):
        found += _differ(role, ours[role], theirs[role])
    return found


def _differ(role: str, lives: list[Life], others: list[Life]) -> list[str]:
    """Each is matched with the most similar one that is left."""
    if len(lives) != len(others):
        return [f"{role}: {len(lives)} of them and {len(others)}"]
    left = list(others)
    found: list[str] = []
    for life in lives:
        nearest = min(left, key=lambda other: len(_unlike(life, other)))
        left.remove(nearest)
        found += [f"{role}, {words}" for words in _unlike(life, nearest)]
    return found


def _unlike(life: Life, other: Life) -> list[str]:
    found = []
    for what in sorted(life.told.keys() | other.told.keys()):
        one, another = life.told.get(what, []), other.told.get(what, [])
        if not alike(one, another):
            found.append(f"{what}:\n{_listed(one)}\n  but on the other\n{_listed(another)}")
    return found


def _listed(told: list[Told]) -> str:
    return "\n".join(f"    {each.until - each.since:6.2f} s  {each.text!r}" for each in told)


def alike(one: list[Told], other: list[Told]) -> bool:
    """The same in the same order, but for what may be missed."""

    @cache
    def match(left: int, right: int, last: str) -> bool:
        if left == len(one) and right == len(other):
            return True
        both = left < len(one) and right < len(other) and one[left].text == other[right].text
        if both and match(left + 1, right + 1, one[left].text):
            return True
        if left < len(one) and may_be_missed(one, left, last) and match(left + 1, right, last):
            return True
        return right < len(other) and may_be_missed(other, right, last) and match(left, right + 1, last)

    return match(0, 0, "")


def may_be_missed(told: list[Told], at: int, last: str) -> bool:
    """What chance alone decides whether it is seen."""
    this, following = told[at], told[at + 1].text if at + 1 < len(told) else ""
    return (
        this.fleeting
        or this.text == last  # with what was missed in between
        # Machines and who tells about them put off their first words equally long: either may be first.
        or "not yet reported" in this.text
        # Of several that change at once the first report may name some, and the next all of them.
        or _names_more(following, this.text)
    )


def _names_more(text: str, than: str) -> bool:
    return len(text) > len(than) and _LIST.sub("<some>", text) == _LIST.sub("<some>", than)


_LIST = re.compile(r"Machines? (<[a-z ]+(?:<[a-z0-9 ]+>)?>(?:, )?)+")
