"""A simulated cloud, and the Jobs that use it, in place of a runner and a machine program.

The cloud is the source of truth: it knows which servers exist, whatever objects claim.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import POD, SECRET
from herder.api.machines import names
from herder.api.machines.jobs import CONTAINER, JOB
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.machine.state.archive import pack
from herder.sim.world import World
from tests.support.builders import new_condition

STORE = "/home/machine/.docker/machine/machines"


def archive(instance: str, phase: str | None) -> str:
    """The content of a state Secret: with a phase as herder-machine writes it, without one as rancher-machine does."""
    config: Object = {"ConfigVersion": 3, "Name": instance, "DriverName": "amazonec2"}
    if phase:
        config["Herder"] = {"Phase": phase}
    return base64.b64encode(pack({f"{STORE}/{instance}/config.json": json.dumps(config).encode()})).decode()


EMPTY = base64.b64encode(pack({})).decode()


class Cloud:
    """Runs Jobs. `fails` returns the error of a Job for its arguments, or ""."""

    def __init__(self, world: World, *, fails: Callable[[list[str]], str] = lambda _arguments: "") -> None:
        self.world = world
        self.client: Client = world.client
        self.fails = fails
        self.loses_pods = False
        self.unschedulable = False  # Jobs are not scheduled
        self.servers: dict[str, int] = {}  # by instance: how often it was created
        self.creations: dict[str, int] = {}  # by infra machine: Jobs that created it
        self.running: dict[str, int] = {}  # by infra machine: Jobs that are running
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        while True:
            async for event in self.client.watch(JOB.resource, initial_events=True):
                uid = event.object["metadata"].get("uid", "")
                if event.type == "DELETED":
                    self._tasks[uid].cancel()  # its pod is deleted with it
                elif event.type != "BOOKMARK" and uid not in self._tasks:
                    self._tasks[uid] = asyncio.ensure_future(self._work(event.object))

    async def _work(self, job: Object) -> None:
        """Run a Job as its pod would, even if the manager that created it has died."""
        if job["spec"].get("suspend"):
            return
        machine = job["metadata"]["labels"][names.INFRA_NAME_LABEL]
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        creates = "create" in arguments
        if creates:
            self.creations[machine] = self.creations.get(machine, 0) + 1
        self.running[machine] = self.running.get(machine, 0) + 1
        assert self.running[machine] == 1, "never two Jobs for one machine at the same time"
        secrets = await self.client.list(SECRET.resource, namespace=job["metadata"]["namespace"])
        assert names.environment_secret(machine) in {secret["metadata"]["name"] for secret in secrets.items}
        try:
            pod = await self._pod(job)
            if self.unschedulable:
                await asyncio.get_running_loop().create_future()
            await self._pause()
            await self._status(POD, pod["metadata"], {"phase": "Running"})
            await self._pause()
            error = self.fails(arguments)
            await (self._create if creates else self._remove)(job["metadata"]["namespace"], arguments, error)
            await self._end(job, pod, error)
        except NotFound:
            pass  # a client deleted the Job or its pod while it ran
        finally:
            self.running[machine] -= 1

    async def _create(self, namespace: str, arguments: list[str], error: str) -> None:
        instance, state = arguments[-1], arguments[3].removeprefix("--secret-name=")
        if error.startswith("before"):
            return
        await self._save(namespace, state, archive(instance, "creating"))
        await self._pause()
        self.servers.setdefault(instance, 0)
        self.servers[instance] += 1
        await self._pause()
        if not error:
            await self._save(namespace, state, archive(instance, "created"))

    async def _remove(self, namespace: str, arguments: list[str], error: str) -> None:
        if error:
            return
        self.servers.pop(arguments[-1], None)
        await self._pause()
        await self._save(namespace, arguments[3].removeprefix("--secret-name="), EMPTY)

    async def _save(self, namespace: str, state: str, data: str) -> None:
        await self.client.patch(SECRET.resource, state, {"data": {names.STATE_KEY: data}}, namespace=namespace)

    async def _pod(self, job: Object) -> Object:
        meta = job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        template = job["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{meta['name']}-",
                "labels": template["metadata"]["labels"],
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
        return await self.client.create(POD.resource, pod, namespace=meta["namespace"])

    async def _end(self, job: Object, pod: Object, error: str) -> None:
        meta, now = pod["metadata"], timestamp(self.world.now())
        terminated: Object = {"exitCode": 1 if error else 0, "startedAt": now, "finishedAt": now}
        if error:
            terminated["message"] = error
        container = {
            "name": CONTAINER,
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": terminated},
        }
        pod_status: Object = {"phase": "Failed" if error else "Succeeded", "containerStatuses": [container]}
        if self.loses_pods:
            await self.client.delete(POD.resource, meta["name"], namespace=meta["namespace"], grace_seconds=0)
        else:
            await self._status(POD, meta, pod_status)
        await self._pause()
        types = ("FailureTarget", "Failed") if error else ("SuccessCriteriaMet", "Complete")
        conditions = [new_condition(type_, since=now) for type_ in types]
        job_status: Object = {"startTime": now, "conditions": conditions}
        job_status |= {"failed": 1} if error else {"succeeded": 1, "completionTime": now}
        await self._status(JOB, job["metadata"], job_status)

    async def _status(self, kind: Any, meta: Object, status: Object) -> None:
        await self.client.patch(
            kind.resource, meta["name"], {"status": status}, namespace=meta["namespace"], subresource="status"
        )

    async def _pause(self) -> None:
        await asyncio.sleep(self.world.random.uniform(0.01, 3.0))

    def check(self) -> None:
        for task in self._tasks.values():
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise RuntimeError("a Job could not be simulated") from task.exception()
