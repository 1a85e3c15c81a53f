"""Simulation of one provisioned cluster: manager, machine provider, and the cluster of its machines."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from herder.agent.core.protocol import Identity
from herder.api import settings
from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.capi.names import CLUSTER_NAME, SECRET_TYPE, kubeconfig_secret
from herder.api.crds import SETTING_CRD
from herder.api.guards import GUARDS
from herder.api.machines.crds import CRDS as MACHINE_CRDS
from herder.api.machines.crds import driver_definitions
from herder.api.machines.drivers.schemas import schema
from herder.api.machines.kinds import DYNAMIC_SCHEMA, kinds_of
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.names import MAKE_KUBECONFIG, PUSH_TOKEN
from herder.api.management.registration import RENEW
from herder.api.rke import names
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.etcd.encryption import MAKE_KEY
from herder.api.rke.node.agents import ServedAgent
from herder.api.settings import Settings
from herder.effects.cluster_ca import ClusterAuthorities
from herder.effects.encryption_key import EncryptionKeys
from herder.effects.join_token import ClusterTokens
from herder.effects.referenced_objects import ReferencedObjects
from herder.effects.registration_token import Renewal
from herder.engine.apiserver.build import ApiServer
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.executor import Guard
from herder.engine.runtime.performers import REMOTE_PERFORMERS
from herder.engine.wire import User
from herder.sim.downstream import Downstream
from herder.sim.faults import NONE, Faults, FaultyTransport
from herder.sim.host.command import Script
from herder.sim.lines import Line
from herder.sim.nodes import NO_AGENT_FAULTS, FaultRates, NodeObserver, Pace, SimulatedNode, SimulationContext
from herder.sim.provider import Provider
from herder.sim.world import World

WORKSPACE, NAME = "fleet-default", "meadow"
DRIVER, CONFIG = "sim", "machines"
KINDS = kinds_of(DRIVER)
_FIELDS = {"size": {"type": "string", "create": True, "update": True}}
_SETTINGS = {settings.SERVER_URL: "https://manager.sim"}


class Provisioned:
    """One cluster named `NAME`, and everything that it needs."""

    def __init__(
        self,
        seed: int,
        controllers: Sequence[Controller],
        *,
        faults: Faults = NONE,
        troubles: FaultRates = NO_AGENT_FAULTS,
        pace: Pace | None = None,
        guards: Sequence[Guard] = GUARDS,
        witness: NodeObserver | None = None,
        watched: Sequence[Kind] = (),
        invariant: Callable[[Kind, str, Object], None] | None = None,
        prepare: Callable[[ApiServer], None] | None = None,
        strict: bool = True,
        scripts: Mapping[str, Script] | None = None,
    ) -> None:
        """`scripts`: what the shell scripts in plans do on machines, by their text; other scripts fail."""
        self._faults = faults  # also for the links of agents
        self._transports: list[FaultyTransport] = []
        self._detected: dict[str, str] = {}
        self.world = World(
            seed,
            controllers,
            crds=[
                *CORE_CRDS,
                *MACHINE_CRDS,
                *MANAGEMENT_CRDS,
                *RKE_CRDS,
                SETTING_CRD,
                *driver_definitions(DRIVER, _FIELDS),
            ],
            guards=guards,
            performers={
                names.MAKE_TOKENS: self._make_tokens,
                names.MAKE_AUTHORITIES: self._make_authorities,
                MAKE_KEY: self._make_key,
                names.READ_OBJECT: self._read,
                names.MAKE_BOOTSTRAP_DATA: self._make_bootstrap_data,
                RENEW: self._renew,
                PUSH_TOKEN: _noop,
                MAKE_KUBECONFIG: self._make_kubeconfig,
            },
            remote_performers=REMOTE_PERFORMERS,
            faults=faults,
            watched=watched,
            invariant=invariant,
            prepare=prepare,
            settings=Settings(flags=_SETTINGS, detected=self._detected),
            strict=strict,
        )
        self.context = SimulationContext(
            random=Random(f"machines {seed}"),  # noqa: S311 - a seeded generator is the point
            wall=lambda: self.world.now().timestamp(),
            failed=self._fail,
            witness=witness or NodeObserver(),
            pace=pace or Pace(),
            troubles=troubles,
            scripts=scripts or {},
        )
        self._failure: BaseException | None = None
        self.serve_agent("1.0.0")

    def serve_agent(self, version: str, build: str = "") -> None:
        """The manager serves this node agent from now on. It looks at it when it starts, or decides again."""
        checksum = hashlib.sha256(f"{version} {build}".encode()).hexdigest()
        self.context.served_agent = Identity(version, checksum)
        self._detected[settings.SERVED_NODE_AGENT] = str(ServedAgent(version, checksum))

    # --- environment ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Provisioned:
        await self.world.__aenter__()
        world = self.world
        self.downstream = Downstream(
            world.workloads,
            world.client,
            WORKSPACE,
            NAME,
            clock=world.now,
            note=world.note,
            witness=self.context.witness,
        )
        self.provider = Provider(
            world.client, KINDS, WORKSPACE, make=self._node, random=self.context.random, failed=self._fail
        )
        await self.create(NAMESPACE, _new(NAMESPACE, WORKSPACE))
        await self.create(DYNAMIC_SCHEMA, schema(f"{DRIVER}config", _FIELDS))
        await self.create(KINDS.config, _new(KINDS.config, CONFIG, WORKSPACE) | {"size": "small"})
        self._downstream_task = asyncio.ensure_future(self.downstream.run())
        self._downstream_task.add_done_callback(self._ended)
        self.provider.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self.provider.stop()
        self._downstream_task.cancel()
        await asyncio.gather(self._downstream_task, return_exceptions=True)
        await self.world.__aexit__(kind, *rest)
        if kind is None and self._failure is not None:
            raise self._failure

    def check(self) -> None:
        """Raise a broken invariant, or an error of the simulation itself."""
        if self._failure is not None:
            raise self._failure
        self.world.check()

    @property
    def agents_writes(self) -> int:
        return sum(transport.writes for transport in self._transports)

    def calm(self) -> None:
        """Disable random faults, and restore everything that was cut or powered off."""
        self.disturb(NONE)
        self.context.troubles = NO_AGENT_FAULTS
        self.downstream.heal_tunnel()
        for node in self.provider.nodes.values():
            node.line.heal()
            node.boot()

    def disturb(self, faults: Faults) -> None:
        """Inject other random faults from now on."""
        self.world.disturb(faults)
        self._faults = faults
        for transport in self._transports:
            transport.faults = faults

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _node(self, name: str, address: str, secret: str) -> SimulatedNode:
        """Create a machine whose agent uses the machine's own service account and its rights."""
        account = f"system:serviceaccount:{WORKSPACE}:{secret}"
        user = User(account, groups=("system:serviceaccounts", "system:authenticated"))
        line = Line(InProcess(self.world.server, user))
        transport = FaultyTransport(
            line,
            faults=self._faults,
            random=self.context.random,
            note=self.world.note,
            crash=lambda: node.kill_agent(),
        )
        self._transports.append(transport)
        node = SimulatedNode(
            name,
            address,
            cluster=self.downstream,
            client=Client(transport, field_manager="agent"),
            line=line,
            namespace=WORKSPACE,
            secret=secret,
            context=self.context,
        )
        return node

    # --- user actions -----------------------------------------------------------------------------------------------

    async def create(self, kind: Kind, obj: Object) -> Object:
        return await self.world.client.create(kind.resource, obj, namespace=obj["metadata"].get("namespace", ""))

    async def ask_for(self, version: str, *pools: Object, **rke_config: Any) -> None:
        spec = {"kubernetesVersion": version, "rkeConfig": {"machinePools": [*pools], **rke_config}}
        await self.create(PROVISIONING_CLUSTER, _new(PROVISIONING_CLUSTER, NAME, WORKSPACE) | {"spec": spec})

    async def edit(self, spec: Object) -> None:
        await self.patch(PROVISIONING_CLUSTER, NAME, {"spec": spec})

    async def patch(self, kind: Kind, name: str, patch: Object) -> Object:
        return await self.world.client.patch(kind.resource, name, patch, namespace=WORKSPACE)

    async def get(self, kind: Kind, name: str = NAME) -> Object:
        return await self.world.client.get(kind.resource, name, namespace=WORKSPACE)

    async def all(self, kind: Kind) -> list[Object]:
        return (await self.world.client.list_all(kind.resource, namespace=WORKSPACE)).items

    # --- cheap effects ----------------------------------------------------------------------------------------------

    async def _make_tokens(self, arguments: Mapping[str, Any]) -> None:
        await ClusterTokens(self.world.client, self.world.random.randbytes)(arguments)

    async def _make_authorities(self, arguments: Mapping[str, Any]) -> None:
        await ClusterAuthorities(self.world.client, self.world.now)(arguments)

    async def _make_key(self, arguments: Mapping[str, Any]) -> None:
        await EncryptionKeys(self.world.client, self.world.random.randbytes)(arguments)

    async def _read(self, arguments: Mapping[str, Any]) -> Object | None:
        return await ReferencedObjects(self.world.client)(arguments)

    async def _renew(self, arguments: Mapping[str, Any]) -> Object:
        return await Renewal(self.world.client, self.world.now, self.world.random.randbytes)(arguments)

    async def _make_bootstrap_data(self, arguments: Mapping[str, Any]) -> None:
        """A simulated machine runs no script."""
        secret = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": arguments["metadata"],
            "type": names.BOOTSTRAP_SECRET_TYPE,
            "data": {"value": ""},
        }
        await self.world.client.apply(SECRET.resource, secret)

    async def _make_kubeconfig(self, arguments: Mapping[str, Any]) -> None:
        """Not read: clusters are found by key."""
        name, namespace = arguments["name"], arguments["namespace"]
        meta = {
            "name": kubeconfig_secret(name),
            "namespace": namespace,
            "labels": {CLUSTER_NAME: name},
            "ownerReferences": [arguments["owner"]],
        }
        data = {"value": base64.b64encode(b"simulated").decode()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": SECRET_TYPE, "data": data}
        await self.world.client.apply(SECRET.resource, secret)


async def _noop(_arguments: Mapping[str, Any]) -> None:
    """No agent exists that could receive the token."""


def _new(kind: Kind, name: str, namespace: str = "") -> Object:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **where}}


def pool(name: str, quantity: int, *roles: str, **fields: Any) -> Object:
    """A pool of simulated machines; roles are `etcd`, `controlPlane` and `worker`."""
    given = {f"{role}Role": True for role in roles}
    config = {"kind": KINDS.config.kind, "name": CONFIG}
    return {"name": name, "quantity": quantity, "machineConfigRef": config, **given, **fields}
