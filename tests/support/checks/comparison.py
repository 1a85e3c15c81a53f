"""Compare the Cluster API objects of two management clusters: generated names, times and identities are masked.

A snapshot holds, for each object, its phase and every condition. Two clusters that went through the same steps must
reach equal snapshots; how long either takes, and which transient states a watcher happens to see, does not matter.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from herder.api.capi.kinds import MACHINE_SET
from herder.api.references.approvals import APPROVED
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from tests.support.capi import watch_events

Snapshot = dict[str, Counter[str]]
"""By kind and masked name: the status of each such object as text, with how many have it."""


class Names:
    """Replaces generated names by the role of their object; MachineSets are numbered in the order of creation."""

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


class Observer:
    """One management cluster: snapshots on demand, and every state of every object that a watch delivered."""

    def __init__(self, client: Client, namespace: str, cluster: str, kinds: Iterable[Kind]) -> None:
        self.names = Names(cluster)
        self.seen: list[Object] = []
        self._client = client
        self._namespace = namespace
        self._kinds = tuple(kinds)

    async def snapshot(self) -> Snapshot:
        found = {
            kind: (await self._client.list_all(kind.resource, namespace=self._namespace)).items for kind in self._kinds
        }
        for machine_set in sorted(found.get(MACHINE_SET, ()), key=lambda obj: obj["metadata"]["creationTimestamp"]):
            self.names.masked(machine_set["metadata"]["name"])
        snapshot: Snapshot = {}
        for kind, objects in found.items():
            for obj in objects:
                role = f"{kind.kind} {self.names.masked(obj['metadata']['name'])}"
                snapshot.setdefault(role, Counter())[self.names.masked("\n".join(_status(obj)))] += 1
        return snapshot

    async def watch(self, kind: Kind) -> None:
        async for event in watch_events(self._client, kind, self._namespace):
            if event.type != "BOOKMARK":
                self.seen.append(event.object)


def _status(obj: Object) -> Iterable[str]:
    status = obj.get("status") or {}
    yield "deleting" if obj["metadata"].get("deletionTimestamp") else "exists"
    yield f"phase: {status.get('phase', '')}"
    current = [(each, ("status", "reason", "message")) for each in status.get("conditions") or ()]
    older: Any = (status.get("deprecated") or {}).get("v1beta1") or {}
    deprecated = [(each, ("status", "severity", "reason", "message")) for each in older.get("conditions") or ()]
    for label, conditions in (("", current), ("v1beta1 ", deprecated)):
        for condition, parts in sorted(conditions, key=lambda pair: str(pair[0]["type"])):
            yield f"{label}{condition['type']}: " + " | ".join(str(condition.get(part, "")) for part in parts)


@asynccontextmanager
async def observed(client: Client, namespace: str, cluster: str, kinds: Iterable[Kind]) -> AsyncIterator[Observer]:
    kinds = tuple(kinds)
    observer = Observer(client, namespace, cluster, kinds)
    watches = [asyncio.ensure_future(observer.watch(kind)) for kind in kinds]
    try:
        yield observer
    finally:
        ended = [task.exception() or "ended" for task in watches if task.done() and not task.cancelled()]
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    assert not ended, f"a watch ended early: {ended}"


async def agreement(ours: Observer, theirs: Observer, *, seconds: float) -> Snapshot:
    """Wait until both clusters show the same status of every object; fail with what differs."""
    one, other = await asyncio.gather(ours.snapshot(), theirs.snapshot())
    try:
        async with asyncio.timeout(seconds):
            while one != other:
                await asyncio.sleep(0.3)
                one, other = await asyncio.gather(ours.snapshot(), theirs.snapshot())
    except TimeoutError:
        raise AssertionError("the two never agreed:\n" + "\n".join(differences(one, other))) from None
    return one


def differences(one: Snapshot, other: Snapshot) -> Iterable[str]:
    for role in sorted(one.keys() | other.keys()):
        left, right = one.get(role, Counter()), other.get(role, Counter())
        for mark, found in (("-", left - right), ("+", right - left)):
            for text, count in found.items():
                lines = text.replace("\n", f"\n{mark}   ")
                yield f"{mark} {count} × {role}\n{mark}   {lines}"


# --- objects without random values ------------------------------------------------------------------------------------

_RANDOM = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b"), "<uid>"),
    (re.compile(r"\b\d{5,10}-[a-z0-9]{5}\b"), "<template hash>"),
    # A controller may write two changes of a spec at once or one after the other.
    (re.compile(r'(?<="generation": )\d+|(?<="observedGeneration": )\d+'), "0"),
    (re.compile(r'(?<="port": )\d+|(?<=127\.0\.0\.1:)\d+'), "0"),
    (re.compile(r"\b10\.\d+\.\d+\.\d+\b"), "<address>"),
)


def normalized(names: Names, obj: Object) -> str:
    """The object as JSON without times, identities, revisions, ports and generated names."""
    meta = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    meta["managedFields"] = sorted(meta["managedFields"], key=lambda entry: json.dumps(entry, sort_keys=True))
    text = json.dumps(_without_record({**obj, "metadata": meta}), sort_keys=True)
    for pattern, placeholder in _RANDOM:
        text = pattern.sub(placeholder, text)
    return names.masked(text)


def _without_record(part: Any) -> Any:
    """Without the record of approved references: on the real server the tester is the user that the manager runs as,
    whose references are not recorded. So another manager is the first to own annotations there."""
    if isinstance(part, list):
        return [_without_record(each) for each in part]
    if not isinstance(part, dict):
        return part
    found = {name: _without_record(value) for name, value in part.items() if name.removeprefix("f:") != APPROVED}
    if owned := found.get("f:annotations"):
        found["f:annotations"] = {name: value for name, value in owned.items() if name != "."}
    return {name: value for name, value in found.items() if value == part[name] or value != {}}
