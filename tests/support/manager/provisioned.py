"""Provisioning clusters on a manager as users run it, and the two waits of the upstream provisioning suite: until a
cluster is ready, and until nothing is left of it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
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
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import Conflict, NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import Request
from herder.machine.host.client import HostClient
from tests.support.capi import (
    TIMEOUT,
    HerderRun,
    condition_status,
    ensure_namespace,
    none_left,
    phase,
    wait_for_admission,
    wait_until,
    wait_until_served,
    webhook_flags,
)
from tests.support.embedded import Embedded
from tests.support.engines import CONTROLLERS, Engine, unique
from tests.support.kube import RealKube, free_port
from tests.support.manager.machines import environment, host_shutdown
from tests.unit.machine.host.hosts import Host

PROCESS = kinds_of("process")
VERSION = "v1.36.3+herder1"
MOST_CONFLICTS = 10
CONFLICT_EVENT = "requeued after a conflict"
FLAGS = ("--capi-core=own", "--machines", "--log-level=debug")  # conflicts are logged at debug level
VARIABLES = {
    "CATTLE_SYSTEM_AGENT_VERSION": f"v{__version__}",
    "CATTLE_WINS_AGENT_VERSION": "v0.5.1",
    "CATTLE_CSI_PROXY_AGENT_VERSION": "v1.3.0",
}
"""The manager's environment: values of settings that the upstream suite checks."""


# --- managers -------------------------------------------------------------------------------------------------------


@dataclass
class ManagerSite:
    """A manager on an engine, the machines that it provisions, and a host for custom machines."""

    engine: Engine
    manager: Embedded | HerderRun
    url: str
    directory: Path  # for files of the tests
    custom_host: Host
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.engine.client()

    async def create_cluster(
        self,
        name: str,
        *pools: Object,
        kinds: DriverKinds = PROCESS,
        version: str = VERSION,
        spec: Object | None = None,
        annotations: Object | None = None,
        namespace: str = "",
        **rke_config: Any,
    ) -> ProvisionedCluster:
        """Create a provisioning Cluster, in a new namespace unless one is named.

        Pools are named by their index, and have one machine config each.
        """
        if not namespace:
            namespace = unique("test-ns")
            await ensure_namespace(self.client, namespace)
        cluster = ProvisionedCluster(self, namespace, name)
        machine_pools = [
            {"name": f"pool-{number}", "machineConfigRef": await cluster.new_config(kinds.config), **pool}
            for number, pool in enumerate(pools)
        ]
        rke_fields = {**({"machinePools": machine_pools} if machine_pools else {}), **rke_config}
        obj = bare_object(PROVISIONING_CLUSTER, name, namespace)
        obj["metadata"]["annotations"] = annotations or {}
        obj["spec"] = {"kubernetesVersion": version, "rkeConfig": rke_fields, **(spec or {})}
        await self.client.create(PROVISIONING_CLUSTER.resource, obj, namespace=namespace)
        return cluster

    def root_of(self, machine: str) -> Path:
        """The root directory of a process machine that the manager provisioned."""
        listed = HostClient.of(self.manager.directory / "host").machines()
        [path] = [each["directory"] for each in listed if each["name"] == machine]
        return Path(path) / "root"


@asynccontextmanager
async def embedded_site(directory: Path) -> AsyncIterator[ManagerSite]:
    data_dir = directory / "herder"
    with environment(**VARIABLES), host_shutdown(data_dir), Embedded(data_dir, flags=("--gateway", *FLAGS)) as server:
        async with _ready(Engine("embedded", server.kubeconfig), server, server.url, directory) as site:
            yield site


@asynccontextmanager
async def real_site(
    directory: Path, *more: str, webhooks: bool = True, restricted: bool = False
) -> AsyncIterator[ManagerSite]:
    """`more` are flags of the manager. `restricted`: it has only the rights that it needs."""
    kube_dir, data_dir, gateway = directory / "kube", directory / "herder", f"127.0.0.1:{free_port()}"
    kube_dir.mkdir()
    hooks = webhook_flags() if webhooks else ("--no-webhooks",)
    flags = ("--runner", "--gateway-listen", gateway, *FLAGS, *hooks, *more)
    server = RealKube(kube_dir, controller_manager=True, controllers=CONTROLLERS, audited=restricted)
    with server as kube, environment(**VARIABLES):
        engine = Engine("real", kube.kubeconfig)
        with host_shutdown(data_dir), HerderRun(engine, data_dir, *flags, restricted=restricted) as manager:
            async with _ready(engine, manager, f"https://{gateway}", directory, webhooks=webhooks) as site:
                yield site


SITES: dict[str, Callable[[Path], Any]] = {"embedded": embedded_site, "real": real_site}


@asynccontextmanager
async def _ready(
    engine: Engine, manager: Embedded | HerderRun, url: str, directory: Path, *, webhooks: bool = True
) -> AsyncIterator[ManagerSite]:
    with Host(directory / "others") as custom_host:
        site = ManagerSite(engine, manager, url, directory / "tests", custom_host)
        try:
            await wait_until_served(site.client, PROVISIONING_CLUSTER, PROCESS.config)
            if webhooks:
                await wait_for_admission(site.client)
            await _wait_for_gateway(url)
            yield site
        finally:
            await site.client.close()


async def _wait_for_gateway(url: str) -> None:
    """Controllers run before the gateway listens. Machines retry until it does; simulated ones do not."""
    transport = HttpTransport(RestConfig(url, skip_tls_verify=True))
    try:
        async with asyncio.timeout(TIMEOUT):
            while True:
                with suppress(OSError, StatusError):
                    await transport.send(Request("GET", "/healthz"))
                    return
                await asyncio.sleep(0.1)
    finally:
        await transport.close()


# --- clusters -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProvisionedCluster:
    """A provisioning Cluster that a test created."""

    site: ManagerSite
    namespace: str
    name: str

    @property
    def client(self) -> Client:
        return self.site.client

    # --- user actions -------------------------------------------------------------------------------------------------

    async def new_config(self, kind: Kind, **fields: str) -> Object:
        """Create a machine config and return a reference to it, as pools have one."""
        config = bare_object(kind, unique("nc"), self.namespace) | fields
        await self.client.create(kind.resource, config, namespace=self.namespace)
        return {"kind": kind.kind, "name": config["metadata"]["name"]}

    async def get(self) -> Object:
        return await self.client.get(PROVISIONING_CLUSTER.resource, self.name, namespace=self.namespace)

    async def edit(self, change: Callable[[Object], None]) -> None:
        """Change the spec; retry after a conflict, as users do."""
        while True:
            cluster = await self.get()
            change(cluster["spec"])
            try:
                await self.client.update(PROVISIONING_CLUSTER.resource, cluster)
            except Conflict:
                continue
            return

    async def registration(self) -> tuple[str, str]:
        """The command that registers a custom machine, and its token; they exist as soon as the cluster has an ID."""
        [cluster] = await self.wait_until(
            PROVISIONING_CLUSTER, lambda found: all(_status(each, "clusterName") for each in found)
        )
        id_ = _status(cluster, "clusterName")
        while True:
            [token] = await wait_until(
                self.client, REGISTRATION_TOKEN, id_, lambda found: any(_status(each, "nodeCommand") for each in found)
            )
            assert token["metadata"]["name"] == DEFAULT_TOKEN
            try:
                secret = await self.client.get(SECRET.resource, _status(token, "tokenSecretName"), namespace=id_)
                break
            except NotFound:  # the token belongs to a deleted cluster with the same ID, and is deleted after its Secret
                await asyncio.sleep(0.1)
        return _status(token, "insecureNodeCommand"), base64.b64decode(secret["data"]["token"]).decode()

    # --- status -------------------------------------------------------------------------------------------------------

    async def wait_until(self, kind: Kind, wanted: Callable[[list[Object]], bool]) -> list[Object]:
        return await wait_until(self.client, kind, self.namespace, wanted)

    async def all(self, kind: Kind) -> list[Object]:
        """Objects of a kind in the namespace, ordered by name."""
        return (await self.client.list_all(kind.resource, namespace=self.namespace)).items

    async def machines(self) -> list[Object]:
        return await self.all(MACHINE)

    async def plan_secret(self, machine: Object) -> Object:
        name = names.plan_secret(machine["spec"]["bootstrap"]["configRef"]["name"])
        return await self.client.get(SECRET.resource, name, namespace=self.namespace)

    @asynccontextmanager
    async def workload(self) -> AsyncIterator[Client]:
        """A client of the provisioned cluster, as its own user, through the gateway and the tunnel."""
        secret = await self.client.get(SECRET.resource, kubeconfig_secret(self.name), namespace=self.namespace)
        text = base64.b64decode(secret["data"]["value"]).decode()
        client = Client(HttpTransport(kubeconfig.parse(text)))
        try:
            yield client
        finally:
            await client.close()

    # --- waits of the suite -------------------------------------------------------------------------------------------

    async def wait(self) -> Object:
        """Wait until the cluster and all its machines are ready."""
        [cluster] = await self.wait_until(PROVISIONING_CLUSTER, lambda found: all(map(_is_ready, found)))
        pools = (cluster["spec"].get("rkeConfig") or {}).get("machinePools") or ()
        wanted = {names.machine_deployment(self.name, pool["name"]): pool.get("quantity", 1) for pool in pools}
        await self.wait_until(MACHINE_DEPLOYMENT, lambda found: _all_run(found, wanted))
        await self.wait_until(MACHINE, lambda found: bool(found) and all(_status(each, "nodeRef") for each in found))
        id_ = _status(cluster, "clusterName")
        await wait_until(
            self.client, MANAGEMENT_CLUSTER, "", lambda found: any(_is_managed(each, id_) for each in found)
        )
        return cluster

    async def delete_and_wait(self, infrastructure: Kind) -> None:
        """Delete the cluster and wait until nothing is left of it."""
        id_ = _status(await self.get(), "clusterName")
        await self.client.delete(PROVISIONING_CLUSTER.resource, self.name, namespace=self.namespace)
        for kind in (infrastructure, BOOTSTRAP, JOB, MACHINE, PROVISIONING_CLUSTER):
            await self.wait_until(kind, none_left)
        await wait_until(
            self.client, MANAGEMENT_CLUSTER, "", lambda found: all(each["metadata"]["name"] != id_ for each in found)
        )

    def assert_few_conflicts(self, machines: int = 1) -> None:
        """Conflicts of the manager's controllers over objects of the namespace: at most ten per machine, and ten of one
        controller over one object.
        """
        conflicts = conflicts_in(self.site.manager.log(), self.namespace)
        counts = Counter(f"{each['controller']} {each['object']}" for each in conflicts)
        assert counts.total() <= MOST_CONFLICTS * machines, counts
        assert max(counts.values(), default=0) <= MOST_CONFLICTS, counts


def conflicts_in(log: str, namespace: str) -> list[dict[str, Any]]:
    """Log records of reconciles of objects in `namespace` that were repeated after a conflict."""
    records = [json.loads(line) for line in log.splitlines() if CONFLICT_EVENT in line and line.startswith("{")]
    return [
        each
        for each in records
        if each["event"] == CONFLICT_EVENT
        and each["error"] == "Conflict"
        and each["object"].startswith(f"{namespace}/")
    ]


def _status(obj: Object, field_: str) -> Any:
    return (obj.get("status") or {}).get(field_)


def _is_ready(cluster: Object) -> bool:
    return (
        bool(_status(cluster, "clusterName") and _status(cluster, "ready"))
        and _status(cluster, "observedGeneration") == cluster["metadata"]["generation"]
        and condition_status(cluster, "Ready") == condition_status(cluster, "Provisioned") == "True"
    )


def _is_managed(management: Object, id_: str) -> bool:
    return management["metadata"]["name"] == id_ and condition_status(management, "Ready") == "True"


def _all_run(deployments: Sequence[Object], quantities: dict[str, int]) -> bool:
    return {each["metadata"]["name"] for each in deployments} == set(quantities) and all(
        phase(each) == "Running"
        and condition_status(each, "MachinesReady") == "True"
        and _status(each, "replicas") == quantities[each["metadata"]["name"]]
        for each in deployments
    )


def bare_object(kind: Kind, name: str, namespace: str) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}
