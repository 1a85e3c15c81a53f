"""A cluster on a server without controllers: commands request operations, and the test writes their progress."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from tests.support.builders import new_condition, new_manifest
from tests.support.engines import Engine
from tests.unit.cli.commands import expect_failure, herder

NAMESPACE = "fleet-default"
CLUSTERS = str(PROVISIONING_CLUSTER.resource.group_resource)
SNAPSHOTS = str(ETCD_SNAPSHOT.resource.group_resource)
CONTROL_PLANES = str(CONTROL_PLANE.resource.group_resource)


@dataclass
class Cluster:
    """A provisioning Cluster with its control plane, on a server without controllers."""

    server: Engine
    name: str

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.server.kubeconfig)}

    def herder(self, *arguments: str) -> str:
        return herder(*arguments, **self.environment).stdout

    def expect_failure(self, *arguments: str) -> str:
        return expect_failure(*arguments, **self.environment)

    def create(self, obj: Any) -> None:
        self.server.kubectl("create", "-f", "-", stdin=json.dumps(obj))

    def spec(self) -> Any:
        found = self.server.kubectl("get", "-n", NAMESPACE, CLUSTERS, self.name, "-o", "json").stdout
        return json.loads(found)["spec"]

    def requested(self, kind: str) -> Any:
        return self.spec()["rkeConfig"].get(kind)

    def wait_for_request(self, kind: str, generation: int) -> None:
        path = f"jsonpath={{.spec.rkeConfig.{kind}.generation}}={generation}"
        self.server.kubectl("wait", "-n", NAMESPACE, CLUSTERS, self.name, f"--for={path}", "--timeout=50s")

    def report(self, operation: dict[str, Any], ready: str = "", **status: Any) -> None:
        """Write the status as the planner does."""
        conditions = [new_condition("Ready", "False" if ready else "True", message=ready)]
        patch = {"status": {**status, "operation": operation, "conditions": conditions}}
        arguments = ("--subresource=status", "--type=merge", "-p", json.dumps(patch))
        self.server.kubectl("patch", "-n", NAMESPACE, CONTROL_PLANES, self.name, *arguments)

    def add_snapshot(self, snapshot: str, cluster: str = "", finalizers: Sequence[str] = (), **fields: Any) -> None:
        """`fields` are those of its file."""
        file = {"name": f"file-{snapshot}", "nodeName": "node-a", "status": "successful", **fields}
        labels, spec = {names.CLUSTER_NAME: self.name}, {"clusterName": cluster or self.name}
        obj = new_manifest(ETCD_SNAPSHOT, snapshot, NAMESPACE, labels=labels, spec=spec, snapshotFile=file)
        obj["metadata"]["finalizers"] = [*finalizers]
        self.create(obj)
