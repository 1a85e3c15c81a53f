"""Snapshots on demand, on schedule and before an upgrade, and their deletion."""

from __future__ import annotations

from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.controllers.planner.distributions.lookup import distribution_of
from tests.simulation.plans.crash_operations.operation import DISTRIBUTIONS, NEW, OLD, CrashedOperation


class SnapshotOnDemand(CrashedOperation):
    kind = operations.SNAPSHOT
    title = "Snapshot on demand"

    async def is_achieved(self) -> bool:
        return await self.has_snapshot()


class ScheduledSnapshot(CrashedOperation):
    kind = operations.SCHEDULED_SNAPSHOT
    title = "Scheduled snapshot"

    @classmethod
    def reason(cls, distribution: str, phase: str) -> str:
        if distribution_of(f"{NEW}{DISTRIBUTIONS[distribution]}").schedules_snapshots:
            return "– the servers carry out the schedule themselves"
        return super().reason(distribution, phase)

    async def request(self) -> None:
        self.earlier = {each["id"] for each in await self._history()}
        await self.cluster.simulation.sim.edit({"rkeConfig": {"etcd": {"snapshotScheduleCron": "0 * * * *"}}})

    async def repeat(self) -> None:
        """The next one follows at its time."""

    async def is_achieved(self) -> bool:
        return await self.has_snapshot()


class SnapshotDeletion(CrashedOperation):
    kind = operations.DELETION
    title = "Deletion of a snapshot"

    async def prepare(self) -> None:
        await super().prepare()
        await self.cluster.run(operations.SNAPSHOT)
        self.chosen = (await self.snapshots())[0]

    async def request(self) -> None:
        self.earlier = {each["id"] for each in await self._history()}
        meta = self.chosen["metadata"]
        client = self.cluster.simulation.sim.world.client
        await client.delete(ETCD_SNAPSHOT.resource, meta["name"], namespace=meta["namespace"])

    async def repeat(self) -> None:
        """It is tried again every ten minutes."""

    async def is_achieved(self) -> bool:
        listed = {each["metadata"]["name"] for each in await self.snapshots()}
        return (
            self.chosen["metadata"]["name"] not in listed
            and self.chosen["snapshotFile"]["name"] not in self.files()
            and await self.has_snapshot() == (len(self.cluster.servers) > 1)
        )


class SnapshotBeforeUpgrade(CrashedOperation):
    kind = operations.UPGRADE_SNAPSHOT
    title = "Snapshot before an upgrade"
    first_version = OLD

    async def request(self) -> None:
        self.earlier = {each["id"] for each in await self._history()}
        await self.cluster.simulation.upgrade(self._version(NEW))

    async def repeat(self) -> None:
        """It is taken again after ten minutes."""

    async def is_achieved(self) -> bool:
        record = (await self.cluster.control_plane())["status"].get("rollback") or {}
        listed = {each["metadata"]["name"] for each in await self.snapshots()}
        return record.get("result") == "Saved" and record.get("snapshot") in listed
