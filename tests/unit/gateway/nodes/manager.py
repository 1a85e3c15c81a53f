"""A manager as users run it, with a cluster that machines can register for, and helpers for those machines."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from herder.engine.meta.kinds import Object
from tests.support.embedded import HERDER, Embedded
from tests.support.peers import peer

NAMESPACE, CLUSTER = "fleet-default", "meadow"
PATIENCE = 90.0
FLAGS = ("--gateway", "--capi-core=own", "--no-machines", "--no-runner")

MANIFEST = {
    "apiVersion": "provisioning.cattle.io/v1",
    "kind": "Cluster",
    "metadata": {"name": CLUSTER, "namespace": NAMESPACE},
    "spec": {"kubernetesVersion": "v1.35.0+herder1", "rkeConfig": {}},
}


def eventually(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@dataclass
class Manager:
    """`command_prefix` is put before commands, to run them in the network of the manager."""

    kubeconfig: Path
    url: str
    log: Callable[[], str]
    command_prefix: tuple[str, ...] = ()

    @classmethod
    def of(cls, server: Embedded, url: str = "") -> Manager:
        return cls(server.kubeconfig, url or server.url, server.log, server.command_prefix)

    def create_cluster(self) -> None:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self.apply(MANIFEST)
        eventually(lambda: self.find("cluster.cluster.x-k8s.io", CLUSTER), "the cluster is not created")
        eventually(lambda: self.token, "the cluster has no registration token")

    @property
    def token(self) -> str:
        cluster = self.find("clusters.provisioning.cattle.io", CLUSTER)
        id_ = ((cluster or {}).get("status") or {}).get("clusterName", "")
        secret = self.find("secrets", "crt-token-default-token", namespace=id_) if id_ else None
        return base64.b64decode(secret["data"]["token"]).decode() if secret else ""

    def registration_command(self, *flags: str, token: str = "", checksum: str = "", **environment: str) -> str:
        """The command that users run on a machine, as one line for its shell."""
        variables = {"CATTLE_AGENT_RETRIES": "2", "CATTLE_AGENT_RETRY_SECONDS": "1", **environment}
        assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        arguments = ["--server", self.url, "--token", token or self.token, *flags]
        arguments += ["--ca-checksum", checksum] if checksum else []
        script = f"curl --insecure -sfL {self.url}/system-agent-install.sh"
        return f"{script} | {assignments} sh -s - {shlex.join(arguments)}"

    def herder(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.command_prefix, HERDER, *arguments, "--kubeconfig", str(self.kubeconfig)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    # --- objects ------------------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        result = self._run_kubectl(*arguments, stdin=stdin)
        assert result.returncode == 0 or not check, f"{arguments}: {result.stderr}\n{self.log()[-2000:]}"
        return result.stdout

    def apply(self, obj: Object) -> None:
        """Apply an object, once its kind is served."""
        arguments, content = ("apply", "--server-side", "-f", "-"), json.dumps(obj)
        eventually(
            lambda: (
                "no matches for kind" not in self._run_kubectl(*arguments, "--dry-run=server", stdin=content).stderr
            ),
            f"{obj['kind']} is served",
        )
        self.kubectl(*arguments, stdin=content)

    def _run_kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [*self.command_prefix, peer("kubectl"), "--kubeconfig", self.kubeconfig, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def replace_error(self, obj: Object, user: str) -> str:
        """The error when another user replaces the object."""
        command = [
            *self.command_prefix,
            peer("kubectl"),
            "--kubeconfig",
            self.kubeconfig,
            "--as",
            user,
            "replace",
            "-f",
            "-",
        ]
        result = subprocess.run(command, input=json.dumps(obj), capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode != 0
        return result.stderr

    def find(self, resource: str, name: str, *, namespace: str = NAMESPACE) -> Object | None:
        output = self.kubectl("get", resource, name, "-n", namespace, "--ignore-not-found", "-o", "json", check=False)
        obj: Object | None = json.loads(output) if output.strip() else None
        return obj

    def machines(self) -> list[Object]:
        items: list[Object] = json.loads(self.kubectl("get", "machines", "-n", NAMESPACE, "-o", "json"))["items"]
        return items

    def create_machine(self, name: str) -> str:
        """Create a machine as the core would, except for the driver, and return its bootstrap script."""
        labels = {"cluster.x-k8s.io/cluster-name": CLUSTER, "rke.cattle.io/worker-role": "true"}
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
        group = "rke.cattle.io"
        for kind in ("RKEBootstrap", "CustomMachine"):
            self.apply({"apiVersion": f"{group}/v1", "kind": kind, "metadata": meta, "spec": {}})
        spec = {
            "clusterName": CLUSTER,
            "bootstrap": {"configRef": {"apiGroup": group, "kind": "RKEBootstrap", "name": name}},
            "infrastructureRef": {"apiGroup": group, "kind": "CustomMachine", "name": name},
        }
        self.apply({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": meta, "spec": spec})
        secret = f"{name}-machine-bootstrap"
        eventually(lambda: self.find("secrets", secret), "the install script is not created")
        bootstrap = self.find("secrets", secret)
        assert bootstrap is not None
        return base64.b64decode(bootstrap["data"]["value"]).decode()

    # --- plans --------------------------------------------------------------------------------------------------------

    def write_plan(self, machine: str, text: str) -> None:
        """Write a plan by hand, with one command whose output is reported."""
        instruction = {"name": "hello", "command": "sh", "args": ["-c", f"echo {text}"], "saveOutput": True}
        plan = json.dumps({"instructions": [instruction]})
        values = {"plan": plan, "plan-state": "pending", "max-failures": "-1", "failure-threshold": "1"}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self.kubectl("patch", "secret", f"{machine}-machine-plan", "-n", NAMESPACE, "-p", json.dumps({"data": data}))

    def plan_state(self, machine: str) -> str:
        secret = self.find("secrets", f"{machine}-machine-plan")
        return base64.b64decode(((secret or {}).get("data") or {}).get("plan-state", "")).decode()

    def apply_plan(self, machine: str, text: str) -> None:
        self.write_plan(machine, text)
        eventually(lambda: self.plan_state(machine) == "succeeded", f"{machine} does not apply its plan")


def go_agent_assets(directory: Path) -> Path:
    """A directory for the setting system-agent-assets."""
    directory.mkdir()
    (directory / "rancher-system-agent-amd64").symlink_to(peer("rancher-system-agent"))
    return directory
