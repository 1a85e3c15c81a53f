"""The plan that a machine should have, rendered only where something that it depends on has changed.

Beside each plan its Secret keeps digests of what it was rendered from, and of the plan itself. While the first are the
same there is nothing to do; where they differ the plan is rendered, once for each state of its inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec

from herder.api.rke.names import PLAN_INPUTS
from herder.api.rke.plan import DELETE, File, Plan, checksum
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, Distribution, MachineInputs
from herder.controllers.planner.entries import Entry
from herder.engine.memo import DigestMemo

LARGEST_PLAN = 480 << 10
"""Bytes. A Secret holds a megabyte, and the plan is in it twice: as it is asked for, and as it was applied."""


class Mark(NamedTuple):
    """On the Secret, beside a plan: what it was rendered from, as digests, and its own."""

    common: str = ""  # of what others' plans are made of too
    machine: str = ""
    checksum: str = ""

    def __str__(self) -> str:
        return " ".join(self)

    @staticmethod
    def of(annotations: Mapping[str, str]) -> Mark:
        """One that cannot be read says nothing but, at its end, which plan it was about."""
        parts = annotations.get(PLAN_INPUTS, "").split(" ")
        return Mark(*parts) if len(parts) == len(Mark._fields) else Mark(checksum=parts[-1])


def common_digest(distribution: Distribution, cluster: ClusterInputs) -> str:
    parts = (distribution.name, str(distribution.revision), cluster.digest)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Request:
    """All that a plan follows from; two requests are the same when their digests are."""

    distribution: Distribution = field(compare=False)
    cluster: ClusterInputs = field(compare=False, repr=False)
    machine: MachineInputs = field(compare=False)
    digests: tuple[str, str]  # of what is common, and of what is the machine's own

    @staticmethod
    def of(distribution: Distribution, cluster: ClusterInputs, machine: MachineInputs) -> Request:
        inputs = cluster.for_workers if machine.roles.only_worker else cluster
        return Request(distribution, inputs, machine, (common_digest(distribution, inputs), machine.digest))


@dataclass(frozen=True)
class Desired:
    """What a machine should have, held against what its Secret has."""

    entry: Entry
    request: Request

    @cached_property
    def mark(self) -> Mark:
        """For the Secret that has this plan."""
        return Mark(*self.request.digests, self.checksum)

    @property
    def delivered_mark(self) -> Mark:
        """For the Secret that gets it now."""
        return self.mark._replace(checksum=checksum(self.delivered))

    @property
    def joins(self) -> str:
        return self.request.machine.join_url

    @cached_property
    def plan(self) -> Plan:
        return _render(self.request)

    @cached_property
    def delivered(self) -> bytes:
        """For the Secret: files that machines have of plans before this one, and that nothing names any more, go."""
        gone = tuple(File(path=path, action=DELETE) for path in sorted(self._left_behind()))
        return msgspec.structs.replace(self.plan, files=(*self.plan.files, *gone)).to_json()

    def _left_behind(self) -> set[str]:
        applied, asked = self.entry.plan.applied_plan, self.entry.plan.plan
        there = {each.path for each in (applied.files if applied else ()) if each.action != DELETE}
        if asked and not self.entry.plan.in_sync:  # some of it may have been done
            there |= {each.path for each in asked.files}
        left = there - {each.path for each in self.plan.files}
        return {path for path in left if self.request.distribution.is_ours(self.request.cluster, path)}

    @cached_property
    def checksum(self) -> str:
        return _checksum(self.request)

    @cached_property
    def differs(self) -> bool:
        """Whether the Secret has another plan; one that has none is another matter."""
        if not self.entry.plan.has_plan or self.is_marked:
            return False
        return self.checksum != (self._mark.checksum or self.entry.plan.checksum)

    @property
    def is_marked(self) -> bool:
        """Whether the Secret's plan is known to be made of the same inputs."""
        return (self._mark.common, self._mark.machine) == self.request.digests

    @cached_property
    def _mark(self) -> Mark:
        return Mark.of(self.entry.annotations)

    @cached_property
    def is_minor(self) -> bool:
        """Whether it differs in nothing but files that may change at any time."""
        before = self.entry.plan.plan if self.differs else None
        return before is not None and before.lasting() == self.plan.lasting()

    @cached_property
    def drains(self) -> bool:
        """Whether the node must be drained between the plan that it has applied and this one."""
        applied = self.entry.plan.applied_plan
        before = self.request.distribution.drain_hash(applied) if applied else ""
        return bool(before) and before != self.request.distribution.drain_hash(self.plan)


_checksums: DigestMemo[str] = DigestMemo(16384)
"""Of rendered plans, by the digests of their inputs. Neither the inputs nor the plans are kept: both hold keys."""


def _checksum(request: Request) -> str:
    return _checksums.get(request.digests, lambda: checksum(_render(request).to_json()))


def _render(request: Request) -> Plan:
    plan = request.distribution.render(request.cluster, request.machine)
    size = len(plan.to_json())
    if size > LARGEST_PLAN:
        largest = max(plan.files, key=lambda file: len(file.content), default=File())
        raise ConfigError(
            f"the plan of machine {request.machine.name} would have {size} bytes, and may have {LARGEST_PLAN} at most: "
            f"its largest file is {largest.path} with {len(largest.content)}. Make additionalManifest, "
            "chartValues or machineSelectorFiles smaller"
        )
    return plan
