"""One pod on this node, from the moment it is bound until its object is gone."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from herder.engine.logs import get_logger
from herder.engine.meta.errors import Conflict, Invalid, NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runner.admission import REASON, Admitted
from herder.engine.runner.approval import Refused
from herder.engine.runner.attempts import attempts_in
from herder.engine.runner.containers import RETRY_FIRST, RETRY_LIMIT, Container, Stop
from herder.engine.runner.host import Host
from herder.engine.runner.kinds import PODS, parse_time, timestamp
from herder.engine.runner.sources import NotReady, Sources
from herder.engine.runner.status import PodState, Verdict, pod_status
from herder.engine.runner.volumes import Volumes

log = get_logger(__name__)

FINAL_PHASES = frozenset({"Succeeded", "Failed"})


class Pod:
    """Runs the spec that was admitted, whatever the object says. One that was refused fails without running."""

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
        running = any(container.runs_already for container in (*self.init, *self.containers))
        self._turn = host.turns.at_once() if running and self._refusal is None else None
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
        """Containers that run nevertheless, started by a runner that admitted more, are killed."""
        for container in (*self.init, *self.containers):
            for attempt in attempts_in(container.directory):
                attempt.kill()
                await attempt.ended()
        self._state.verdict = Verdict("Failed", REASON, str(refusal))
        self._host.recorder.warning(self._pod, REASON, str(refusal))
        await self._publish_end()

    def _sources(self) -> Sources:
        return self._admitted.sources(self._host.client, self._pod["metadata"]["namespace"])

    # --- what others tell it --------------------------------------------------------------------------------------

    def update(self, pod: Object) -> None:
        self._pod = {**pod, "spec": self._admitted.spec}
        if "deletionTimestamp" in pod["metadata"]:
            self._stop.ask(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def vanish(self) -> None:
        """The object is gone: whatever runs is ended at once."""
        self._gone.set()
        self._stop.ask(0)

    def ended(self, container: str) -> bool:
        found = self._named(container)
        return found is None or found.state.ended is not None or self._state.final

    def log_of(self, container: str, *, previous: bool) -> Path | None:
        found = self._named(container)
        return found.log_of(previous=previous) if found is not None else None

    def waits(self, container: str) -> str:
        found = self._named(container)
        return found.state.waiting[0] if found is not None and found.state.waiting else ""

    def _named(self, name: str) -> Container | None:
        return next((one for one in (*self.init, *self.containers) if one.name == name), None)

    # --- its life -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns once the object is gone and nothing of the pod is left here."""
        self.update(self._pod)
        async with contextlib.AsyncExitStack() as stack:
            if self._pod["status"].get("phase") in FINAL_PHASES:
                self._state.final = True
            elif self._refusal is not None:
                await self._refuse(self._refusal)
            else:
                publishing = asyncio.ensure_future(self._publish_changes())
                stack.callback(publishing.cancel)
                await self._live()
                publishing.cancel()
                await self._publish_end()
            await self._host.remove(self.directory / "volumes")
            await self._stop.asked.wait()  # a finished pod stays, with its logs, until it is deleted
            await self._release()
            await self._gone.wait()
        await self._host.remove(self.directory)

    async def _live(self) -> None:
        deadline = asyncio.ensure_future(self._keep_deadline())
        try:
            if await self._turn_comes():
                try:
                    await self._run_containers()
                finally:
                    self._host.turns.give_back()
        finally:
            deadline.cancel()

    async def _turn_comes(self) -> bool:
        """False when asked to stop meanwhile."""
        turn, self._turn = self._turn or self._host.turns.next(), None
        if not turn.done():
            self._wait_all("ContainerCreating", self._all_places_taken())
        stopping = asyncio.ensure_future(self._stop.asked.wait())
        try:
            await asyncio.wait((turn, stopping), return_when=asyncio.FIRST_COMPLETED)
            return turn.done()
        finally:
            stopping.cancel()
            turn.cancel()

    def _all_places_taken(self) -> str:
        places = self._host.turns.places
        return f"as many pods run on this node as it takes ({places}); this one starts when another has ended"

    async def _run_containers(self) -> None:
        if not await self._have_volumes():
            return
        renewing = asyncio.ensure_future(self._renew_tokens())
        try:
            for container in self.init:
                await container.live()
                if not container.state.succeeded:
                    return
            self._dirty.set()
            await asyncio.gather(*(container.live() for container in self.containers))
        finally:
            renewing.cancel()

    async def _have_volumes(self) -> bool:
        """Tried until everything that is mounted exists; False when asked to stop meanwhile."""
        delay = RETRY_FIRST
        while not self._stop.asked.is_set():
            try:
                await self._volumes.materialise(self._sources(), self._host.clock())
                return True
            except NotReady as problem:
                self._host.recorder.warning(self._pod, "FailedMount", f"MountVolume failed: {problem.message}")
                self._wait_all("ContainerCreating", problem.message)
            await self._stop.pause(delay)
            delay = min(delay * 2, RETRY_LIMIT)
        return False

    async def _renew_tokens(self) -> None:
        while self._volumes.refresh_at is not None:
            left = (self._volumes.refresh_at - self._host.clock()).total_seconds()
            await asyncio.sleep(max(left, 1.0))
            try:
                await self._volumes.materialise(self._sources(), self._host.clock())
            except NotReady as problem:
                log.warning("token not renewed", pod=self._pod["metadata"]["name"], error=problem.message)
                await asyncio.sleep(RETRY_LIMIT)

    async def _keep_deadline(self) -> None:
        seconds = self._pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return
        active = (self._host.clock() - parse_time(self._state.started)).total_seconds()
        await asyncio.sleep(max(seconds - active, 0))
        message = "Pod was active on the node longer than the specified deadline"
        self._state.verdict = Verdict("Failed", "DeadlineExceeded", message)
        self._stop.ask(float(self._pod["spec"].get("terminationGracePeriodSeconds") or 0))

    def _wait_all(self, reason: str, message: str) -> None:
        for container in (*self.init, *self.containers):
            if container.state.ended is None and container.state.running_since is None:
                container.state.waiting = reason, message
        self._dirty.set()

    # --- telling the API --------------------------------------------------------------------------------------------

    async def _publish_changes(self) -> None:
        self._dirty.set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._publish()

    async def _publish_end(self) -> None:
        """The last state, which decides over the Job, is written for sure or the pod is gone."""
        self._state.final = True
        init_failed = any(one.state.ended is not None and not one.state.succeeded for one in self.init)
        unfinished = any(one.state.ended is None for one in self.containers)
        if self._state.verdict is None and unfinished and not init_failed:
            self._state.verdict = Verdict("Failed", "", "")  # stopped before it could run
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
                if not await self._still_there():
                    return
                await asyncio.sleep(delay)
            except Invalid as error:
                log.error("status refused", pod=meta["name"], error=str(error))
                return
            except (StatusError, OSError) as error:
                log.warning("status not written", pod=meta["name"], error=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_LIMIT)

    async def _still_there(self) -> bool:
        """Whether the name still stands for this pod, and not for another that came after it."""
        meta = self._pod["metadata"]
        try:
            found = await self._host.client.get(PODS, meta["name"], namespace=meta["namespace"])
        except NotFound:
            return False
        except (StatusError, OSError):
            return True
        return bool(found["metadata"]["uid"] == self.uid)

    async def _release(self) -> None:
        """All has ended here: the object may go."""
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
                if not await self._still_there():
                    return
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_LIMIT)
