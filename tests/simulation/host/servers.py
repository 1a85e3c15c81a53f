"""A simulated cluster without a manager: its machines run the commands that a test gives them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, cast

from herder.agent.core.events import Finished
from herder.agent.core.plan import File, Instruction
from herder.api.capi.kinds import NODE
from herder.api.machines.archive import CONFIG_MAP
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.sim import loop
from herder.sim.downstream import Downstream
from herder.sim.judges import OperationJudge
from herder.sim.lines import Line
from herder.sim.nodes import Pace, SimulatedNode, SimulationContext
from herder.sim.workloads import Workloads
from tests.support.builders import new_manifest

START = datetime(2026, 11, 16, 7, 0, tzinfo=UTC)
VERSIONS = {"k3s": "v1.36.3-k3s1", "rke2": "v1.36.3-rke2r1", "kubeadm": "v1.36.3-kubeadm1", "herder": "v1.36.3-herder1"}
_TIME = re.compile(r'^time="[^"]*" ', re.MULTILINE)


class _Downstream(Downstream):
    async def set_tunnel(self, wanted: bool) -> bool:
        return True


class Servers:
    """Servers s1, s2, s3 and worker w1; s1 begins the cluster."""

    def __init__(self, runtime: str = "k3s", servers: int = 3, **config: Any) -> None:
        self.runtime = runtime
        self.config = {"token": "TOKEN", "secrets-encryption": True, **config}
        self.judge = OperationJudge()
        self.context = SimulationContext(
            random=Random(7),
            wall=lambda: self.now().timestamp(),
            failed=self._fail,
            witness=self.judge,
            pace=Pace(boot=1, pull=1, start=5),
        )
        self._failure: BaseException | None = None
        self._names = [f"s{number + 1}" for number in range(servers)]

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time())

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    async def __aenter__(self) -> Servers:
        async with AsyncExitStack() as stack:
            entropy = Random(7).randbytes
            self.workloads = Workloads(clock=self.now, entropy=entropy, note=lambda _line: None)
            stack.push_async_callback(self.workloads.close)
            self.cluster = _Downstream(
                self.workloads,
                cast(Client, None),
                "fleet-default",
                "meadow",
                clock=self.now,
                note=lambda _line: None,
                witness=self.judge,
            )
            self._task = asyncio.ensure_future(self.cluster.run())
            stack.push_async_callback(self._stop)
            self.nodes: dict[str, SimulatedNode] = {}
            for name in self._names:
                await self.join(name)
            await self.join("w1", worker=True)
            await self.until(self._is_registered)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for node in self.nodes.values():
            node.service.stop(by_plan=False)
        await self._stack.aclose()
        if kind is None and self._failure is not None:
            raise self._failure

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- machines ---------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> SimulatedNode:
        return self.nodes[name]

    def new_machine(self, name: str) -> SimulatedNode:
        node = SimulatedNode(
            name,
            f"10.0.0.{len(self.nodes) + 1}",
            cluster=self.cluster,
            client=cast(Client, None),
            line=cast(Line, None),
            namespace="fleet-default",
            secret=name,
            context=self.context,
        )
        node.powered = True
        self.nodes[name] = node
        self.cluster.enter(node)
        return node

    async def join(self, name: str, *, worker: bool = False, server: str = "s1") -> SimulatedNode:
        node = self.new_machine(name)
        self.configure(node, server="" if name == server else server)
        role = "agent" if worker else "init" if name == server else "server"
        installed = await self.install(node, role=role)
        assert installed.exit_code == 0, installed
        return node

    def configure(self, node: SimulatedNode, server: str = "", **config: Any) -> None:
        if self.runtime == "kubeadm":
            address = self.nodes[server].address if server else node.address
            self.write(node, "/etc/rancher/kubeadm/endpoints", f"{address}\n")
            return
        values = {**self.config, "node-label": ["a=b", "c=d"], **config}
        values |= {"server": f"https://{self.nodes[server].address}:6443"} if server else {"cluster-init": True}
        path = f"/etc/rancher/{self.runtime}/config.yaml.d/50-rancher.yaml"
        self.write(node, path, json.dumps({key: value for key, value in values.items() if value is not None}))

    def write(self, node: SimulatedNode, path: str, content: str) -> None:
        node.write_files([File(path, base64.b64encode(content.encode()).decode(), False, 0, 0, "", False)])

    async def install(self, node: SimulatedNode, *, role: str = "server", **variables: str) -> Finished:
        environment = {"RESTART_STAMP": "1", f"INSTALL_{self.runtime.upper()}_EXEC": role, **variables}
        image = f"rancher/system-agent-installer-{self.runtime}:{VERSIONS[self.runtime]}"
        env = [f"{name}={value}" for name, value in environment.items()]
        return await node.run(Instruction("install", image, "sh", ["-c", "run.sh"], env, False, 0), 1)

    async def run(self, name: str, *argv: str, timeout: int = 0, env: tuple[str, ...] = ()) -> Finished:
        """Run a command as an instruction; log lines lose their time."""
        finished = await self.nodes[name].run(
            Instruction("any name", "", argv[0], list(argv[1:]), list(env), True, timeout), 1
        )
        return finished._replace(stderr=_TIME.sub("", finished.stderr.decode()).encode())

    async def stop_all(self) -> None:
        for name, node in self.nodes.items():
            if not node.is_worker:
                await self.run(name, f"{self.runtime}-killall.sh")

    # --- the API ----------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        return self.workloads.client(self.cluster.key)

    async def write_data(self, name: str) -> None:
        obj = new_manifest(CONFIG_MAP, name, "default")
        await self.client.create(CONFIG_MAP.resource, obj, namespace="default")

    async def has_data(self, name: str) -> bool:
        if not self.cluster.is_loaded:
            return False
        try:
            await self.client.get(CONFIG_MAP.resource, name, namespace="default")
        except NotFound:
            return False
        return True

    async def node(self, name: str) -> Object:
        return await self.client.get(NODE.resource, name)

    async def annotation(self, name: str, key: str) -> str | None:
        return ((await self.node(name))["metadata"].get("annotations") or {}).get(key)

    async def _is_registered(self) -> bool:
        if not self.cluster.has_api:
            return False
        found = {node["metadata"]["name"] for node in (await self.client.list(NODE.resource)).items}
        return found == set(self.nodes)

    async def until(self, reached: Callable[[], Awaitable[bool]], within: float = 300.0) -> None:
        deadline = asyncio.get_running_loop().time() + within
        while not await reached():
            assert asyncio.get_running_loop().time() < deadline, "not reached"
            await asyncio.sleep(0.5)


def run(scenario: Callable[[Servers], Awaitable[None]], **options: Any) -> None:
    async def run_scenario() -> None:
        async with Servers(**options) as servers:
            await scenario(servers)

    loop.run(run_scenario())
