"""A cloud, and the Jobs that use it: instead of a runner and a machine CLI, with what both would write.

The cloud is the judge: it knows which servers there are, whatever anybody believes.
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

STORE = "/home/machine/.docker/machine/machines"


def archive(instance: str, phase: str | None) -> str:
    """What a state Secret holds: of our own program with its phase, of the Go program without."""
    config: Object = {"ConfigVersion": 3, "Name": instance, "DriverName": "amazonec2"}
    if phase:
        config["Herder"] = {"Phase": phase}
    return base64.b64encode(pack({f"{STORE}/{instance}/config.json": json.dumps(config).encode()})).decode()


EMPTY = base64.b64encode(pack({})).decode()


class Cloud:
    """Runs Jobs. `fails` says of a Job's words what goes wrong, or "" """

    def __init__(self, world: World, *, fails: Callable[[list[str]], str] = lambda _words: "") -> None:
        self.world = world
        self.client: Client = world.client
        self.fails = fails
        self.loses_pods = False
        self.is_full = False  # Jobs find no place to run
        self.servers: dict[str, int] = {}  # by instance: how often it was made
        self.creations: dict[str, int] = {}  # by infra machine: Jobs that created it
        self.running: dict[str, int] = {}  # by infra machine: Jobs at work now
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        while True:
            async for event in self.client.watch(JOB.resource, initial_events=True):
                uid = event.object["metadata"].get("uid", "")
                if event.type == "DELETED":
                    self._tasks[uid].cancel()  # its pod goes with it, wherever it was
                elif event.type != "BOOKMARK" and uid not in self._tasks:
                    self._tasks[uid] = asyncio.ensure_future(self._work(event.object))

    async def _work(self, job: Object) -> None:
        """As a pod of the Job would; the manager that made it may be dead by now."""
        if job["spec"].get("suspend"):
            return
        machine = job["metadata"]["labels"][names.INFRA_NAME_LABEL]
        words = job["spec"]["template"]["spec"]["containers"][0]["args"]
        creates = "create" in words
        if creates:
            self.creations[machine] = self.creations.get(machine, 0) + 1
        self.running[machine] = self.running.get(machine, 0) + 1
        assert self.running[machine] == 1, "never two Jobs for one machine at the same time"
        secrets = await self.client.list(SECRET.resource, namespace=job["metadata"]["namespace"])
        assert names.environment_secret(machine) in {secret["metadata"]["name"] for secret in secrets.items}
        try:
            pod = await self._pod(job)
            if self.is_full:
                await asyncio.get_running_loop().create_future()
            await self._pause()
            await self._status(POD, pod["metadata"], {"phase": "Running"})
            await self._pause()
            trouble = self.fails(words)
            await (self._create if creates else self._remove)(job["metadata"]["namespace"], words, trouble)
            await self._end(job, pod, trouble)
        except NotFound:
            pass  # somebody deleted the Job, or its pod, while it was at work
        finally:
            self.running[machine] -= 1

    async def _create(self, namespace: str, words: list[str], trouble: str) -> None:
        instance, state = words[-1], words[3].removeprefix("--secret-name=")
        if trouble.startswith("before"):
            return
        await self._save(namespace, state, archive(instance, "creating"))
        await self._pause()
        self.servers.setdefault(instance, 0)
        self.servers[instance] += 1
        await self._pause()
        if not trouble:
            await self._save(namespace, state, archive(instance, "created"))

    async def _remove(self, namespace: str, words: list[str], trouble: str) -> None:
        if trouble:
            return
        self.servers.pop(words[-1], None)
        await self._pause()
        await self._save(namespace, words[3].removeprefix("--secret-name="), EMPTY)

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

    async def _end(self, job: Object, pod: Object, trouble: str) -> None:
        meta, now = pod["metadata"], timestamp(self.world.now())
        terminated: Object = {"exitCode": 1 if trouble else 0, "startedAt": now, "finishedAt": now}
        if trouble:
            terminated["message"] = trouble
        container = {
            "name": CONTAINER,
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": terminated},
        }
        told: Object = {"phase": "Failed" if trouble else "Succeeded", "containerStatuses": [container]}
        if self.loses_pods:
            await self.client.delete(POD.resource, meta["name"], namespace=meta["namespace"], grace_seconds=0)
        else:
            await self._status(POD, meta, told)
        await self._pause()
        types = ("FailureTarget", "Failed") if trouble else ("SuccessCriteriaMet", "Complete")
        conditions = [{"type": type_, "status": "True", "lastTransitionTime": now} for type_ in types]
        ended: Object = {"startTime": now, "conditions": conditions}
        ended |= {"failed": 1} if trouble else {"succeeded": 1, "completionTime": now}
        await self._status(JOB, job["metadata"], ended)

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
