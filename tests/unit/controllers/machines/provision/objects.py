"""Objects of one machine of a node driver, and decisions of the controller about them."""

from __future__ import annotations

import base64
from typing import Any

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.machines import names
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.jobs import JOB
from herder.api.machines.kinds import kinds_of
from herder.api.settings import Settings
from herder.controllers.machines.provision.controller import controller
from herder.controllers.machines.provision.removal import FINALIZER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Create, Decision, EffectResult
from tests.support.builders import (
    new_cluster,
    new_machine,
    new_object,
    object_reference,
    owner_reference,
    reconcile,
    writes_of,
)

NS = "ns"
ENVIRONMENT = {"HTTP_PROXY": "http://proxy:3128", "SECRET_OF_THE_MANAGER": "x"}


def cluster(*, provisioned: bool = True, paused: bool = False) -> Object:
    return new_cluster("c", NS, provisioned=provisioned, paused=paused)


def machine(*, data: str = "data", **fields: Any) -> Object:
    bootstrap = {"dataSecretName": data} if data else {}
    return new_machine("m", NS, cluster="c", spec={"bootstrap": bootstrap, **fields})


def infra(
    driver: str = "digitalocean",
    *,
    spec: Object | None = None,
    status: Object | None = None,
    claimed: bool = True,
    owned: bool = True,
    deleting: bool = False,
    annotations: dict[str, str] | None = None,
) -> Object:
    labels = {CLUSTER_NAME: "c"} | ({names.MACHINE_NAME_LABEL: "m"} if claimed else {})
    return new_object(
        kinds_of(driver).machine,
        "m",
        NS,
        owners=[owner_reference(MACHINE, "m")] if owned else [],
        labels=labels,
        finalizers=[FINALIZER] if claimed else [],
        annotations=annotations,
        deleting=deleting,
        spec=spec or {},
        status=status or {},
    )


def node_driver(name: str, **fields: Any) -> Object:
    found = next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)
    return {**found, "spec": {**found["spec"], **fields}}


DRIVER = node_driver("digitalocean")


def secret(name: str, namespace: str = NS, *, revision: str = "7", **metadata: Any) -> Object:
    return new_object(SECRET, name, namespace, metadata={"resourceVersion": revision, "uid": f"uid-{name}", **metadata})


def read_result(obj: Object, machine_object: Object, occasion: str = "") -> tuple[tuple[str, ...], EffectResult]:
    meta = obj["metadata"]
    key = (
        "read-secret",
        machine_object["metadata"]["uid"],
        meta["namespace"],
        meta["name"],
        meta["resourceVersion"],
        occasion,
    )
    return key, EffectResult(obj)


def encoded(**texts: str) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def decide(driver: str, *objects: Object, **options: Any) -> Decision:
    kind = kinds_of(driver).machine
    machine_controller, objects = (
        controller(kind, ENVIRONMENT),
        tuple(_with_infrastructure_ref(each, kind) for each in objects),
    )
    return reconcile(machine_controller, f"{NS}/m", *objects, settings=Settings().get, **options)


def _with_infrastructure_ref(obj: Object, kind: Kind) -> Object:
    """Add an infrastructureRef of the same name to a Machine that has none."""
    if obj["kind"] != MACHINE.kind or "infrastructureRef" in obj["spec"]:
        return obj
    reference = object_reference(kind, obj["metadata"]["name"])
    return {**obj, "spec": {**obj["spec"], "infrastructureRef": reference}}


def job_of(decision: Decision) -> Object:
    (job,) = [write.obj for write in writes_of(decision) if isinstance(write, Create) and write.kind == JOB]
    return job


def arguments_of(decision: Decision) -> list[str]:
    arguments: list[str] = job_of(decision)["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def environment_of(decision: Decision) -> dict[str, str]:
    (found,) = [
        write.obj
        for write in writes_of(decision)
        if isinstance(write, Apply) and write.obj["metadata"]["name"] == "m-machine-driver-secret"
    ]
    return {name: base64.b64decode(value).decode() for name, value in found["data"].items()}
