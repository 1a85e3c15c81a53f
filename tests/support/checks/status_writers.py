"""Every status field and every condition type has one writer among the controllers.

Controllers that run in a test process are observed: a field that a second controller changes fails the test that
caused it, unless `SHARED` says why two controllers may write it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Patch, Write
from herder.engine.runtime.writer import Writer

SHARED = {
    # Cluster API: the health check requests remediation, the owner of the Machine reports it.
    ("Machine", "OwnerRemediated"): {"machinehealthcheck", "machineset"},
    # Cluster API: whoever owns the Machine compares it with its own spec.
    ("Machine", "UpToDate"): {"inmemory-control-plane", "machine"},
    # The planner until the Machine is deleted, from then on the controller that removes its etcd member.
    ("Machine", "Reconciled"): {"etcd-member", "planner"},
    # Rancher: the planner resets it when no machine is left that could serve the API.
    ("Cluster", "ControlPlaneInitialized"): {"cluster", "planner"},
}


class StatusWriters:
    def __init__(self) -> None:
        self._writers: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.conflicts: list[str] = []

    def watch(self) -> None:
        """Record all status writes of controllers in this process."""
        write = Writer.write

        async def recorded(writer: Writer, each: Write, manager: str) -> bool:
            if isinstance(each, Patch) and "status" in each.patch:
                self._record(writer, each, manager)
            return await write(writer, each, manager)

        Writer.write = recorded  # type: ignore[method-assign]

    def check_report(self, report: pytest.TestReport) -> None:
        """Fail the test if it made a second controller write a field."""
        if self.conflicts and report.when == "call":
            report.outcome = "failed"
            report.longrepr = "\n".join(self.conflicts)
            self.conflicts.clear()

    def _record(self, writer: Writer, patch: Patch, manager: str) -> None:
        live = writer._live(patch)
        if live is None or patch.resource_version not in ("", live["metadata"]["resourceVersion"]):
            return  # refused, because the object has changed
        before, after = dict(fields(live)), dict(fields(apply_merge_patch(live, patch.patch)))
        for field in before.keys() | after.keys():
            if before.get(field) != after.get(field):
                self.check(patch.ref.kind.kind, str(patch.ref.kind.group), field, manager)

    def check(self, kind: str, group: str, field: str, manager: str) -> None:
        writers = self._writers[f"{kind}.{group}", field]
        writers.add(manager)
        if len(writers) > 1 and not writers <= SHARED.get((kind, field.rpartition(" ")[2]), set()):
            self.conflicts.append(f"status of {kind}.{group}: {field} is written by {', '.join(sorted(writers))}")


def fields(obj: Object) -> Iterator[tuple[str, Any]]:
    """The fields of a status down to conditions, without the times of their transitions."""
    yield from _fields("", obj.get("status") or {})


def _fields(path: str, value: Object) -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        if name == "conditions":
            for each in part or ():
                known = {key: text for key, text in each.items() if key != "lastTransitionTime"}
                yield f"{path}conditions {each['type']}", known
        elif isinstance(part, dict) and part:
            yield from _fields(f"{path}{name}.", part)
        else:
            yield f"{path}{name}", part


STATUS_WRITERS = StatusWriters()
