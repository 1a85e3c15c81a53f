"""Pod lifecycle on this node, from binding to the deletion of its object."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from herder.engine.logs import get_logger
from herder.engine.meta.errors import Conflict, Invalid, NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runner.admission import REASON, Admitted
from herder.engine.runner.approval import Refused
from herder.engine.runner.host import Host
from herder.engine.runner.kinds import PODS, parse_time, timestamp
from herder.engine.runner.pod.attempt import attempts_in
from herder.engine.runner.pod.container import RETRY_FIRST, RETRY_LIMIT, Container, Stop
from herder.engine.runner.pod.sources import NotReady, Sources
from herder.engine.runner.pod.status import PodState, Verdict, pod_status
from herder.engine.runner.pod.volumes import Volumes

log = get_logger(__name__)

FINAL_PHASES = frozenset({"Succeeded", "Failed"})


class Pod:
    """Runs the admitted spec, regardless of the object's spec. A refused pod fails without running."""

    def __init__(self, host: Host, pod: Object, admitted: Admitted | Refused) -> None:
        self.uid: str = pod["metadata"]["uid"]
        self.directory = host.pod_directory(self.uid)
        self._host = host
        self._admitted = admitted if isinstance(admitted, Admitted) else Admitted(pod["spec"])
        self._refusal = admitted if isinstance(admitted, Refused) else None
        pod = self._pod = {**pod, "spec": self._admitted.spec}
        self._stop = Stop()
        self._gone = asyncio.Event()
        self._dirty = asyncio.Event()
        self._published: Object | None = None
        self._volumes = Volumes(
            host.client,
            pod,
            self.directory / "volumes",
            user=host.user,
            node=host.name,
            address=host.address,
            host_paths=host.host_paths,
        )
        self.init = [self._container(spec, is_init=True) for spec in pod["spec"].get("initContainers") or ()]
        self.containers = [self._container(spec, is_init=False) for spec in pod["spec"]["containers"]]
        running = any(container.is_adopted for container in (*self.init, *self.containers))
        self._slot = host.slots.acquire_now() if running and self._refusal is None else None
        self._state = PodState(
            {container.name: container.state for container in self.containers},
            {container.name: container.state for container in self.init},
            started=pod["status"].get("startTime") or timestamp(host.clock()),
        )

    def _container(self, spec: Object, *, is_init: bool) -> Container:
        return Container(
            self._host,
            self._pod,
            spec,
            volumes=self._volumes,
            sources=self._sources,
            stop=self._stop,
            is_init=is_init,
            changed=self._dirty.set,
        )

    async def _refuse(self, refusal: Refused) -> None:
        """Fail the pod, and kill containers that a less strict runner started."""
        for container in (*self.init, *self.containers):
            for attempt in attempts_in(container.directory):
                attempt.kill()
                await attempt.ended()
        self._state.verdict = Verdict("Failed", REASON, str(refusal))
        self._host.recorder.warning(self._pod, REASON, str(refusal))
        await self._publish_end()

    def _sources(self) -> Sources:
        return self._admitted.sources(self._host.client, self._pod["metadata"]["namespace"])

    # --- external events ------------------------------------------------------------------------------------------

    def update(self, pod: Object) -> None:
        self._pod = {**pod, "spec": self._admitted.spec}
        if "deletionTimestamp" in pod["metadata"]:
            self._stop.request(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def object_deleted(self) -> None:
        """Kill everything immediately, because the object is gone."""
        self._gone.set()
        self._stop.request(0)

    def ended(self, container: str) -> bool:
        found = self._named(container)
        return found is None or found.state.ended is not None or self._state.final

    def log_of(self, container: str, *, previous: bool) -> Path | None:
        found = self._named(container)
        return found.log_of(previous=previous) if found is not None else None

    def waiting(self, container: str) -> str:
        found = self._named(container)
        return found.state.waiting[0] if found is not None and found.state.waiting else ""

    def _named(self, name: str) -> Container | None:
        return next((one for one in (*self.init, *self.containers) if one.name == name), None)

    # --- lifecycle ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the object is gone and nothing of the pod is left on this host."""
        self.update(self._pod)
        async with contextlib.AsyncExitStack() as stack:
            if self._pod["status"].get("phase") in FINAL_PHASES:
                self._state.final = True
            elif self._refusal is not None:
                await self._refuse(self._refusal)
            else:
                publishing = asyncio.ensure_future(self._publish_changes())
                stack.callback(publishing.cancel)
                await self._run_with_deadline()
                publishing.cancel()
                await self._publish_end()
            await self._host.remove(self.directory / "volumes")
            await self._stop.requested.wait()  # a finished pod and its logs stay until it is deleted
            await self._release()
            await self._gone.wait()
        await self._host.remove(self.directory)

    async def _run_with_deadline(self) -> None:
        deadline = asyncio.ensure_future(self._enforce_deadline())
        try:
            if await self._acquire_slot():
                try:
                    await self._run_containers()
                finally:
                    self._host.slots.release()
        finally:
            deadline.cancel()

    async def _acquire_slot(self) -> bool:
        """Wait for a slot; return False if a stop is requested meanwhile."""
        slot, self._slot = self._slot or self._host.slots.acquire(), None
        if not slot.done():
            self._wait_all("ContainerCreating", self._no_slot_message())
        stopping = asyncio.ensure_future(self._stop.requested.wait())
        try:
            await asyncio.wait((slot, stopping), return_when=asyncio.FIRST_COMPLETED)
            return slot.done()
        finally:
            stopping.cancel()
            slot.cancel()

    def _no_slot_message(self) -> str:
        capacity = self._host.slots.capacity
        return f"node is at its limit of {capacity} running pods; this pod starts when another one ends"

    async def _run_containers(self) -> None:
        if not await self._prepare_volumes():
            return
        renewing = asyncio.ensure_future(self._renew_tokens())
        try:
            for container in self.init:
                await container.run()
                if not container.state.succeeded:
                    return
            self._dirty.set()
            await asyncio.gather(*(container.run() for container in self.containers))
        finally:
            renewing.cancel()

    async def _prepare_volumes(self) -> bool:
        """Prepare volumes, and retry until all sources exist; return False if a stop is requested meanwhile."""
        delay = RETRY_FIRST
        while not self._stop.requested.is_set():
            try:
                await self._volumes.prepare(self._sources(), self._host.clock())
                return True
            except NotReady as problem:
                self._host.recorder.warning(self._pod, "FailedMount", f"MountVolume failed: {problem.message}")
                self._wait_all("ContainerCreating", problem.message)
            await self._stop.pause(delay)
            delay = min(delay * 2, RETRY_LIMIT)
        return False

    async def _renew_tokens(self) -> None:
        while self._volumes.refresh_at is not None:
            remaining = (self._volumes.refresh_at - self._host.clock()).total_seconds()
            await asyncio.sleep(max(remaining, 1.0))
            try:
                await self._volumes.prepare(self._sources(), self._host.clock())
            except NotReady as problem:
                log.warning("token not renewed", pod=self._pod["metadata"]["name"], error=problem.message)
                await asyncio.sleep(RETRY_LIMIT)

    async def _enforce_deadline(self) -> None:
        seconds = self._pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return
        active = (self._host.clock() - parse_time(self._state.started)).total_seconds()
        await asyncio.sleep(max(seconds - active, 0))
        message = "Pod was active on the node longer than the specified deadline"
        self._state.verdict = Verdict("Failed", "DeadlineExceeded", message)
        self._stop.request(float(self._pod["spec"].get("terminationGracePeriodSeconds") or 0))

    def _wait_all(self, reason: str, message: str) -> None:
        for container in (*self.init, *self.containers):
            if container.state.ended is None and container.state.running_since is None:
                container.state.waiting = reason, message
        self._dirty.set()

    # --- status -----------------------------------------------------------------------------------------------------

    async def _publish_changes(self) -> None:
        self._dirty.set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._publish()

    async def _publish_end(self) -> None:
        """Publish the final status, which decides the outcome of the Job; retried until written or the pod is gone."""
        self._state.final = True
        init_failed = any(one.state.ended is not None and not one.state.succeeded for one in self.init)
        unfinished = any(one.state.ended is None for one in self.containers)
        if self._state.verdict is None and unfinished and not init_failed:
            self._state.verdict = Verdict("Failed", "", "")  # stopped before it ran
        await self._publish()

    async def _publish(self) -> None:
        delay = 0.2
        while not self._gone.is_set():
            status = pod_status(self._pod, self._state, address=self._host.address, now=timestamp(self._host.clock()))
            if status == self._published:
                return
            meta = self._pod["metadata"]
            patch = {"metadata": {"uid": self.uid}, "status": status}
            try:
                self._pod = await self._host.client.patch(
                    PODS, meta["name"], patch, namespace=meta["namespace"], subresource="status"
                )
                self.update(self._pod)
                self._published = status
                return
            except NotFound:
                return
            except Conflict:
                if not await self._still_exists():
                    return
                await asyncio.sleep(delay)
            except Invalid as error:
                log.error("status rejected", pod=meta["name"], error=str(error))
                return
            except (StatusError, OSError) as error:
                log.warning("status not written", pod=meta["name"], error=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_LIMIT)

    async def _still_exists(self) -> bool:
        """Return whether the name still refers to this pod and not to a successor."""
        meta = self._pod["metadata"]
        try:
            found = await self._host.client.get(PODS, meta["name"], namespace=meta["namespace"])
        except NotFound:
            return False
        except (StatusError, OSError):
            return True
        return bool(found["metadata"]["uid"] == self.uid)

    async def _release(self) -> None:
        """Delete the object, now that all containers have ended."""
        delay = 0.2
        while not self._gone.is_set():
            meta = self._pod["metadata"]
            try:
                await self._host.client.delete(
                    PODS, meta["name"], namespace=meta["namespace"], uid=self.uid, grace_seconds=0
                )
                return
            except NotFound:
                return
            except (StatusError, OSError):
                if not await self._still_exists():
                    return
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_LIMIT)
