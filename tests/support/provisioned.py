"""Clusters that one object asks for, on a manager as users run it, and the two waits of the upstream provisioning
suite: until a cluster is as it was asked for, and until nothing is left of it."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from herder import __version__
from herder.api.capi.kinds import MACHINE, MACHINE_DEPLOYMENT, SECRET
from herder.api.capi.names import kubeconfig_secret
from herder.api.machines.jobs import JOB
from herder.api.machines.kinds import DriverKinds, kinds_of
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import DEFAULT_TOKEN
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.errors import Conflict
from herder.engine.meta.kinds import Kind, Object
from herder.machine.host.client import HostClient
from tests.support.capi import (
    HerderRun,
    admitting,
    ensure_namespace,
    none_left,
    phase,
    said,
    served,
    until,
    webhook_flags,
)
from tests.support.embedded import Embedded
from tests.support.engines import CONTROLLERS, Engine, unique
from tests.support.kube import RealKube, free_port
from tests.support.machines import environment, host_ended
from tests.unit.machine.host.hosts import Host

PROCESS = kinds_of("process")
VERSION = "v1.36.3+herder1"
MOST_CONFLICTS = 10
FLAGS = ("--capi-core=own", "--machines", "--log-level=debug")  # conflicts are told to who looks for them alone
VARIABLES = {
    "CATTLE_SYSTEM_AGENT_VERSION": f"v{__version__}",
    "CATTLE_WINS_AGENT_VERSION": "v0.5.1",
    "CATTLE_CSI_PROXY_AGENT_VERSION": "v1.3.0",
}
"""Of the manager's environment: what settings must be where the upstream suite looks at them."""


# --- managers -------------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A manager on an engine, the machines that it makes, and a host for those that others make."""

    engine: Engine
    manager: Embedded | HerderRun
    url: str
    directory: Path  # for what tests put up themselves
    others: Host
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.engine.client()

    async def ask_for(
        self,
        name: str,
        *pools: Object,
        kinds: DriverKinds = PROCESS,
        version: str = VERSION,
        spec: Object | None = None,
        annotations: Object | None = None,
        namespace: str = "",
        **rke_config: Any,
    ) -> Asked:
        """A provisioning Cluster, in a namespace of its own unless one is named; pools are named by their place, and
        have a config each."""
        if not namespace:
            namespace = unique("test-ns")
            await ensure_namespace(self.client, namespace)
        asked = Asked(self, namespace, name)
        wanted = [
            {"name": f"pool-{number}", "machineConfigRef": await asked.new_config(kinds.config), **pool}
            for number, pool in enumerate(pools)
        ]
        wanted_here = {**({"machinePools": wanted} if wanted else {}), **rke_config}
        cluster = made(PROVISIONING_CLUSTER, name, namespace)
        cluster["metadata"]["annotations"] = annotations or {}
        cluster["spec"] = {"kubernetesVersion": version, "rkeConfig": wanted_here, **(spec or {})}
        await self.client.create(PROVISIONING_CLUSTER.resource, cluster, namespace=namespace)
        return asked

    def root_of(self, machine: str) -> Path:
        """The files of a process machine that the manager has made."""
        listed = HostClient.of(self.manager.directory / "host").machines()
        [place] = [each["directory"] for each in listed if each["name"] == machine]
        return Path(place) / "root"


@asynccontextmanager
async def embedded_site(directory: Path) -> AsyncIterator[Site]:
    place = directory / "herder"
    with environment(**VARIABLES), host_ended(place), Embedded(place, flags=("--gateway", *FLAGS)) as server:
        async with _ready(Engine("embedded", server.kubeconfig), server, server.url, directory) as site:
            yield site


@asynccontextmanager
async def real_site(directory: Path) -> AsyncIterator[Site]:
    kube_place, place, gateway = directory / "kube", directory / "herder", f"127.0.0.1:{free_port()}"
    kube_place.mkdir()
    flags = ("--runner", "--gateway-listen", gateway, *FLAGS, *webhook_flags())
    with RealKube(kube_place, controller_manager=True, controllers=CONTROLLERS) as kube, environment(**VARIABLES):
        engine = Engine("real", kube.kubeconfig)
        with host_ended(place), HerderRun(engine, place, *flags) as ours:
            async with _ready(engine, ours, f"https://{gateway}", directory) as site:
                yield site


SITES: dict[str, Callable[[Path], Any]] = {"embedded": embedded_site, "real": real_site}


@asynccontextmanager
async def _ready(engine: Engine, manager: Embedded | HerderRun, url: str, directory: Path) -> AsyncIterator[Site]:
    with Host(directory / "others") as others:
        site = Site(engine, manager, url, directory / "tests", others)
        try:
            await served(site.client, PROVISIONING_CLUSTER, PROCESS.config)
            await admitting(site.client)
            yield site
        finally:
            await site.client.close()


# --- clusters -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A cluster that was asked for."""

    site: Site
    namespace: str
    name: str

    @property
    def client(self) -> Client:
        return self.site.client

    # --- what people do ---------------------------------------------------------------------------------------------

    async def new_config(self, kind: Kind, **fields: str) -> Object:
        """A reference to it, as pools have one."""
        config = made(kind, unique("nc"), self.namespace) | fields
        await self.client.create(kind.resource, config, namespace=self.namespace)
        return {"kind": kind.kind, "name": config["metadata"]["name"]}

    async def get(self) -> Object:
        return await self.client.get(PROVISIONING_CLUSTER.resource, self.name, namespace=self.namespace)

    async def edit(self, change: Callable[[Object], None]) -> None:
        """Of its spec. Whoever is overtaken looks again, as people do."""
        while True:
            cluster = await self.get()
            change(cluster["spec"])
            try:
                await self.client.update(PROVISIONING_CLUSTER.resource, cluster)
            except Conflict:
                continue
            return

    async def registration(self) -> tuple[str, str]:
        """The command that makes a machine a node, and its token; there as soon as the cluster has an id."""
        [cluster] = await self.until(
            PROVISIONING_CLUSTER, lambda found: all(_status(each, "clusterName") for each in found)
        )
        id_ = _status(cluster, "clusterName")
        [token] = await until(
            self.client, REGISTRATION_TOKEN, id_, lambda found: any(_status(each, "nodeCommand") for each in found)
        )
        assert token["metadata"]["name"] == DEFAULT_TOKEN
        kept = await self.client.get(SECRET.resource, _status(token, "tokenSecretName"), namespace=id_)
        return _status(token, "insecureNodeCommand"), base64.b64decode(kept["data"]["token"]).decode()

    # --- what is to be seen -----------------------------------------------------------------------------------------

    async def until(self, kind: Kind, wanted: Callable[[list[Object]], bool]) -> list[Object]:
        return await until(self.client, kind, self.namespace, wanted)

    async def all(self, kind: Kind) -> list[Object]:
        """In the order of their names."""
        return (await self.client.list_all(kind.resource, namespace=self.namespace)).items

    async def machines(self) -> list[Object]:
        return await self.all(MACHINE)

    async def plan_secret(self, machine: Object) -> Object:
        name = names.plan_secret(machine["spec"]["bootstrap"]["configRef"]["name"])
        return await self.client.get(SECRET.resource, name, namespace=self.namespace)

    @asynccontextmanager
    async def workload(self) -> AsyncIterator[Client]:
        """As the cluster's own user, through the gateway and the tunnel."""
        secret = await self.client.get(SECRET.resource, kubeconfig_secret(self.name), namespace=self.namespace)
        text = base64.b64decode(secret["data"]["value"]).decode()
        client = Client(HttpTransport(kubeconfig.parse(text)))
        try:
            yield client
        finally:
            await client.close()

    # --- the suite's waits ------------------------------------------------------------------------------------------

    async def wait(self) -> Object:
        """Until all that was asked for is there."""
        [cluster] = await self.until(PROVISIONING_CLUSTER, lambda found: all(map(_is_ready, found)))
        pools = (cluster["spec"].get("rkeConfig") or {}).get("machinePools") or ()
        wanted = {names.machine_deployment(self.name, pool["name"]): pool.get("quantity", 1) for pool in pools}
        await self.until(MACHINE_DEPLOYMENT, lambda found: _all_run(found, wanted))
        await self.until(MACHINE, lambda found: bool(found) and all(_status(each, "nodeRef") for each in found))
        id_ = _status(cluster, "clusterName")
        await until(self.client, MANAGEMENT_CLUSTER, "", lambda found: any(_is_managed(each, id_) for each in found))
        return cluster

    async def delete_and_wait(self, infrastructure: Kind) -> None:
        """Until nothing is left of it."""
        id_ = _status(await self.get(), "clusterName")
        await self.client.delete(PROVISIONING_CLUSTER.resource, self.name, namespace=self.namespace)
        for kind in (infrastructure, BOOTSTRAP, JOB, MACHINE, PROVISIONING_CLUSTER):
            await self.until(kind, none_left)
        await until(
            self.client, MANAGEMENT_CLUSTER, "", lambda found: all(each["metadata"]["name"] != id_ for each in found)
        )

    def assert_few_conflicts(self, machines: int = 1) -> None:
        """Of the manager's controllers, over what is in the cluster's namespace: ten for each machine, and ten of one
        controller over one object."""
        told = [each for each in self._manager_says("decides again") if each["because"] == "Conflict"]
        over = Counter(f"{each['controller']} {each['key']}" for each in told)
        assert over.total() <= MOST_CONFLICTS * machines, over
        assert max(over.values(), default=0) <= MOST_CONFLICTS, over

    def _manager_says(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.site.manager.log().splitlines() if event in line and line.startswith("{")]
        told = [json.loads(line) for line in lines]
        return [each for each in told if each["event"] == event and each["key"].startswith(f"{self.namespace}/")]


def _status(obj: Object, field_: str) -> Any:
    return (obj.get("status") or {}).get(field_)


def _is_ready(cluster: Object) -> bool:
    return (
        bool(_status(cluster, "clusterName") and _status(cluster, "ready"))
        and _status(cluster, "observedGeneration") == cluster["metadata"]["generation"]
        and said(cluster, "Ready") == said(cluster, "Provisioned") == "True"
    )


def _is_managed(management: Object, id_: str) -> bool:
    return management["metadata"]["name"] == id_ and said(management, "Ready") == "True"


def _all_run(deployments: Sequence[Object], quantities: dict[str, int]) -> bool:
    return {each["metadata"]["name"] for each in deployments} == set(quantities) and all(
        phase(each) == "Running"
        and said(each, "MachinesReady") == "True"
        and _status(each, "replicas") == quantities[each["metadata"]["name"]]
        for each in deployments
    )


def made(kind: Kind, name: str, namespace: str) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}
