"""The machine provider on an engine, as users start it, and objects of a small cluster with a driver's machines."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from herder.api.capi import kinds as capi
from herder.api.inmemory import kinds as inmemory
from herder.api.inmemory.manifest import in_memory_cluster, new_object, reference
from herder.api.machines.kinds import kinds_of
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from herder.machine.errors import MachineError
from herder.machine.host.client import HostClient
from tests.support.capi import (
    HerderRun,
    create_objects,
    ensure_namespace,
    wait_for_admission,
    wait_until_served,
    webhook_flags,
)
from tests.support.embedded import Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube, free_port
from tests.support.peers import peer

NAME = "meadow"
FLAGS = ("--capi-core=own", "--in-memory", "--machines")


class Provider:
    """An engine that provides machines; `crash` kills the process that reconciles and runs Jobs."""

    def __init__(self, engine: Engine, server: Embedded | HerderRun) -> None:
        self.engine = engine
        self.server = server
        self.host_state = server.directory / "host"

    def crash(self) -> None:
        assert self.server.process is not None
        self.server.process.kill()
        self.server.process.wait()

    def restart(self) -> None:
        self.server.start()


def flags() -> tuple[str, ...]:
    return (*FLAGS, "--set", f"rancher-machine-path={peer('rancher-machine')}")


@contextmanager
def embedded(directory: Path) -> Iterator[Provider]:
    # The same address after a crash, so that clients reconnect.
    listen = f"127.0.0.1:{free_port()}"
    with host_shutdown(directory), Embedded(directory, flags=flags(), listen=listen) as server:
        yield Provider(Engine("embedded", server.kubeconfig), server)


@contextmanager
def real(directory: Path) -> Iterator[Provider]:
    (directory / "kube").mkdir(parents=True)
    with RealKube(directory / "kube", controller_manager=True, controllers=CONTROLLERS) as kube:
        engine = Engine("real", kube.kubeconfig)
        data_dir = directory / "herder"
        with host_shutdown(data_dir), HerderRun(engine, data_dir, "--runner", *flags(), *webhook_flags()) as manager:
            yield Provider(engine, manager)


ENGINES: Mapping[str, Callable[[Path], AbstractContextManager[Provider]]] = {"embedded": embedded, "real": real}


@contextmanager
def behind_proxy(engine: str, directory: Path, proxy: str) -> Iterator[Provider]:
    """A provider whose Jobs reach clouds through this proxy."""
    with environment(HTTPS_PROXY=proxy, NO_PROXY="127.0.0.1,localhost"), ENGINES[engine](directory) as provider:
        yield provider


@contextmanager
def host_shutdown(data_dir: Path) -> Iterator[None]:
    """Stop the daemon and its machines after the block; they outlive the process that started them."""
    try:
        yield
    finally:
        host = HostClient.of(data_dir / "host", timeout=0)
        with suppress(MachineError):  # one without machines has ended already
            host.purge()
            host.shutdown()


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables of the processes that the block starts."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# --- objects ----------------------------------------------------------------------------------------------------


async def create_cluster(client: Client, namespace: str, *drivers: str) -> None:
    """A simulated control plane, so that real machines can be created for its cluster."""
    templates = [kinds_of(driver).template for driver in drivers]
    await wait_until_served(
        client, capi.CLUSTER, inmemory.IN_MEMORY_CLUSTER, inmemory.IN_MEMORY_CONTROL_PLANE, *templates
    )
    await wait_for_admission(client)
    await ensure_namespace(client, namespace)
    await create_objects(client, namespace, in_memory_cluster(NAME, workers=0))


async def create_machines(
    client: Client,
    namespace: str,
    driver: str,
    fields: Object,
    *,
    count: int,
    name: str = "",
    failure_domain: str = "",
) -> str:
    """Create a MachineDeployment and a template of the driver; return its name."""
    name = name or f"{driver}-pool"
    await create_objects(client, namespace, pool(driver, fields, count, name=name, failure_domain=failure_domain))
    return name


def pool(
    driver: str, fields: Object, count: int, *, name: str = "", failure_domain: str = ""
) -> list[tuple[Kind, Object]]:
    template = kinds_of(driver).template
    name = name or f"{driver}-pool"
    labels = {"pool": name}
    spec: Object = {
        "clusterName": NAME,
        "version": "v1.35.0",
        "bootstrap": {"configRef": reference(inmemory.IN_MEMORY_BOOTSTRAP_TEMPLATE, NAME)},
        "infrastructureRef": reference(template, name),
    }
    if failure_domain:
        spec["failureDomain"] = failure_domain
    deployment: Object = {
        "clusterName": NAME,
        "replicas": count,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    return [
        new_object(template, name, {"template": {"spec": fields}}),
        new_object(capi.MACHINE_DEPLOYMENT, name, deployment),
    ]


async def create_credential(client: Client, namespace: str, name: str, driver: str, **fields: str) -> None:
    data = {f"{driver}credentialConfig-{field}": value for field, value in fields.items()}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "provisioning.cattle.io/cloud-credential",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }
    await client.create(capi.SECRET.resource, secret, namespace=namespace)


# --- status -----------------------------------------------------------------------------------------------------------


def condition(obj: Object, type_: str) -> Object:
    known = (obj.get("status") or {}).get("conditions") or ()
    return next((each for each in known if each["type"] == type_), {})


def all_created(count: int) -> Callable[[list[Object]], bool]:
    def wanted(machines: list[Object]) -> bool:
        return len(machines) == count and all(
            condition(machine, "CreateJob").get("status") == "True" for machine in machines
        )

    return wanted
