"""The operations of the crash matrix: how each is prepared and requested, and how its outcome is judged.

Phases come from the definitions of the operations, so a new phase is a new row of the matrix.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names, operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.operations import ABORTABLE, ABORTED, Run
from herder.api.rke.services import NO_AUTHORITY_ROTATION
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.operations.engine import AUTOMATIC, OPERATIONS
from herder.controllers.planner.operations.interface import Operation
from herder.engine.meta.kinds import Object
from herder.sim.host.certificates import leaves
from herder.sim.host.disk import Snapshot
from herder.sim.provisioned import NAME
from tests.simulation.plans.crash_page import ACTORS, NETWORK
from tests.simulation.plans.operated_cluster import HOUR, OperatedCluster
from tests.simulation.plans.test_redeployments import serve, versions
from tests.simulation.plans.test_restore_modes import upgrade
from tests.simulation.plans.test_restores import create_with_s3, lose_all_servers, saved_in_s3
from tests.simulation.plans.test_rotations import loaded_keys, plans

KINDS: dict[str, Operation] = {each.kind: each for each in (*OPERATIONS, *AUTOMATIC)}
DISTRIBUTIONS = {"k3s": "+k3s1", "rke2": "+rke2r1", "kubeadm": "+kubeadm1", "embedded": "+herder1"}
"""Builds of versions by distribution."""
OLD, NEW = "v1.33.5", "v1.34.1"
_POLL_SECONDS = 0.05


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


# --- restores ---------------------------------------------------------------------------------------------------------


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


# --- rotations --------------------------------------------------------------------------------------------------------


class Certificates(CrashedOperation):
    kind = operations.CERTIFICATES
    title = "Rotation of certificates"

    async def prepare(self) -> None:
        await super().prepare()
        self.old = self._serials()

    def _serials(self) -> dict[tuple[str, str], Any]:
        found = {}
        for node in self.cluster.simulation.nodes:
            for path, _ in leaves(node):
                certificate: Any = node.disk.files.get(f"{path}.crt")
                if certificate is not None:
                    found[(node.name, path)] = certificate.serial
        return found

    async def is_achieved(self) -> bool:
        now = self._serials()
        return now.keys() == self.old.keys() and all(now[each] != old for each, old in self.old.items())


class CertificateAuthorities(Certificates):
    kind = operations.AUTHORITIES
    title = "Rotation of certificate authorities"

    @classmethod
    def reason(cls, distribution: str, phase: str) -> str:
        if distribution in NO_AUTHORITY_ROTATION:
            return "– admission refuses it: the distribution cannot rotate them"
        return super().reason(distribution, phase)

    async def prepare(self) -> None:
        await super().prepare()
        self.first = self._present()

    def _present(self) -> dict[str, int]:
        etcd = self.cluster.simulation.sim.downstream.etcd
        assert etcd is not None
        return etcd.bootstrap.authorities

    async def is_achieved(self) -> bool:
        present = self._present()
        loaded = all(
            node.service.trust[name].bundle >= {serial, self.first[name]}
            for node in self.cluster.simulation.nodes
            for name, serial in present.items()
        )
        unused = [path for node in self.cluster.servers for path in node.disk.files if "/new-authorities/" in path]
        is_new = not set(present.values()) & set(self.first.values())
        return loaded and is_new and not unused and await super().is_achieved()


class EncryptionKeys(CrashedOperation):
    kind = operations.ENCRYPTION_KEYS
    title = "Rotation of encryption keys"

    async def prepare(self) -> None:
        await super().prepare()
        self.old = self._used()

    def _used(self) -> frozenset[str]:
        etcd = self.cluster.simulation.sim.downstream.etcd
        assert etcd is not None
        return etcd.bootstrap.secret_keys

    async def is_achieved(self) -> bool:
        return not self._used() & self.old and len({loaded_keys(node) for node in self.cluster.servers}) == 1


# --- node agents ------------------------------------------------------------------------------------------------------


class NodeAgents(CrashedOperation):
    kind = operations.AGENTS
    title = "Redeployment of node agents"
    _served = "1.1.0"

    async def prepare(self) -> None:
        await super().prepare()
        await serve(self.cluster, self._served)

    async def is_achieved(self) -> bool:
        return versions(self.cluster) == {self._served}


# --- aborted operations -----------------------------------------------------------------------------------------------


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


def short(message: str) -> str:
    """The cause without names that differ between runs."""
    text = re.sub(r"\b(meadow|farm)-[a-z0-9-]+", "NAME", message)
    text = re.sub(r"\d{4}-\d{2}-\d{2}T[0-9:]+Z", "TIME", text).replace("|", "/").replace("\n", " ")
    return text if len(text) <= 160 else f"{text[:157]}…"
