"""The runner on both engines, started as by users: `herder up`, and `herder run --runner` on a real cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from tests.support.embedded import HERDER, Embedded
from tests.support.kube import RealKube
from tests.support.peers import peer

PODS = GroupVersionResource("", "v1", "pods")
JOBS = GroupVersionResource("batch", "v1", "jobs")
NODES = GroupVersionResource("", "v1", "nodes")
SECRETS = GroupVersionResource("", "v1", "secrets")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")
SETTINGS = GroupVersionResource("management.cattle.io", "v3", "settings")


class Engine:
    """One of the two engines; `crash` and `restart` act on the process that contains the runner."""

    name = ""
    kubeconfig: Path
    client: Client
    work_dir: Path

    def restart(self) -> None: ...

    def crash(self) -> None: ...

    def log(self) -> str:
        return ""

    async def connect(self) -> None:
        self.client = Client(HttpTransport(kubeconfigs.load(self.kubeconfig)))

    async def reconnect(self) -> None:
        await self.client.close()
        await self.connect()

    def kubectl(self, *arguments: str) -> str:
        command = [peer("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    async def kubectl_in_thread(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.kubectl, *arguments)

    async def until(
        self,
        resource: GroupVersionResource,
        name: str,
        holds: Callable[[Object], Any],
        *,
        namespace: str = "default",
        seconds: float = 60,
    ) -> Object:
        """Return the object once the condition holds. Polling also survives a restart of the server."""
        obj: Object = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        obj = await self.client.get(resource, name, namespace=namespace)
                        if holds(obj):
                            return obj
                    except StatusError as error:
                        obj = {"error": str(error)}
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{name} did not become as wanted; it is {obj}\n{self.log()[-2000:]}") from None

    async def gone(self, resource: GroupVersionResource, name: str, *, namespace: str = "default") -> None:
        async with asyncio.timeout(60):
            while (await self.client.list(resource, namespace=namespace, fields=f"metadata.name={name}")).items:
                await asyncio.sleep(0.05)

    async def pods_of(self, job: str, *, namespace: str = "default") -> list[Object]:
        page = await self.client.list(PODS, namespace=namespace, labels=f"batch.kubernetes.io/job-name={job}")
        return page.items


class EmbeddedEngine(Engine):
    name = "embedded"

    def __init__(self, directory: Path) -> None:
        flags = ("--capi-core=external", "--no-machines", "--runner-pods=all")
        self._server = Embedded(directory, flags=flags)
        self._server.start()
        self.kubeconfig = self._server.kubeconfig
        self.work_dir = directory / "runner"

    def crash(self) -> None:
        assert self._server.process is not None
        self._server.process.send_signal(signal.SIGKILL)
        self._server.process.wait()

    def restart(self) -> None:
        self._server.start()

    def log(self) -> str:
        return self._server.log()

    def stop(self) -> None:
        self._server.stop()


class RealEngine(Engine):
    name = "real"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "kube").mkdir()
        self._kube = RealKube(directory / "kube", controller_manager=True)
        self._kube.start()
        self.kubeconfig = self._kube.kubeconfig
        self.work_dir = directory / "node" / "runner"
        self.restart()

    def restart(self) -> None:
        with (self._directory / "run.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    HERDER,
                    "run",
                    "--kubeconfig",
                    self.kubeconfig,
                    "--runner",
                    "--runner-pods=all",
                    "--capi-core=external",
                    "--no-machines",
                    "--data-dir",
                    self._directory / "node",
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        return (self._directory / "run.log").read_text(errors="replace")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._kube.stop()


def job(name: str, script: str, **spec: Any) -> Object:
    """Return a Job with one container that runs a shell script; `pod` and `container` add fields to those."""
    pod: Object = spec.pop("pod", {})
    container: Object = spec.pop("container", {})
    main = {"name": "main", "image": "example/shell", "command": ["sh", "-c", script], **container}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "backoffLimit": 0,
            **spec,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "nodeSelector": {"herder.io/runner": "true"},
                    "tolerations": [{"key": "herder.io/runner", "operator": "Exists"}],
                    "terminationGracePeriodSeconds": 2,
                    "containers": [main],
                    **pod,
                }
            },
        },
    }


def finished(obj: Object) -> str:
    """Return Complete or Failed, or an empty string while the Job is neither."""
    for condition in obj.get("status", {}).get("conditions") or ():
        if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
            return str(condition["type"])
    return ""


def terminated(pod: Object) -> Object:
    ended: Object = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return ended
