"""Objects of a machine that its bootstrap needs, and decisions about the bootstrap."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CLUSTER_NAME
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, CUSTOM_MACHINE
from herder.api.settings import Settings
from herder.controllers.bootstrap import objects, rke_bootstrap
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from tests.support.builders import (
    merge_objects,
    new_cluster,
    new_machine,
    new_object,
    object_reference,
    owner_reference,
    reconcile,
)

NAMESPACE, NAME = "fleet-default", "pool-1-abcde"
SERVER = {"server-url": "https://manager.example.com", "cacerts": "---- some certificates"}
UID = "kubernetes.io/service-account.uid"


def cluster(*, provisioned: bool = True, paused: bool = False) -> Object:
    spec = {"controlPlaneRef": object_reference(CONTROL_PLANE, "meadow")}
    return new_cluster("meadow", NAMESPACE, provisioned=provisioned, paused=paused, spec=spec)


def control_plane(**spec: object) -> Object:
    return new_object(CONTROL_PLANE, "meadow", NAMESPACE, spec={"clusterName": "meadow", **spec})


def machine(
    *,
    infrastructure: str = "rke-machine.cattle.io",
    phase: str = "Pending",
    node: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    deleting: bool = False,
) -> Object:
    """The Machine of the bootstrap, with infrastructure of the group `infrastructure`."""
    status: Object = {"phase": phase} | ({"nodeRef": {"name": node}} if node else {})
    spec = {
        "bootstrap": {"configRef": object_reference(BOOTSTRAP, NAME)},
        "infrastructureRef": {"apiGroup": infrastructure, "kind": CUSTOM_MACHINE.kind, "name": NAME},
    }
    options = {"labels": labels or {}, "annotations": annotations, "deleting": deleting}
    return new_machine(NAME, NAMESPACE, cluster="meadow", spec=spec, status=status, **options)


def bootstrap(*, owned: bool = True, annotations: dict[str, str] | None = None, **fields: Any) -> Object:
    """The RKEBootstrap of a worker; with `owned`, the core has set its Machine as its owner."""
    return new_object(
        BOOTSTRAP,
        NAME,
        NAMESPACE,
        labels={CLUSTER_NAME: "meadow", names.WORKER_ROLE: "true"},
        annotations=annotations,
        owners=[owner_reference(MACHINE, NAME, controller=False)] if owned else [],
        spec={"clusterName": "meadow"},
        **fields,
    )


def accounts(*, filled: bool = True) -> list[Object]:
    """All objects that are created before the script; with `filled`, Kubernetes has issued the tokens."""
    bootstrap_object, machine_object = bootstrap(), machine()
    found: list[Object] = []
    for account in (
        objects.plan_account(bootstrap_object, machine_object),
        objects.bootstrap_account(bootstrap_object, machine_object),
    ):
        token = objects.token_secret(bootstrap_object, machine_object, account)
        token["metadata"] |= {"uid": token["metadata"]["name"], "creationTimestamp": "2026-01-01T12:00:00Z"}
        if filled:
            token["metadata"]["annotations"] |= {UID: "uid"}
        found += [account, token]
    return [
        *found,
        objects.plan_secret(bootstrap_object, machine_object, cluster()),
        objects.plan_role(bootstrap_object),
        objects.plan_binding(bootstrap_object),
    ]


def machine_objects(*others: Object) -> list[Object]:
    """All objects that a bootstrap needs; each of `others` replaces the default of the same kind and name."""
    return merge_objects([cluster(), control_plane(), machine(), bootstrap()], others)


def decide(*objects_: Object, **settings: str) -> Decision:
    """One reconcile of the bootstrap; `settings` are those of the manager, with underscores."""
    flags = SERVER | {name.replace("_", "-"): value for name, value in settings.items()}
    key = f"{NAMESPACE}/{NAME}"
    return reconcile(rke_bootstrap.CONTROLLER, key, *objects_, settings=Settings(flags=flags).get)
