"""Restores of the data, of the version, and on new servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from herder.api.rke import operations
from herder.api.rke.operations import Run
from tests.simulation.plans.crash_operations.operation import NEW, OLD, CrashedOperation, require
from tests.simulation.plans.crash_page import ACTORS
from tests.simulation.plans.operations.operated_cluster import HOUR
from tests.simulation.plans.operations.restores.test_restore_modes import upgrade
from tests.simulation.plans.operations.restores.test_restores import create_with_s3, lose_all_servers, saved_in_s3


class RestoreData(CrashedOperation):
    kind = operations.RESTORE
    title = "Restore of the data"
    keeps_secrets_readable = False
    mode = ""
    _drops_data = True

    @classmethod
    def actors(cls) -> Sequence[str]:
        """The others have the same phases and tasks."""
        return ACTORS if cls is RestoreData else super().actors()

    async def prepare(self) -> None:
        await self.cluster.create()
        await self.cluster.write("before")
        await self.cluster.run(operations.SNAPSHOT)
        self.snapshot = (await self.snapshots())[-1]["metadata"]["name"]
        await self.cluster.write("after")

    async def _edit(self, request: dict[str, Any]) -> None:
        mode = {"restoreRKEConfig": self.mode} if self.mode else {}
        await super()._edit({"name": self.snapshot, **mode, **request})

    async def is_achieved(self) -> bool:
        return True

    async def _check_failed(self, run: Run) -> str:
        """Until the phase Restore has ended, the data is as before; later it is restored."""
        phase = re.match(r"phase (\w+)", run.message)
        before_return = phase is not None and phase[1] in ("Started", "Snapshot", "Shutdown", "Restore")
        has = await self.cluster.has("before"), await self.cluster.has("after")
        require(has == (True, before_return), f"data from before and after the snapshot: {has} ({run.message})")
        return "old data kept" if before_return else "data restored"


class RestoreVersion(RestoreData):
    """Also what a rollback of an upgrade requests. Mode `all` has the same phases and tasks: admission restores the
    other fields of the spec before the run starts.
    """

    title = "Restore of the data and the version, which undoes an upgrade"
    mode = "kubernetesVersion"
    first_version = OLD
    serves_if_failed = False  # the spec has the old version: the restore must be requested again

    async def prepare(self) -> None:
        await self.cluster.create()
        await self.cluster.write("before")
        await upgrade(self.cluster, self._version(NEW))
        self.snapshot = (await self.cluster.control_plane())["status"]["rollback"]["snapshot"]
        await self.cluster.write("after")

    async def request(self) -> None:
        self.cluster.simulation.desired.version = self._version(OLD)
        await super().request()


class RestoreOnNewServers(RestoreData):
    title = "Restore from S3 after the loss of all servers"
    serves_if_failed = False

    async def prepare(self) -> None:
        await create_with_s3(self.cluster)
        await self.cluster.write("before")
        self.snapshot = (await saved_in_s3(self.cluster))["metadata"]["name"]
        await self.cluster.write("after")
        await lose_all_servers(self.cluster)
        await self.cluster.simulation.sim.world.until(self._has_new_servers, within=HOUR)

    async def _has_new_servers(self) -> bool:
        nodes = self.cluster.simulation.nodes
        return len(nodes) == self.cluster.simulation.desired.machines and all(node.powered for node in nodes)

    async def _check_failed(self, run: Run) -> str:
        return "all servers were lost before"
