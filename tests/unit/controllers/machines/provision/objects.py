"""Objects around one machine of a node driver, and what the controller decides about them."""

from __future__ import annotations

import base64
from typing import Any

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.machines import names
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.jobs import JOB
from herder.api.machines.kinds import kinds_of
from herder.api.settings import Settings
from herder.controllers.machines.provision.controller import controller
from herder.controllers.machines.provision.removal import FINALIZER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Create, Decision, EffectResult
from tests.support.views import view_of
from tests.unit.controllers.inmemory.stage import flat, made

NS = "ns"
PASSED = {"HTTP_PROXY": "http://proxy:3128", "SECRET_OF_THE_MANAGER": "x"}


def cluster(*, provisioned: bool = True, paused: bool = False) -> Object:
    status = {"initialization": {"infrastructureProvisioned": provisioned}}
    return made(CLUSTER, "c", spec={"paused": paused}, status=status)


def machine(*, data: str = "data", **more: Any) -> Object:
    bootstrap = {"dataSecretName": data} if data else {}
    return made(MACHINE, "m", spec={"clusterName": "c", "bootstrap": bootstrap, **more})


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
    return made(
        kinds_of(driver).machine,
        "m",
        owner=machine() if owned else None,
        labels={names.MACHINE_NAME_LABEL: "m"} if claimed else {},
        finalizers=[FINALIZER] if claimed else [],
        annotations=annotations,
        deleting=deleting,
        spec=spec or {},
        status=status or {},
    )


def node_driver(name: str, **more: Any) -> Object:
    found = next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)
    return {**found, "spec": {**found["spec"], **more}}


DRIVER = node_driver("digitalocean")


def secret(name: str, namespace: str = NS, *, revision: str = "7", **more: Any) -> Object:
    meta = {"name": name, "namespace": namespace, "resourceVersion": revision, "uid": f"uid-{name}", **more}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta}


def was_read(obj: Object, of: Object, occasion: str = "") -> tuple[tuple[str, ...], EffectResult]:
    meta = obj["metadata"]
    key = ("read-secret", of["metadata"]["uid"], meta["namespace"], meta["name"], meta["resourceVersion"], occasion)
    return key, EffectResult(obj)


def encoded(**texts: str) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def decide(driver: str, *objects: Object, **more: Any) -> Decision:
    kind = kinds_of(driver).machine
    ours, objects = controller(kind, PASSED), tuple(_naming(each, kind) for each in objects)
    return ours.reconcile(view_of(ours, f"{NS}/m", objects, settings=Settings().get, **more))


def _naming(obj: Object, kind: Kind) -> Object:
    """A Machine that does not say otherwise names the infrastructure machine of its name."""
    if obj["kind"] != MACHINE.kind or "infrastructureRef" in obj["spec"]:
        return obj
    reference = {"apiGroup": kind.group, "kind": kind.kind, "name": obj["metadata"]["name"]}
    return {**obj, "spec": {**obj["spec"], "infrastructureRef": reference}}


def job_of(decision: Decision) -> Object:
    (job,) = [write.obj for write in flat(decision) if isinstance(write, Create) and write.kind == JOB]
    return job


def arguments_of(decision: Decision) -> list[str]:
    words: list[str] = job_of(decision)["spec"]["template"]["spec"]["containers"][0]["args"]
    return words


def environment_of(decision: Decision) -> dict[str, str]:
    (found,) = [
        write.obj
        for write in flat(decision)
        if isinstance(write, Apply) and write.obj["metadata"]["name"] == "m-machine-driver-secret"
    ]
    return {name: base64.b64decode(value).decode() for name, value in found["data"].items()}
