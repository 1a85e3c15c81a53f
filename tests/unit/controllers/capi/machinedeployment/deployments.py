"""MachineDeployments for tests, and a world in which their MachineSets work too."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.templates import needs_rollout
from herder.controllers.capi.machinedeployment.controller import CONTROLLER
from herder.controllers.capi.machineset.controller import CONTROLLER as SETS
from herder.engine.meta.kinds import Object
from tests.unit.controllers.capi.world import INFRA, World, machine_template, made, surroundings

NAME = "pool"
LABELS = {"cluster.x-k8s.io/cluster-name": "herd", "cluster.x-k8s.io/deployment-name": NAME}


def deployment(
    replicas: int | None = 3,
    *,
    strategy: str = "RollingUpdate",
    surge: int | str = 1,
    unavailable: int | str = 0,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    pattern = machine_template(version="v1.31.0")
    pattern["metadata"]["labels"] = LABELS
    rollout: Object = {"strategy": {"type": strategy}}
    if strategy == "RollingUpdate":
        rollout["strategy"]["rollingUpdate"] = {"maxSurge": surge, "maxUnavailable": unavailable}
    wanted = {
        "clusterName": "herd",
        "selector": {"matchLabels": LABELS},
        "template": pattern,
        "rollout": rollout,
        **({} if replicas is None else {"replicas": replicas}),
        **spec,
    }
    obj = made(MACHINE_DEPLOYMENT, NAME, spec=wanted, uid="pool-uid", annotations=annotations or {})
    obj["metadata"] |= {
        "finalizers": ["cluster.x-k8s.io/machinedeployment"],
        "labels": {"cluster.x-k8s.io/cluster-name": "herd"},
        "ownerReferences": [
            {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "herd", "uid": "Cluster-herd"}
        ],
    }
    return obj


class Herd(World):
    """MachineDeployment and MachineSets at work; the Machines do as they are told."""

    def __init__(self, obj: Object) -> None:
        super().__init__([*surroundings(), obj])

    @property
    def deployment(self) -> Object:
        return self.get(MACHINE_DEPLOYMENT, NAME)

    @property
    def sets(self) -> list[Object]:
        """The oldest first."""
        return sorted(self.all(MACHINE_SET), key=lambda each: int(revision(each)))

    def edit(self, **spec: Any) -> None:
        self.change(self.deployment, {"spec": spec})

    def template(self, **spec: Any) -> None:
        self.edit(template={"spec": spec})

    def work(self) -> None:
        """Every controller once."""
        self.reconcile(CONTROLLER, NAME)
        for each in self.all(MACHINE_SET):
            self.reconcile(SETS, each["metadata"]["name"])

    def run(self, *, limit: int = 100) -> int:
        """Until nothing moves any more, with Machines that become available and go away at once."""
        for step in range(limit):
            before = len(self.writes)
            self.work()
            if len(self.writes) == before:
                return step
            self.comes_up(self.all(MACHINE))
            self.finish_deletions()
            self.pass_time(seconds=1)
        raise AssertionError(f"does not settle: {[write.reason for write in self.writes[-5:]]}")

    def comes_up(self, machines: list[Object]) -> None:
        provided = [each for each in machines if self.has(INFRA, each["metadata"]["name"])]
        self.make_available([each for each in provided if not (each.get("status") or {}).get("nodeRef")])
        for each in self.all(MACHINE):
            (owner,) = each["metadata"]["ownerReferences"]
            template = self.get(MACHINE_SET, owner["name"])["spec"]["template"]
            outdated = needs_rollout(template, self.deployment["spec"]["template"])
            told = {"type": "UpToDate", "status": "False" if outdated else "True", "reason": "X", "message": ""}
            self.says(each, told | ({"message": "* Version v1.31.0, v1.32.0 required"} if outdated else {}))

    def sizes(self) -> list[int]:
        return [each["spec"]["replicas"] for each in self.sets]


def revision(obj: Object) -> str:
    return str(obj["metadata"]["annotations"]["machinedeployment.clusters.x-k8s.io/revision"])


def settled(obj: Object) -> Herd:
    herd = Herd(obj)
    herd.run()
    herd.writes.clear()
    return herd
