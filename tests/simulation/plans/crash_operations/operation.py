"""One operation of the crash matrix: how it is prepared and requested, and how its outcome is judged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.operations import Run
from herder.controllers.planner.operations.engine import AUTOMATIC, OPERATIONS
from herder.controllers.planner.operations.interface import Operation
from herder.engine.meta.kinds import Object
from herder.sim.host.disk import Snapshot
from tests.simulation.plans.crash_page import ACTORS, NETWORK
from tests.simulation.plans.operations.operated_cluster import HOUR, OperatedCluster
from tests.simulation.plans.operations.test_rotations import plans

KINDS: dict[str, Operation] = {each.kind: each for each in (*OPERATIONS, *AUTOMATIC)}
DISTRIBUTIONS = {"k3s": "+k3s1", "rke2": "+rke2r1", "kubeadm": "+kubeadm1", "embedded": "+herder1"}
"""Builds of versions by distribution."""
OLD, NEW = "v1.33.5", "v1.34.1"


class Unexpected(AssertionError):
    """The outcome is not one that the documentation promises."""


def require(condition: object, problem: str) -> None:
    if not condition:
        raise Unexpected(problem)


class CrashedOperation:
    """One operation on one cluster."""

    kind = ""
    title = ""
    first_version = NEW
    keeps_secrets_readable = True  # throughout, not only afterwards
    serves_if_failed = True  # and has the state that its user wants

    def __init__(self, cluster: OperatedCluster, build: str) -> None:
        self.cluster, self.build = cluster, build
        self.generation = self.written = 0
        self.earlier: set[str] = set()  # IDs of runs before the request

    @classmethod
    def actors(cls) -> Sequence[str]:
        return [each for each in ACTORS if each != NETWORK]

    @classmethod
    def phases(cls) -> list[str]:
        return [phase.name for phase in KINDS[cls.kind].phases]

    @classmethod
    def reason(cls, distribution: str, phase: str) -> str:
        """Why a cell has no outcome; empty if it has one."""
        (found,) = (each for each in KINDS[cls.kind].phases if each.name == phase)
        return "– only after a failure: see the aborted operations" if found.after_failure else ""

    # --- steps --------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        await self.cluster.create()
        await self.cluster.write("before")
        await self.cluster.write("after")

    async def request(self) -> None:
        self.generation += 1
        self.earlier = {each["id"] for each in await self._history()}
        await self._edit({"generation": self.generation})

    async def _edit(self, request: dict[str, Any]) -> None:
        change: Object = {"spec": {"rkeConfig": {}}}
        operations.set_request(change, self.kind, request)
        await self.cluster.simulation.sim.edit(change["spec"])

    async def _history(self) -> list[Object]:
        plane = await self.cluster.control_plane()
        found: list[Object] = (plane.get("status") or {}).get("operationHistory") or []
        return found

    async def run(self) -> Run | None:
        """The requested run, once it exists."""
        found = Run.of(await self.cluster.control_plane())
        return found if found is not None and found.kind == self.kind and found.id not in self.earlier else None

    async def until_ended(self) -> Run:
        async def has_ended() -> bool:
            found = await self.run()
            return found is not None and not found.is_active

        await self.cluster.simulation.sim.world.until(has_ended, within=6 * HOUR)
        found = await self.run()
        assert found is not None
        return found

    async def repeat(self) -> None:
        """Request it again after a failure."""
        await self.request()
        again = await self.until_ended()
        require(again.phase != operations.FAILED, f"the repeated operation has failed too: {again.message}")

    # --- outcome ------------------------------------------------------------------------------------------------------

    async def judge(self, run: Run) -> str:
        """The outcome; an exception if it is not allowed."""
        settle = self.cluster.simulation.until_settled
        if run.phase != operations.FAILED:
            await settle()
            await self._check_goal()
            await self._check_cluster(before=True, after=not self._drops_data)
            return "finished"
        require(run.message, "it has failed without a cause")
        if self.serves_if_failed and not (await self.cluster.control_plane())["status"].get("unjoinedServers"):
            await settle()
        kept = await self._check_failed(run)
        await self.repeat()
        await settle()
        await self._check_goal()
        await self._check_cluster(before=True, after=not self._drops_data)
        return f"failed: {short(run.message)}; {kept}; finished when requested again"

    _drops_data = False

    async def _check_failed(self, run: Run) -> str:
        await self._check_cluster(before=True, after=True)
        return "data kept"

    async def _check_goal(self) -> None:
        """What the operation is for has been achieved."""
        until = self.cluster.simulation.sim.world.until
        await until(self.is_achieved, within=2 * HOUR)
        await until(self._is_idle, within=HOUR)

    async def _is_idle(self) -> bool:
        """Whether no operation runs, also none in the background, and machines have their own plans."""
        tasked = [plan.name for plan in plans(self.cluster) if operations.task_instructions(plan.plan)]
        return not tasked and operations.active_run(await self.cluster.control_plane()) is None

    async def is_achieved(self) -> bool:
        raise NotImplementedError

    async def _check_cluster(self, *, before: bool, after: bool) -> None:
        cluster = self.cluster
        has = await cluster.has("before"), await cluster.has("after")
        require(has == (before, after), f"data from before and after the snapshot: {has}, expected {(before, after)}")
        unreadable = [node.name for node in cluster.servers if not node.reads_secrets]
        require(not unreadable, f"Secrets cannot be read on {unreadable}")
        self.written += 1
        name = f"later-{self.written}"
        await cluster.write(name)
        require(await cluster.has(name), "nothing can be written")
        cluster.simulation.check()

    # --- snapshots ----------------------------------------------------------------------------------------------------

    async def snapshots(self) -> list[Object]:
        found = await self.cluster.simulation.sim.all(ETCD_SNAPSHOT)
        return [each for each in found if (each.get("snapshotFile") or {}).get("status") != "failed"]

    def files(self) -> set[str]:
        disks = [node.disk for node in self.cluster.servers]
        return {each.name for disk in disks for each in disk.files.values() if isinstance(each, Snapshot)}

    async def has_snapshot(self) -> bool:
        """Whether at least one is listed, and each that is listed has its file."""
        listed = {each["snapshotFile"]["name"] for each in await self.snapshots()}
        return bool(listed) and listed <= self.files()

    def _version(self, version: str) -> str:
        return f"{version}{self.build}"


def short(message: str) -> str:
    """The cause without names that differ between runs."""
    text = re.sub(r"\b(meadow|farm)-[a-z0-9-]+", "NAME", message)
    text = re.sub(r"\d{4}-\d{2}-\d{2}T[0-9:]+Z", "TIME", text).replace("|", "/").replace("\n", " ")
    return text if len(text) <= 160 else f"{text[:157]}…"
