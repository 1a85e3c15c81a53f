"""MachineDeployments, and a fake API server on which their MachineSets are reconciled too."""

from __future__ import annotations

from typing import Any

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.templates import needs_rollout
from herder.controllers.capi.machinedeployment.controller import CONTROLLER
from herder.controllers.capi.machineset.controller import CONTROLLER as MACHINE_SET_CONTROLLER
from herder.engine.meta.kinds import Object
from tests.support.builders import new_object
from tests.unit.controllers.capi.fake_server import FakeServer
from tests.unit.controllers.capi.objects import (
    CLUSTER_LABELS,
    CLUSTER_OWNER,
    INFRA,
    NAMESPACE,
    cluster_with_templates,
    machine_template,
)

NAME = "pool"
LABELS = CLUSTER_LABELS | {"cluster.x-k8s.io/deployment-name": NAME}


def deployment(
    replicas: int | None = 3,
    *,
    strategy: str = "RollingUpdate",
    surge: int | str = 1,
    unavailable: int | str = 0,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    rollout: Object = {"strategy": {"type": strategy}}
    if strategy == "RollingUpdate":
        rollout["strategy"]["rollingUpdate"] = {"maxSurge": surge, "maxUnavailable": unavailable}
    desired = {
        "clusterName": "herd",
        "selector": {"matchLabels": LABELS},
        "template": machine_template(LABELS, version="v1.31.0"),
        "rollout": rollout,
        **({} if replicas is None else {"replicas": replicas}),
        **spec,
    }
    return new_object(
        MACHINE_DEPLOYMENT,
        NAME,
        NAMESPACE,
        labels=dict(CLUSTER_LABELS),
        annotations=annotations,
        owners=[CLUSTER_OWNER],
        finalizers=["cluster.x-k8s.io/machinedeployment"],
        metadata={"uid": "pool-uid"},
        spec=desired,
    )


class DeploymentServer(FakeServer):
    """A server that reconciles a MachineDeployment and its MachineSets, and simulates their Machines."""

    def __init__(self, obj: Object) -> None:
        super().__init__([*cluster_with_templates(), obj])

    @property
    def deployment(self) -> Object:
        return self.get(MACHINE_DEPLOYMENT, NAME)

    @property
    def sets(self) -> list[Object]:
        """The MachineSets by revision, oldest first."""
        return sorted(self.all(MACHINE_SET), key=lambda each: int(revision(each)))

    def edit(self, **spec: Any) -> None:
        self.change(self.deployment, {"spec": spec})

    def edit_template(self, **spec: Any) -> None:
        self.edit(template={"spec": spec})

    def reconcile_all(self) -> None:
        """Reconcile the MachineDeployment and each MachineSet once."""
        self.reconcile(CONTROLLER, NAME)
        for each in self.all(MACHINE_SET):
            self.reconcile(MACHINE_SET_CONTROLLER, each["metadata"]["name"])

    def run(self, *, limit: int = 100) -> int:
        """Reconcile until nothing is written any more. Machines become available and are deleted at once."""
        for step in range(limit):
            before = len(self.writes)
            self.reconcile_all()
            if len(self.writes) == before:
                return step
            self.start_machines(self.all(MACHINE))
            self.finish_deletions()
            self.pass_time(seconds=1)
        raise AssertionError(f"does not settle: {[write.reason for write in self.writes[-5:]]}")

    def start_machines(self, machines: list[Object]) -> None:
        provisioned = [each for each in machines if self.has(INFRA, each["metadata"]["name"])]
        self.make_available([each for each in provisioned if not (each.get("status") or {}).get("nodeRef")])
        for each in self.all(MACHINE):
            (owner,) = each["metadata"]["ownerReferences"]
            template = self.get(MACHINE_SET, owner["name"])["spec"]["template"]
            outdated = needs_rollout(template, self.deployment["spec"]["template"])
            message = "* Version v1.31.0, v1.32.0 required" if outdated else ""
            self.report_conditions(each, condition("UpToDate", str(not outdated), "X", message))

    def replica_counts(self) -> list[int]:
        return [each["spec"]["replicas"] for each in self.sets]


def revision(obj: Object) -> str:
    return str(obj["metadata"]["annotations"]["machinedeployment.clusters.x-k8s.io/revision"])


def settled(obj: Object) -> DeploymentServer:
    server = DeploymentServer(obj)
    server.run()
    server.writes.clear()
    return server
