"""Simulated machine provider: creates and removes machines for the machine objects of any driver.

A machine object whose Machine has bootstrap data becomes a machine after a delay; deleting it removes the machine.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from random import Random

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import is_deleting
from herder.api.machines.kinds import DriverKinds
from herder.api.machines.names import STATE_KEY, STATE_SECRET_TYPE, state_secret
from herder.api.rke.names import plan_secret
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.sim.nodes import SimulatedNode

FINALIZER = "sim.herder.io/machine"
CREATION, REMOVAL = 20.0, 10.0

MakeNode = Callable[[str, str, str], SimulatedNode]
"""Creates a node from its name, address and plan Secret."""


class Provider:
    """Watches Machines and machine objects."""

    def __init__(
        self,
        client: Client,
        kinds: DriverKinds,
        namespace: str,
        *,
        make: MakeNode,
        random: Random,
        failed: Callable[[BaseException], None],
        creation: float = CREATION,
        removal: float = REMOVAL,
    ) -> None:
        """`creation` and `removal` are maximum durations in seconds; the minimum is a tenth."""
        self.nodes: dict[str, SimulatedNode] = {}
        self._client = client
        self._kind = kinds.machine
        self._namespace = namespace
        self._make = make
        self._random = random
        self._failed = failed
        self._creation = creation
        self._removal = removal
        self._machines: dict[str, Object] = {}  # Machines by name of their infrastructure object
        self._infrastructure: dict[str, Object] = {}
        self._removed: set[str] = set()  # UIDs of removed machines, whose last events may be pending
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._addresses = 0

    def start(self) -> None:
        self._watches = [asyncio.ensure_future(self._watch(kind)) for kind in (MACHINE, self._kind)]
        for watch in self._watches:
            watch.add_done_callback(self._ended)

    async def stop(self) -> None:
        tasks = [*self._watches, *self._busy.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self.nodes.values():
            node.destroy()

    async def _watch(self, kind: Kind) -> None:
        version = ""
        while True:  # servers end watches after some time
            watching = self._client.watch(
                kind.resource, namespace=self._namespace, resource_version=version, initial_events=not version
            )
            async for event in watching:
                version = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    self._on_event(kind, event.type, event.object)

    def _on_event(self, kind: Kind, event: str, obj: Object) -> None:
        known = self._machines if kind == MACHINE else self._infrastructure
        name = obj["spec"]["infrastructureRef"]["name"] if kind == MACHINE else obj["metadata"]["name"]
        if event == "DELETED":
            known.pop(name, None)
        else:
            known[name] = obj
        self._reconcile(name)

    def _reconcile(self, name: str) -> None:
        """One operation at a time per machine; it is reconciled again afterwards."""
        infra = self._infrastructure.get(name)
        if infra is None or name in self._busy or infra["metadata"]["uid"] in self._removed:
            return
        if is_deleting(infra):
            work = self._remove(name)
        elif name not in self.nodes and _has_data(self._machines.get(name)):
            work = self._create(name)
        elif name in self.nodes and (infra.get("spec") or {}).get("providerID") and not _is_provisioned(infra):
            work = self._write_status(name, {"initialization": {"provisioned": True}})
        else:
            return
        task = asyncio.ensure_future(work)
        self._busy[name] = task
        task.add_done_callback(lambda done: self._done(name, done))

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        self._busy.pop(name, None)
        self._ended(task)
        if not task.cancelled():
            self._reconcile(name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # --- machines ---------------------------------------------------------------------------------------------------

    async def _create(self, name: str) -> None:
        machine = self._machines[name]
        held = {"metadata": {"finalizers": [FINALIZER]}}
        await self._patch(name, held)
        await asyncio.sleep(self._random.uniform(self._creation / 10, self._creation))
        self._addresses += 1
        address = f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
        await self._record(name, address)
        node = self._make(name, address, plan_secret(machine["spec"]["bootstrap"]["configRef"]["name"]))
        self.nodes[name] = node
        conditions = [{"type": type_, "status": "True", "reason": "Created"} for type_ in ("CreateJob", "Ready")]
        await self._write_status(name, {"conditions": conditions})
        await asyncio.sleep(self._random.uniform(0, self._creation / 4))
        node.boot()

    async def _remove(self, name: str) -> None:
        uid = self._infrastructure[name]["metadata"]["uid"]  # read before the DELETED event
        await asyncio.sleep(self._random.uniform(self._removal / 10, self._removal))
        node = self.nodes.pop(name, None)
        if node is not None:
            node.destroy()
        await self._patch(name, {"metadata": {"finalizers": None}})
        self._removed.add(uid)

    async def _record(self, name: str, address: str) -> None:
        """Create the state Secret that the machine CLI would have written."""
        secret = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": {
                "name": state_secret(name),
                "namespace": self._namespace,
                "ownerReferences": [_owner(self._kind, self._infrastructure[name])],
            },
            "type": STATE_SECRET_TYPE,
            "data": {STATE_KEY: _packed(name, address)},
        }
        try:
            await self._client.create(SECRET.resource, secret, namespace=self._namespace)
        except StatusError:
            await self._client.patch(SECRET.resource, state_secret(name), secret, namespace=self._namespace)

    async def _write_status(self, name: str, status: Object) -> None:
        await self._patch(name, {"status": status}, "status")

    async def _patch(self, name: str, patch: Object, subresource: str = "") -> None:
        try:
            await self._client.patch(
                self._kind.resource, name, patch, namespace=self._namespace, subresource=subresource
            )
        except NotFound:
            return


def _has_data(machine: Object | None) -> bool:
    return machine is not None and bool((machine["spec"].get("bootstrap") or {}).get("dataSecretName"))


def _is_provisioned(infra: Object) -> bool:
    return bool(((infra.get("status") or {}).get("initialization") or {}).get("provisioned"))


def _owner(kind: Kind, obj: Object) -> Object:
    meta = obj["metadata"]
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": meta["name"], "uid": meta["uid"]}


def _packed(name: str, address: str) -> str:
    config = {"DriverName": "sim", "Driver": {"IPAddress": address, "PrivateIPAddress": address}}
    content = json.dumps({**config, "Herder": {"Phase": "created"}}).encode()
    archive = io.BytesIO()
    with tarfile.TarFile(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(f"management-state/node/nodes/{name}/machines/{name}/config.json")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    packer = zlib.compressobj(wbits=31)
    return base64.b64encode(packer.compress(archive.getvalue()) + packer.flush()).decode()
