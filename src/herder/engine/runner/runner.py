"""Runner: a minimal kubelet that registers a Node, runs pods as local processes, and serves their logs."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.runner.admission import Admitted, ApprovalKey, PodAdmission
from herder.engine.runner.approval import Refused
from herder.engine.runner.binding import Binder
from herder.engine.runner.concurrency import PodSlots
from herder.engine.runner.host import Host
from herder.engine.runner.isolation import UNAVAILABLE, HostUser, detect, private_paths
from herder.engine.runner.kinds import CONFIG_MAPS, POD, Clock
from herder.engine.runner.node import MAX_PODS, Node
from herder.engine.runner.pod.attempt import attempts_in
from herder.engine.runner.pod.environment import Commands
from herder.engine.runner.pod.pod import FINAL_PHASES, Pod
from herder.engine.runner.recorder import Recorder

log = get_logger(__name__)

DEFAULT_NAME = "herder-runner"
_RETRY, _ADMIT_RETRY = 5.0, 0.2


class RunnerError(Exception):
    """The runner cannot start on this host; the message says what to change."""


class Runner:
    """Node agent that runs pods as processes of this host.

    `commands` is called at each container start, so it can reflect a setting that changes at run time. `approval_key`
    signs the Jobs of Herder's controllers. Only their pods run, unless `all_pods` is set: then everyone who may create
    a pod in any namespace can run commands on this host.
    """

    def __init__(
        self,
        client: Client,
        *,
        work_dir: Path,
        commands: Commands,
        clock: Clock,
        entropy: Callable[[int], bytes] = os.urandom,
        name: str = DEFAULT_NAME,
        api_server: str = "",
        client_ca: bytes | None = None,
        hidden: tuple[Path, ...] = (),
        host_paths: tuple[Path, ...] = (),
        approval_key: ApprovalKey | None = None,
        all_pods: bool = False,
        max_pods: int = MAX_PODS,
        user: str = "nobody",
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._client = client
        self._work_dir = work_dir
        self._commands = commands
        self._clock = clock
        self._name = name
        self._service = service_variables(api_server)
        self._client_ca = client_ca
        self._approval_key = approval_key or _no_key
        self._all_pods = all_pods
        self._hidden = (work_dir, *hidden, *private_paths())
        self._host_paths = host_paths
        self._max_pods = max_pods
        self._user = user
        self._address = address
        self._port = port
        self._recorder = Recorder(client, component="herder-runner", clock=clock, entropy=entropy, host=name)
        self._assigned = Cache(POD)
        self._informer = Informer(client, self._assigned, self._changed, fields=f"spec.nodeName={name}")
        self._pods: dict[Key, Pod] = {}
        self._admitting: set[str] = set()  # UIDs
        self._workers: set[asyncio.Task[None]] = set()
        self._host: Host | None = None
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Running containers continue and are adopted by the next runner."""
        lock = self._lock_work_dir()
        try:
            self._host = await self._create_host()
            kubelet_port, stop_serving = await self._serve()
            node = Node(
                self._client,
                self._name,
                address=self._address,
                port=kubelet_port,
                clock=self._clock,
                isolation=self._host.isolation.describe(),
                capacity_pods=self._host.slots.capacity,
            )
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._recorder.run())
                    tasks.create_task(node.run())
                    await node.registered.wait()
                    tasks.create_task(self._informer.run())
                    await self._informer.synced.wait()
                    self._remove_orphaned_pods()
                    tasks.create_task(Binder(self._client, self._name, self._recorder).run())
                    self.ready.set()
            finally:
                await self._stop_workers()
                await stop_serving()
        finally:
            os.close(lock)

    # --- startup --------------------------------------------------------------------------------------------------

    def _lock_work_dir(self) -> int:
        self._work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self._work_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RunnerError(f"{self._work_dir} is in use by another runner; stop it first") from None
        return lock

    async def _create_host(self) -> Host:
        try:
            user = HostUser.named(self._user)
        except KeyError:
            raise RunnerError(
                f'user "{self._user}" does not exist on this host; choose another user for containers'
            ) from None
        isolation = await detect(self._work_dir, user)
        if isolation is None:
            raise RunnerError(UNAVAILABLE)
        if self._all_pods and user is None:
            log.warning(
                "all_pods is ignored without root: other pods would run with the UID of the manager", uid=os.geteuid()
            )
        return Host(
            client=self._client,
            name=self._name,
            address=self._address,
            work_dir=self._work_dir,
            commands=self._commands,
            clock=self._clock,
            recorder=self._recorder,
            isolation=isolation,
            user=user,
            slots=PodSlots(self._max_pods),
            service=self._service,
            admission=PodAdmission(self._client, self._approval_key, all_pods=self._all_pods and user is not None),
            hidden=self._hidden,
            host_paths=self._host_paths,
        )

    async def _serve(self) -> tuple[int, Callable[[], asyncio.Future[None]]]:
        client_ca = self._client_ca or await self._published_client_ca()
        if not client_ca:
            log.warning("container logs are not served; the client CA of the API server is unknown")

            async def no_op() -> None:
                return None

            return 10250, lambda: asyncio.ensure_future(no_op())
        from herder.engine.runner.kubelet import Kubelet

        kubelet = Kubelet(
            self._client,
            self._name,
            client_ca=client_ca,
            clock=self._clock,
            find=lambda namespace, name: self._pods.get(Key(namespace, name)),
        )
        port = await kubelet.listen(self._address, self._port)
        return port, lambda: asyncio.ensure_future(kubelet.stop())

    async def _published_client_ca(self) -> bytes:
        """Read the client CA that API servers publish for extension servers."""
        try:
            found = await self._client.get(CONFIG_MAPS, "extension-apiserver-authentication", namespace="kube-system")
        except StatusError:
            return b""
        return str((found.get("data") or {}).get("client-ca-file", "")).encode()

    def _remove_orphaned_pods(self) -> None:
        """Remove pods that were deleted while no runner was running."""
        root = self._work_dir / "pods"
        known = {pod["metadata"]["uid"] for pod in self._assigned.select()}
        for directory in root.iterdir() if root.is_dir() else ():
            if directory.name not in known:
                self._spawn(self._remove_pod_directory(directory))

    async def _remove_pod_directory(self, directory: Path) -> None:
        containers = directory / "containers"
        for container in containers.iterdir() if containers.is_dir() else ():
            for attempt in attempts_in(container):
                attempt.kill()
                await attempt.ended()
        if self._host is not None:
            await self._host.remove(directory)

    # --- pods -----------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        name, pod = change.key, change.new
        known = self._pods.get(name)
        if known is not None and (pod is None or pod["metadata"]["uid"] != known.uid):
            known.object_deleted()
            del self._pods[name]
            known = None
        if pod is None:
            return
        if known is not None:
            known.update(pod)
            return
        uid = pod["metadata"]["uid"]
        if uid not in self._admitting:
            self._admitting.add(uid)
            self._spawn(self._admit(name, uid))

    async def _admit(self, name: Key, uid: str) -> None:
        """Decide whether the pod runs here, and run it or fail it."""
        assert self._host is not None
        delay = _ADMIT_RETRY
        try:
            while (pod := self._assigned.get(name)) is not None and pod["metadata"]["uid"] == uid:
                try:
                    admitted: Admitted | Refused = Refused("the pod has ended")  # only its deletion is awaited
                    if pod["status"].get("phase") not in FINAL_PHASES:
                        admitted = await self._host.admission.admit(pod)
                except Refused as refusal:
                    admitted = refusal
                except (StatusError, OSError) as error:
                    log.warning("pod not admitted yet", pod="/".join(name), error=str(error))
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, _RETRY)
                    continue
                self._start_pod(name, uid, admitted)
                return
        except Exception:  # an invalid pod must not affect the others
            log.exception("pod admission failed", pod="/".join(name))
        finally:
            self._admitting.discard(uid)

    def _start_pod(self, name: Key, uid: str, admitted: Admitted | Refused) -> None:
        assert self._host is not None
        pod = self._assigned.get(name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            started = self._pods[name] = Pod(self._host, pod, admitted)
            self._spawn(self._run_pod(started))

    async def _run_pod(self, pod: Pod) -> None:
        """Run a pod; after an unexpected error, start again from the state on disk."""
        while True:
            try:
                await pod.run()
                return
            except Exception:  # errors affect only this pod
                log.exception("pod failed", uid=pod.uid)
                await asyncio.sleep(_RETRY)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    async def _stop_workers(self) -> None:
        for task in self._workers:
            task.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


async def _no_key() -> None:
    return None


def service_variables(api_server: str) -> dict[str, str]:
    """Return the environment variables with which client libraries find the API server."""
    if not api_server:
        return {}
    parts = urlsplit(api_server)
    host, port = parts.hostname or "", str(parts.port or 443)
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
        "KUBERNETES_PORT": f"tcp://{host}:{port}",
    }
