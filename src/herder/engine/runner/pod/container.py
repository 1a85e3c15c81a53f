"""Container lifecycle: prepare, start, wait, restart according to the restart policy."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.runner.host import Host
from herder.engine.runner.isolation import container_config
from herder.engine.runner.logs import tail_text
from herder.engine.runner.pod import downward
from herder.engine.runner.pod.attempt import LOST_CODE, Attempt, Outcome, attempts_in
from herder.engine.runner.pod.environment import command_line, program_of, variables_of
from herder.engine.runner.pod.sources import NotReady, Sources
from herder.engine.runner.pod.status import ContainerState, terminated
from herder.engine.runner.pod.volumes import Volumes

MESSAGE_BYTES, FALLBACK_BYTES, FALLBACK_LINES = 4096, 2048, 80
RETRY_FIRST, RETRY_LIMIT = 1.0, 30.0
CRASH_FIRST, CRASH_LIMIT = 10.0, 300.0
_LOST = "container record was lost; the exit status of the container is unknown"


class Stop:
    """Stop request to all containers of a pod; a repeated request can only shorten the grace period."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.grace = 30.0
        self._shortened = asyncio.Event()

    def request(self, grace: float) -> None:
        if not self.requested.is_set() or grace < self.grace:
            self.grace = grace
            self._shortened.set()
        self.requested.set()

    async def wait_grace_period(self) -> None:
        """Wait until the grace period is over."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while (remaining := started + self.grace - loop.time()) > 0:
            self._shortened.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._shortened.wait(), remaining)

    async def pause(self, seconds: float) -> bool:
        """Sleep until the time is over or a stop is requested; return whether it was requested."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.requested.wait(), seconds)
        return self.requested.is_set()


class Container:
    """One container of a pod."""

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
        self._adopt()

    async def run(self) -> None:
        """Run until the container has ended for good or was stopped."""
        crashes = 0
        while self.state.ended is None or self._should_restart():
            if self.state.ended is not None:
                if await self._crash_pause(crashes):
                    return
                crashes += 1
            found, self._found = self._found, None
            attempt = found or await self._start()
            if attempt is None:
                return
            await self._monitor(attempt, adopted=found is not None)

    @property
    def is_adopted(self) -> bool:
        """Whether an earlier runner started the current attempt, which is not being awaited yet."""
        return self._found is not None

    def log_of(self, *, previous: bool) -> Path | None:
        attempts = [attempt for attempt in attempts_in(self.directory) if attempt.has_run()]
        wanted = 2 if previous else 1
        return attempts[-wanted].log if len(attempts) >= wanted else None

    # --- adoption after a runner restart --------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Find the state that an earlier runner left: a running attempt, or the outcome of the last one."""
        attempts = attempts_in(self.directory)
        if not attempts:
            self._adopt_from_status()
            return
        if len(attempts) > 1 and (outcome := attempts[-2].outcome()) is not None:
            self.state.last = self._terminated(attempts[-2], outcome)
        newest = attempts[-1]
        self._next = newest.number
        self.state.restarts = newest.number
        if newest.is_alive():
            self._found = newest
        elif (outcome := newest.outcome()) is not None:
            self._end(newest, outcome)

    def _adopt_from_status(self) -> None:
        """Treat a container without local record as ended if its status says it ran, so that it never silently runs
        twice."""
        field = "initContainerStatuses" if self._is_init else "containerStatuses"
        reported = next((one for one in self._pod["status"].get(field) or () if one["name"] == self.name), None)
        if reported is None or not reported.get("containerID"):
            return
        self.state.restarts = int(reported.get("restartCount", 0))
        self.state.container_id = reported["containerID"]
        self._next = self.state.restarts + 1
        now = self._host.clock().timestamp()
        known = (reported.get("state") or {}).get("terminated") or (reported.get("lastState") or {}).get("terminated")
        unknown = Outcome(LOST_CODE, 0.0, now, 0, "ContainerStatusUnknown", _LOST)
        self.state.ended = known or terminated(unknown, container_id=reported["containerID"], message="")
        self.state.waiting = None

    # --- start ----------------------------------------------------------------------------------------------------

    async def _start(self) -> Attempt | None:
        """Start an attempt, and retry until its dependencies exist; return None if a stop is requested."""
        delay = RETRY_FIRST
        while not self._stop.requested.is_set():
            try:
                config = await self._prepare_config()
                await self._remove_old_attempts()
                return await self._launch(config)
            except NotReady as problem:
                self._set_waiting(problem.reason, problem.message)
                self._host.recorder.warning(self._pod, "Failed", f"Error: {problem.message}", field=self._field)
                if await self._stop.pause(delay):
                    break
                if problem.reason == "ErrImagePull":
                    self._set_waiting("ImagePullBackOff", problem.message)
                delay = min(delay * 2, RETRY_LIMIT)
        return None

    async def _prepare_config(self) -> dict[str, Any]:
        host, spec = self._host, self.spec
        if self._is_init and spec.get("restartPolicy") == "Always":
            raise NotReady(
                "CreateContainerConfigError",
                "sidecar containers (init containers with restartPolicy Always) are not supported",
            )
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
            container_ids=(context.get("runAsUser"), context.get("runAsGroup")),
            mounts=self._volumes.mounts(spec),
            needs=list(program.needs),
            hidden=[str(path) for path in host.hidden],
            working_dir=str(spec.get("workingDir") or "/"),
            limits=limits_of(spec),
        )

    async def _launch(self, config: dict[str, Any]) -> Attempt:
        directory = self.directory / str(self._next)
        await self._host.remove(directory)  # an attempt that never started
        directory.mkdir(parents=True, mode=0o700)
        message = directory / "termination-message"
        message.touch(mode=0o666)
        message.chmod(0o666)
        target = self.spec.get("terminationMessagePath") or "/dev/termination-log"
        config["mounts"].append({"source": str(message), "target": target})
        recorder, image = self._host.recorder, self.spec.get("image", "")
        pulled = f'Image "{image}" is the local command {config["command"][0]}'
        recorder.normal(self._pod, "Pulled", pulled, field=self._field)
        recorder.normal(self._pod, "Created", f"Container created: {self.name}", field=self._field)
        return await Attempt.start(directory, config)

    async def _remove_old_attempts(self) -> None:
        """Remove all attempts except the last one, whose log is kept."""
        for attempt in attempts_in(self.directory):
            if attempt.number < self._next - 1:
                await self._host.remove(attempt.directory)

    # --- monitor --------------------------------------------------------------------------------------------------

    async def _monitor(self, attempt: Attempt, *, adopted: bool) -> None:
        self.state.container_id = self._id_of(attempt)
        self.state.restarts = attempt.number
        if self.state.ended is not None:
            self.state.last, self.state.ended = self.state.ended, None
        if await attempt.started() and (since := attempt.started_at()) is not None:
            self.state.waiting, self.state.running_since = None, since
            if not adopted:
                self._host.recorder.normal(self._pod, "Started", f"Container started: {self.name}", field=self._field)
            self._changed()
        end_task = asyncio.ensure_future(attempt.ended())
        stop_task = asyncio.ensure_future(self._stop_on_request(attempt))
        try:
            outcome = await end_task
        finally:
            end_task.cancel()
            stop_task.cancel()
        if outcome is None:  # it never started; the next iteration starts it
            self.state.running_since = None
            await self._stop.pause(RETRY_FIRST)
            return
        self._end(attempt, outcome)
        self._changed()

    async def _stop_on_request(self, attempt: Attempt) -> None:
        await self._stop.requested.wait()
        self._host.recorder.normal(self._pod, "Killing", f"Stopping container {self.name}", field=self._field)
        await attempt.started()
        if self._stop.grace > 0:
            attempt.terminate()
            await self._stop.wait_grace_period()
        attempt.kill()

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        self.state.ended = self._terminated(attempt, outcome)
        self.state.waiting = self.state.running_since = None
        self.state.container_id = self._id_of(attempt)
        self._next = attempt.number + 1
        if outcome.reason:
            self._host.recorder.warning(self._pod, "Failed", f"Error: {outcome.message}", field=self._field)

    def _should_restart(self) -> bool:
        if self._stop.requested.is_set() or self.state.ended is None:
            return False
        policy = self._pod["spec"].get("restartPolicy", "Always")
        if self.state.succeeded:
            return bool(policy == "Always") and not self._is_init
        return bool(policy != "Never")

    async def _crash_pause(self, crashes: int) -> bool:
        seconds = min(CRASH_FIRST * 2.0**crashes, CRASH_LIMIT)
        self.state.last, self.state.ended = self.state.ended, None
        message = f"back-off {round(seconds)}s restarting failed container={self.name}"
        self._set_waiting("CrashLoopBackOff", message)
        self._host.recorder.warning(self._pod, "BackOff", f"Back-off restarting failed container {self.name}")
        stopped = await self._stop.pause(seconds)
        if stopped:
            self.state.ended, self.state.last = self.state.last, None
        return stopped

    # --- status ---------------------------------------------------------------------------------------------------

    def _set_waiting(self, reason: str, message: str) -> None:
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
            return text.encode()[-limit:].decode(errors="ignore")  # replacement characters may be longer
    except OSError:
        return ""
