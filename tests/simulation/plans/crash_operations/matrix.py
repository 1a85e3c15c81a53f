"""The operations of the crash matrix, and those that are aborted.

Phases come from the definitions of the operations, so a new phase is a new row of the matrix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.operations import ABORTABLE, ABORTED, Run
from herder.sim.provisioned import NAME
from tests.simulation.plans.crash_operations.operation import KINDS, CrashedOperation, require
from tests.simulation.plans.crash_operations.restores import RestoreData, RestoreOnNewServers, RestoreVersion
from tests.simulation.plans.crash_operations.rotations import (
    CertificateAuthorities,
    Certificates,
    EncryptionKeys,
    NodeAgents,
)
from tests.simulation.plans.crash_operations.snapshots import (
    ScheduledSnapshot,
    SnapshotBeforeUpgrade,
    SnapshotDeletion,
    SnapshotOnDemand,
)
from tests.simulation.plans.operations.operated_cluster import HOUR

_POLL_SECONDS = 0.05


def phases_after_abort(kind: str, phase: str) -> list[str]:
    """The phases of a run that was aborted in this one."""
    operation = KINDS[kind]
    (aborted,) = (each for each in operation.phases if each.name == phase)
    following = [each.name for each in operation.phases]
    return following[following.index(aborted.on_failure or following[-1]) :]


def _aborted(base: type[CrashedOperation], phase: str) -> type[CrashedOperation]:
    class Aborted(base):  # type: ignore[misc,valid-type]
        title = f"{base.title}, aborted in phase {phase}"
        serves_if_failed = True

        @classmethod
        def phases(cls) -> list[str]:
            return phases_after_abort(base.kind, phase)

        @classmethod
        def reason(cls, distribution: str, _phase: str) -> str:
            return base.reason(distribution, phase)

        async def request(self) -> None:
            await super().request()
            sim = self.cluster.simulation.sim

            async def is_in_phase() -> bool:
                found = await self.run()
                return found is not None and found.phase == phase

            while not await is_in_phase():
                await asyncio.sleep(_POLL_SECONDS)
            found = await self.run()
            assert found is not None
            annotations = {names.ABORT_OPERATION: found.id}
            await sim.patch(PROVISIONING_CLUSTER, NAME, {"metadata": {"annotations": annotations}})

        async def judge(self, run: Run) -> str:
            require(run.message.endswith(ABORTED), f"it has not been aborted: {run.phase} {run.message}")
            await self.cluster.simulation.until_settled()
            await self.cluster.simulation.sim.world.until(self._is_idle, within=HOUR)
            await self._check_cluster(before=True, after=True)
            return "aborted; data kept"

    return Aborted


_BASES: Sequence[type[CrashedOperation]] = (
    SnapshotOnDemand,
    ScheduledSnapshot,
    SnapshotDeletion,
    SnapshotBeforeUpgrade,
    RestoreData,
    RestoreVersion,
    RestoreOnNewServers,
    Certificates,
    CertificateAuthorities,
    EncryptionKeys,
    NodeAgents,
)
_ABORTABLE = {base.kind: base for base in reversed(_BASES)}
MATRIX: dict[str, type[CrashedOperation]] = {base.title: base for base in _BASES} | {
    found.title: found
    for kind, base in reversed(_ABORTABLE.items())
    for phase in KINDS[kind].phases
    if phase.name in ABORTABLE[kind]
    for found in [_aborted(base, phase.name)]
}
"""By the title of its table."""
