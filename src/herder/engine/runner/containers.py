"""A container's life: prepared, started, waited for, started again as the pod's policy says, until it stays ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.runner import downward
from herder.engine.runner.attempts import LOST_CODE, Attempt, Outcome, attempts_in
from herder.engine.runner.environment import command_line, program_of, variables_of
from herder.engine.runner.host import Host
from herder.engine.runner.isolation import container_config
from herder.engine.runner.logs import tail_text
from herder.engine.runner.sources import NotReady, Sources
from herder.engine.runner.status import ContainerState, terminated
from herder.engine.runner.volumes import Volumes

MESSAGE_BYTES, FALLBACK_BYTES, FALLBACK_LINES = 4096, 2048, 80
RETRY_FIRST, RETRY_LIMIT = 1.0, 30.0
CRASH_FIRST, CRASH_LIMIT = 10.0, 300.0
_LOST = "the runner has no record of this container any more; how it ended is not known"


class Stop:
    """Asked of all containers of a pod at once; a second asking may only shorten the grace."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.grace = 30.0
        self._shortened = asyncio.Event()

    def ask(self, grace: float) -> None:
        if not self.asked.is_set() or grace < self.grace:
            self.grace = grace
            self._shortened.set()
        self.asked.set()

    async def patience(self) -> None:
        """Until the grace is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (left := began + self.grace - loop.time()) > 0:
            self._shortened.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._shortened.wait(), left)

    async def pause(self, seconds: float) -> bool:
        """Sleep, or be woken by the asking; whether it was asked."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.asked.wait(), seconds)
        return self.asked.is_set()


class Container:
    def __init__(
        self,
        host: Host,
        pod: Object,
        spec: Object,
        *,
        volumes: Volumes,
        sources: Callable[[], Sources],
        stop: Stop,
        is_init: bool,
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.state = ContainerState()
        self._host = host
        self._pod = pod
        self._volumes = volumes
        self._sources = sources
        self._stop = stop
        self._is_init = is_init
        self._changed = changed
        self.directory = host.container_directory(pod["metadata"]["uid"], self.name)
        self._next = 0
        self._found: Attempt | None = None
        self._recall()

    async def live(self) -> None:
        """Until it has ended for good, or was stopped."""
        crashes = 0
        while self.state.ended is None or self._restarts():
            if self.state.ended is not None:
                if await self._crash_pause(crashes):
                    return
                crashes += 1
            found, self._found = self._found, None
            attempt = found or await self._start()
            if attempt is None:
                return
            await self._follow(attempt, found_again=found is not None)

    @property
    def runs_already(self) -> bool:
        """Whether a runner before us started it, and nobody waits for its end yet."""
        return self._found is not None

    def log_of(self, *, previous: bool) -> Path | None:
        attempts = [attempt for attempt in attempts_in(self.directory) if attempt.ran()]
        wanted = 2 if previous else 1
        return attempts[-wanted].log if len(attempts) >= wanted else None

    # --- after a restart of the runner ----------------------------------------------------------------------------

    def _recall(self) -> None:
        """Find what a runner before us left: an attempt that runs, or how the last one ended."""
        attempts = attempts_in(self.directory)
        if not attempts:
            self._recall_from_status()
            return
        if len(attempts) > 1 and (outcome := attempts[-2].outcome()) is not None:
            self.state.last = self._terminated(attempts[-2], outcome)
        newest = attempts[-1]
        self._next = newest.number
        self.state.restarts = newest.number
        if newest.alive():
            self._found = newest
        elif (outcome := newest.outcome()) is not None:
            self._end(newest, outcome)

    def _recall_from_status(self) -> None:
        """No trace here, but the API says that it ran: it must not silently run twice."""
        field = "initContainerStatuses" if self._is_init else "containerStatuses"
        reported = next((one for one in self._pod["status"].get(field) or () if one["name"] == self.name), None)
        if reported is None or not reported.get("containerID"):
            return
        self.state.restarts = int(reported.get("restartCount", 0))
        self.state.container_id = reported["containerID"]
        self._next = self.state.restarts + 1
        now = self._host.clock().timestamp()
        known = (reported.get("state") or {}).get("terminated") or (reported.get("lastState") or {}).get("terminated")
        lost = Outcome(LOST_CODE, 0.0, now, 0, "ContainerStatusUnknown", _LOST)
        self.state.ended = known or terminated(lost, container_id=reported["containerID"], message="")
        self.state.waiting = None

    # --- starting -------------------------------------------------------------------------------------------------

    async def _start(self) -> Attempt | None:
        """A fresh attempt, tried until what it needs is there; None once it was asked to stop instead."""
        delay = RETRY_FIRST
        while not self._stop.asked.is_set():
            try:
                config = await self._prepared()
                await self._forget_old_attempts()
                return await self._launch(config)
            except NotReady as problem:
                self._wait(problem.reason, problem.message)
                self._host.recorder.warning(self._pod, "Failed", f"Error: {problem.message}", field=self._field)
                if await self._stop.pause(delay):
                    break
                if problem.reason == "ErrImagePull":
                    self._wait("ImagePullBackOff", problem.message)
                delay = min(delay * 2, RETRY_LIMIT)
        return None

    async def _prepared(self) -> dict[str, Any]:
        host, spec = self._host, self.spec
        if self._is_init and spec.get("restartPolicy") == "Always":
            raise NotReady("CreateContainerConfigError", "the runner has no init containers that go on running")
        program = program_of(spec, host.commands)
        variables = await variables_of(
            self._pod,
            spec,
            self._sources(),
            node=host.name,
            address=host.address,
            service=host.service,
            image=program.environment,
        )
        context = {**(self._pod["spec"].get("securityContext") or {}), **(spec.get("securityContext") or {})}
        return container_config(
            command_line(spec, program, variables),
            variables,
            isolation=host.isolation,
            user=host.user,
            seen_as=(context.get("runAsUser"), context.get("runAsGroup")),
            mounts=self._volumes.mounts(spec),
            needs=list(program.needs),
            hidden=[str(path) for path in host.hidden],
            working_dir=str(spec.get("workingDir") or "/"),
            limits=limits_of(spec),
        )

    async def _launch(self, config: dict[str, Any]) -> Attempt:
        directory = self.directory / str(self._next)
        await self._host.remove(directory)  # what never ran
        directory.mkdir(parents=True, mode=0o700)
        message = directory / "termination-message"
        message.touch(mode=0o666)
        message.chmod(0o666)
        target = self.spec.get("terminationMessagePath") or "/dev/termination-log"
        config["mounts"].append({"source": str(message), "target": target})
        recorder, image = self._host.recorder, self.spec.get("image", "")
        shown = f'Image "{image}" is the local command {config["command"][0]}'
        recorder.normal(self._pod, "Pulled", shown, field=self._field)
        recorder.normal(self._pod, "Created", f"Container created: {self.name}", field=self._field)
        return await Attempt.start(directory, config)

    async def _forget_old_attempts(self) -> None:
        """The one before the new one is kept, for its log."""
        for attempt in attempts_in(self.directory):
            if attempt.number < self._next - 1:
                await self._host.remove(attempt.directory)

    # --- running --------------------------------------------------------------------------------------------------

    async def _follow(self, attempt: Attempt, *, found_again: bool) -> None:
        self.state.container_id = self._id_of(attempt)
        self.state.restarts = attempt.number
        if self.state.ended is not None:
            self.state.last, self.state.ended = self.state.ended, None
        if await attempt.started() and (since := attempt.started_at()) is not None:
            self.state.waiting, self.state.running_since = None, since
            if not found_again:
                self._host.recorder.normal(self._pod, "Started", f"Container started: {self.name}", field=self._field)
            self._changed()
        ending = asyncio.ensure_future(attempt.ended())
        stopping = asyncio.ensure_future(self._stopped(attempt))
        try:
            outcome = await ending
        finally:
            ending.cancel()
            stopping.cancel()
        if outcome is None:  # it was never let go; the next round starts it
            self.state.running_since = None
            await self._stop.pause(RETRY_FIRST)
            return
        self._end(attempt, outcome)
        self._changed()

    async def _stopped(self, attempt: Attempt) -> None:
        await self._stop.asked.wait()
        self._host.recorder.normal(self._pod, "Killing", f"Stopping container {self.name}", field=self._field)
        await attempt.started()
        if self._stop.grace > 0:
            attempt.terminate()
            await self._stop.patience()
        attempt.kill()

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        self.state.ended = self._terminated(attempt, outcome)
        self.state.waiting = self.state.running_since = None
        self.state.container_id = self._id_of(attempt)
        self._next = attempt.number + 1
        if outcome.reason:
            self._host.recorder.warning(self._pod, "Failed", f"Error: {outcome.message}", field=self._field)

    def _restarts(self) -> bool:
        if self._stop.asked.is_set() or self.state.ended is None:
            return False
        policy = self._pod["spec"].get("restartPolicy", "Always")
        if self.state.succeeded:
            return bool(policy == "Always") and not self._is_init
        return bool(policy != "Never")

    async def _crash_pause(self, crashes: int) -> bool:
        seconds = min(CRASH_FIRST * 2.0**crashes, CRASH_LIMIT)
        self.state.last, self.state.ended = self.state.ended, None
        message = f"back-off {round(seconds)}s restarting failed container={self.name}"
        self._wait("CrashLoopBackOff", message)
        self._host.recorder.warning(self._pod, "BackOff", f"Back-off restarting failed container {self.name}")
        stopped = await self._stop.pause(seconds)
        if stopped:
            self.state.ended, self.state.last = self.state.last, None
        return stopped

    # --- telling --------------------------------------------------------------------------------------------------

    def _wait(self, reason: str, message: str) -> None:
        self.state.waiting, self.state.running_since = (reason, message), None
        self._changed()

    @property
    def _field(self) -> str:
        return f"spec.{'initContainers' if self._is_init else 'containers'}{{{self.name}}}"

    def _id_of(self, attempt: Attempt) -> str:
        return f"herder://{self._pod['metadata']['uid']}/{self.name}/{attempt.number}"

    def _terminated(self, attempt: Attempt, outcome: Outcome) -> Object:
        message = last_bytes(attempt.termination_message, MESSAGE_BYTES)
        policy = self.spec.get("terminationMessagePolicy")
        if not message and outcome.code != 0 and policy == "FallbackToLogsOnError":
            message = tail_text(attempt.log, lines=FALLBACK_LINES, limit=FALLBACK_BYTES)
        return terminated(outcome, container_id=self._id_of(attempt), message=message)


def limits_of(spec: Object) -> dict[str, int]:
    limits = (spec.get("resources") or {}).get("limits") or {}
    return {"memory": int(downward.amount(limits["memory"]))} if "memory" in limits else {}


def last_bytes(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            text = file.read(limit).decode(errors="replace")
            return text.encode()[-limit:].decode(errors="ignore")  # what replaces a broken character may be longer
    except OSError:
        return ""
