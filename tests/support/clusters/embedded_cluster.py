"""An embedded cluster on machines of this host, with a real S3 server that has TLS with a private CA."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from herder.machine.host.client import HostClient
from tests.support.cloud.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.clusters.secret_readers import reading
from tests.support.embedded import HERDER, Embedded
from tests.support.kube import free_port
from tests.support.manager.machines import host_shutdown
from tests.support.manager.node_agents import eventually
from tests.support.peers import peer
from tests.unit.cli.cluster.test_lifecycle import CLUSTERS, NAME, NAMESPACE, Site

FOLDER = "farm"
CREDENTIAL = "s3-credential"
AGENT_PID = "/run/rancher-system-agent.pid"


class Cluster:
    def __init__(self, site: Site, s3: S3Server) -> None:
        self.site, self.s3 = site, s3

    def apply(self, obj: dict[str, Any], of_cluster: bool = False) -> None:
        kubeconfig = self.site.directory / "cluster.yaml" if of_cluster else self.site.server.kubeconfig
        command = [peer("kubectl"), "--kubeconfig", kubeconfig, "apply", "-f", "-"]
        subprocess.run(command, input=json.dumps(obj), text=True, check=True, capture_output=True, timeout=60)

    def write(self, name: str) -> None:
        """A ConfigMap, and a Secret, which the server encrypts."""
        for kind in ("ConfigMap", "Secret"):
            obj = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}}
            self.apply({**obj, "data": {"key": base64.b64encode(name.encode()).decode()}}, of_cluster=True)

    def names(self) -> set[str]:
        """Names of ConfigMaps that are also names of readable Secrets."""
        found = [
            {
                each["metadata"]["name"]
                for each in self.site.kubectl("get", kind, "-n", "default", of_cluster=True)["items"]
                if (each.get("data") or {}).get("key")
            }
            for kind in ("configmaps", "secrets")
        ]
        assert found[0] == found[1]
        return found[0]

    def set_credential(self, secret_key: str) -> None:
        keys = {"accessKey": ACCESS_KEY, "secretKey": secret_key, "defaultRegion": "us-east-1"}
        data = {f"s3credentialConfig-{name}": value for name, value in keys.items()}
        meta = {"name": CREDENTIAL, "namespace": NAMESPACE}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})

    def set_s3(self, **changes: Any) -> None:
        s3 = {
            "cloudCredentialName": CREDENTIAL,
            "endpoint": self.s3.endpoint,
            "endpointCA": base64.b64encode(self.s3.authority.path.read_bytes()).decode(),
            "bucket": BUCKET,
            "folder": FOLDER,
            **changes,
        }
        self.set_etcd(s3=s3)

    def set_etcd(self, **fields: Any) -> None:
        """Change fields of `rkeConfig.etcd`."""
        patch = json.dumps({"spec": {"rkeConfig": {"etcd": fields}}})
        self.site.kubectl("patch", CLUSTERS, NAME, "-n", NAMESPACE, "--type=merge", "-p", patch)

    def snapshots(self, node: str = "s3") -> list[dict[str, Any]]:
        """The snapshots of a node, or in S3; the newest first."""
        found = json.loads(self.site.herder("snapshot", "list", NAME, "-o", "json"))["items"]
        return [each for each in found if each["snapshotFile"]["nodeName"] == node]

    def fails(self, *arguments: str) -> str:
        """The first line of a command that fails."""
        environment = {"KUBECONFIG": str(self.site.server.kubeconfig), "PATH": "/usr/bin:/bin"}
        command = [HERDER, *arguments, "--timeout", "400"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=430, env=environment)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.splitlines()[0]

    def operation(self) -> dict[str, Any]:
        """The operation in progress, or the last one."""
        found: dict[str, Any] = json.loads(self.site.herder("operations", NAME, "-o", "json"))["operation"]
        return found

    def reads(self, name: str) -> AbstractContextManager[None]:
        """A client reads a Secret of `write` meanwhile."""
        kubeconfig, template = self.site.directory / "cluster.yaml", "go-template={{.data.key | base64decode}}"
        arguments = ("get", "secret", name, "-n", "default", "-o", template)
        command: list[str | Path] = [peer("kubectl"), "--kubeconfig", kubeconfig, *arguments]
        return reading(command, name)

    @property
    def server(self) -> str:
        (name,) = (name for name in self.site.machines() if "-servers-" in name)
        return name

    def root(self, machine: str) -> Path:
        listed = HostClient.of(self.site.directory / "data" / "host").machines()
        (path,) = (each["directory"] for each in listed if each["name"] == machine)
        return Path(path) / "root"

    def process(self) -> str:
        return self.site.herder("ssh", self.server, "--", "cat /run/herder-server.child")

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """The same server runs, with the same data."""
        process, names = self.process(), self.names()
        yield
        assert (self.process(), self.names()) == (process, names)

    def until_nodes_match_machines(self) -> None:
        """Nodes of lost machines are deleted, and workers have found the server."""
        site = self.site
        site.herder("wait", "cluster", NAME, "--timeout", "400")
        eventually(lambda: set(site.nodes()) == set(site.machines()), "each Node has a machine", 150)


@contextmanager
def embedded_cluster(directory: Path) -> Iterator[Cluster]:
    """One server and one worker."""
    (directory / "s3").mkdir()
    flags, data = ("--capi-core=own", "--machines", "--gateway"), directory / "data"
    with (
        S3Server(directory / "s3") as s3,
        host_shutdown(data),
        Embedded(data, flags=flags, listen=f"127.0.0.1:{free_port()}") as server,
    ):
        site = Site(server, directory)
        site.herder("create", "cluster", NAME, "--servers", "1", "--workers", "1")
        (directory / "cluster.yaml").write_text(site.herder("kubeconfig", NAME))
        found = Cluster(site, s3)
        found.set_credential(SECRET_KEY)
        found.set_s3()
        yield found
