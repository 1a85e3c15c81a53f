"""The node as a whole: its Node object, the pods it takes and runs, and the endpoint that serves their logs."""

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
from herder.engine.runner.attempts import attempts_in
from herder.engine.runner.binding import Binder
from herder.engine.runner.environment import Commands
from herder.engine.runner.host import Host
from herder.engine.runner.isolation import UNAVAILABLE, HostUser, detect, private_places
from herder.engine.runner.kinds import CONFIG_MAPS, POD, Clock
from herder.engine.runner.node import MAX_PODS, Node
from herder.engine.runner.pods import FINAL_PHASES, Pod
from herder.engine.runner.recorder import Recorder
from herder.engine.runner.turns import Turns

log = get_logger(__name__)

DEFAULT_NAME = "herder-runner"
_RETRY, _ADMIT_AGAIN = 5.0, 0.2


class RunnerError(Exception):
    """The runner cannot start here; the text says what to change."""


class Runner:
    """`commands` is asked at each start of a container, so it may follow a setting that changes while running.

    `approval_key` signs the Jobs of Herder's controllers. Only their pods run, unless `all_pods` is set: then everybody
    who may create a pod in any namespace runs commands on this host.
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
        self._hidden = (work_dir, *hidden, *private_places())
        self._host_paths = host_paths
        self._max_pods = max_pods
        self._user = user
        self._address = address
        self._port = port
        self._recorder = Recorder(client, component="herder-runner", clock=clock, entropy=entropy, host=name)
        self._assigned = Cache(POD)
        self._informer = Informer(client, self._assigned, self._changed, fields=f"spec.nodeName={name}")
        self._pods: dict[Key, Pod] = {}
        self._admitting: set[str] = set()  # uids
        self._workers: set[asyncio.Task[None]] = set()
        self._host: Host | None = None
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; containers that run then go on, and are found again by the next runner."""
        lock = self._take_work_dir()
        try:
            self._host = await self._look_around()
            kubelet_port, stop_serving = await self._serve()
            node = Node(
                self._client,
                self._name,
                address=self._address,
                port=kubelet_port,
                clock=self._clock,
                isolation=self._host.isolation.describe(),
                capacity_pods=self._host.turns.places,
            )
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._recorder.run())
                    tasks.create_task(node.run())
                    await node.registered.wait()
                    tasks.create_task(self._informer.run())
                    await self._informer.synced.wait()
                    self._sweep()
                    tasks.create_task(Binder(self._client, self._name, self._recorder).run())
                    self.ready.set()
            finally:
                await self._stop_workers()
                await stop_serving()
        finally:
            os.close(lock)

    # --- starting -------------------------------------------------------------------------------------------------

    def _take_work_dir(self) -> int:
        self._work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self._work_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RunnerError(f"{self._work_dir} is in use by another runner; stop it first") from None
        return lock

    async def _look_around(self) -> Host:
        try:
            user = HostUser.named(self._user)
        except KeyError:
            raise RunnerError(f'no user "{self._user}" on this host to run containers as') from None
        isolation = await detect(self._work_dir, user)
        if isolation is None:
            raise RunnerError(UNAVAILABLE)
        if self._all_pods and user is None:
            log.warning(
                "only pods of Jobs that Herder created run: others would have the uid of the manager", uid=os.geteuid()
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
            turns=Turns(self._max_pods),
            service=self._service,
            admission=PodAdmission(self._client, self._approval_key, all_pods=self._all_pods and user is not None),
            hidden=self._hidden,
            host_paths=self._host_paths,
        )

    async def _serve(self) -> tuple[int, Callable[[], asyncio.Future[None]]]:
        client_ca = self._client_ca or await self._published_client_ca()
        if not client_ca:
            log.warning("logs are not served: the API server's client CA is not known")

            async def nothing() -> None:
                return None

            return 10250, lambda: asyncio.ensure_future(nothing())
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
        """Real API servers publish the CA of their callers for servers such as this one."""
        try:
            found = await self._client.get(CONFIG_MAPS, "extension-apiserver-authentication", namespace="kube-system")
        except StatusError:
            return b""
        return str((found.get("data") or {}).get("client-ca-file", "")).encode()

    def _sweep(self) -> None:
        """Pods that were deleted while no runner was there."""
        root = self._work_dir / "pods"
        known = {pod["metadata"]["uid"] for pod in self._assigned.select()}
        for directory in root.iterdir() if root.is_dir() else ():
            if directory.name not in known:
                self._spawn(self._clear(directory))

    async def _clear(self, directory: Path) -> None:
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
            known.vanish()
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
        delay = _ADMIT_AGAIN
        try:
            while (pod := self._assigned.get(name)) is not None and pod["metadata"]["uid"] == uid:
                try:
                    admitted: Admitted | Refused = Refused("the pod has ended")  # it is only waited for its deletion
                    if pod["status"].get("phase") not in FINAL_PHASES:
                        admitted = await self._host.admission.admit(pod)
                except Refused as refusal:
                    admitted = refusal
                except (StatusError, OSError) as error:
                    log.warning("pod not admitted yet", pod="/".join(name), error=str(error))
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, _RETRY)
                    continue
                self._begin(name, uid, admitted)
                return
        except Exception:  # a pod that defies sense must not take the others down with it
            log.exception("pod cannot be run", pod="/".join(name))
        finally:
            self._admitting.discard(uid)

    def _begin(self, name: Key, uid: str, admitted: Admitted | Refused) -> None:
        assert self._host is not None
        pod = self._assigned.get(name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            fresh = self._pods[name] = Pod(self._host, pod, admitted)
            self._spawn(self._tend(fresh))

    async def _tend(self, pod: Pod) -> None:
        """A pod's life, begun again from what is on disk should it fail."""
        while True:
            try:
                await pod.run()
                return
            except Exception:  # whatever it is, it concerns this pod alone
                log.exception("pod failed", uid=pod.uid)
                await asyncio.sleep(_RETRY)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    async def _stop_workers(self) -> None:
        for task in self._workers:
            task.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


async def _no_key() -> None:
    return None


def service_variables(api_server: str) -> dict[str, str]:
    """By these a client library in a pod finds the API server."""
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
