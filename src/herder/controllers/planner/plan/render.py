"""Desired plans, rendered only if their inputs have changed.

An annotation of the plan Secret records the digests of the inputs and the checksum of the plan (`PlanRecord`). While
the digests match, the plan is current; otherwise it is rendered, once for each set of inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec

from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import PLAN_INPUTS
from herder.api.rke.node.plan import CERTIFICATE_EXPIRY, DELETE, SNAPSHOT_HASHES, File, Plan, checksum
from herder.controllers.planner.distributions.interface import ClusterInputs, Distribution, MachineInputs
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.memo import DigestMemo

MAX_PLAN_BYTES = 480 << 10
"""A Secret holds one MiB, and contains the plan twice: the requested and the applied one."""


_ADDED_REPORTS = ((SNAPSHOT_HASHES,), (SNAPSHOT_HASHES, CERTIFICATE_EXPIRY))
"""Periodic instructions that plans of older managers lack, the newest manager first."""


class PlanRecord(NamedTuple):
    """Annotation of a plan Secret: digests of the inputs that the plan was rendered from, and its checksum."""

    common: str = ""  # digest of the cluster-wide inputs
    machine: str = ""
    checksum: str = ""

    def __str__(self) -> str:
        return " ".join(self)

    @staticmethod
    def of(annotations: Mapping[str, str]) -> PlanRecord:
        """Parse the annotation. Of an unknown format, only the checksum at the end is used."""
        parts = annotations.get(PLAN_INPUTS, "").split(" ")
        return PlanRecord(*parts) if len(parts) == len(PlanRecord._fields) else PlanRecord(checksum=parts[-1])


def common_digest(distribution: Distribution, cluster: ClusterInputs) -> str:
    parts = (distribution.name, str(distribution.revision), cluster.digest)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Request:
    """All inputs of a plan. Requests are equal if their digests are."""

    distribution: Distribution = field(compare=False)
    cluster: ClusterInputs = field(compare=False, repr=False)
    machine: MachineInputs = field(compare=False)
    digests: tuple[str, str]  # of the cluster-wide and the machine's inputs

    @staticmethod
    def of(distribution: Distribution, cluster: ClusterInputs, machine: MachineInputs) -> Request:
        inputs = cluster.for_workers if machine.roles.only_worker else cluster
        return Request(distribution, inputs, machine, (common_digest(distribution, inputs), machine.digest))


@dataclass(frozen=True)
class Desired:
    """The desired plan of a machine, compared with the plan in its Secret."""

    entry: PlanEntry
    request: Request

    @cached_property
    def record(self) -> PlanRecord:
        """Record for a Secret that contains exactly this plan."""
        return PlanRecord(*self.request.digests, self.checksum)

    @property
    def delivered_record(self) -> PlanRecord:
        """Record for the plan as it is delivered, including deletions of stale files."""
        return self.record._replace(checksum=checksum(self.delivered))

    @property
    def joins(self) -> str:
        return self.request.machine.join_url

    @cached_property
    def plan(self) -> Plan:
        return _render(self.request)

    @cached_property
    def delivered(self) -> bytes:
        """The plan as JSON, with deletions of files that earlier plans wrote and no plan contains any more."""
        deletions = tuple(File(path=path, action=DELETE) for path in sorted(self._stale_files()))
        return msgspec.structs.replace(self.plan, files=(*self.plan.files, *deletions)).to_json()

    def _stale_files(self) -> set[str]:
        applied, requested = self.entry.plan.applied_plan, self.entry.plan.plan
        present = {each.path for each in (applied.files if applied else ()) if each.action != DELETE}
        if requested and not self.entry.plan.in_sync:  # may be partly applied
            present |= {each.path for each in requested.files}
        stale = present - {each.path for each in self.plan.files}
        return {path for path in stale if self.request.distribution.owns_file(self.request.cluster, path)}

    @cached_property
    def checksum(self) -> str:
        """Checksum of the plan.

        A plan of an older manager that only lacks reports counts as equal: an upgrade of the manager must not change
        the plans of running clusters. Such a machine gets the instructions with its next change.
        """
        rendered, *older = _checksums_of(self.request)
        is_old = self.entry.plan.has_plan and self._current_checksum in older
        return self._current_checksum if is_old else rendered

    @cached_property
    def differs(self) -> bool:
        """Whether the Secret contains another plan. False if it contains none."""
        if not self.entry.plan.has_plan or self.is_recorded:
            return False
        return self.checksum != self._current_checksum

    @property
    def is_recorded(self) -> bool:
        """Whether the Secret's plan is recorded as rendered from the same inputs."""
        return (self._record.common, self._record.machine) == self.request.digests

    @cached_property
    def _current_checksum(self) -> str:
        return self._record.checksum or self.entry.plan.checksum

    @cached_property
    def _record(self) -> PlanRecord:
        return PlanRecord.of(self.entry.annotations)

    @cached_property
    def is_minor(self) -> bool:
        """Whether it differs only in files that never restart anything."""
        before = self.entry.plan.plan if self.differs else None
        return before is not None and before.disruptive_parts() == self.plan.disruptive_parts()

    @cached_property
    def drains(self) -> bool:
        """Whether the node must be drained between the plan that it has applied and this one."""
        applied = self.entry.plan.applied_plan
        before = self.request.distribution.drain_hash(applied) if applied else ""
        return bool(before) and before != self.request.distribution.drain_hash(self.plan)


_checksums: DigestMemo[tuple[str, ...]] = DigestMemo(16384)
"""Checksums of rendered plans, and of those that older managers render, by the digests of their inputs.

Inputs and plans contain keys and are not kept.
"""


def _checksums_of(request: Request) -> tuple[str, ...]:
    def compute() -> tuple[str, ...]:
        plans = [_render(request)]
        for names in _ADDED_REPORTS:
            older = plans[0].without_reports(*names)
            if len(older.periodic_instructions) < len(plans[-1].periodic_instructions):
                plans.append(older)
        return tuple(checksum(each.to_json()) for each in plans)

    return _checksums.get(request.digests, compute)


def _render(request: Request) -> Plan:
    plan = request.distribution.render(request.cluster, request.machine)
    size = len(plan.to_json())
    if size > MAX_PLAN_BYTES:
        largest = max(plan.files, key=lambda file: len(file.content), default=File())
        raise ConfigError(
            f"plan of machine {request.machine.name}: {size} bytes exceed the limit of {MAX_PLAN_BYTES}; reduce "
            "additionalManifest, chartValues or machineSelectorFiles (largest file: "
            f"{largest.path}, {len(largest.content)} bytes)"
        )
    return plan
