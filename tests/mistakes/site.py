"""One manager for all mistakes, with a cluster, a user without rights on it, and kubeconfigs that do not work."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.mistakes.table import FILES, Mistake
from tests.support.canaries import canary
from tests.support.embedded import HERDER, Embedded
from tests.support.kube import Authority, free_port
from tests.support.manager.machines import host_shutdown
from tests.support.peers import peer
from tests.support.registry.oci import registry

PASSWORD = canary("password of dolly")
TIMEOUT = 90


@dataclass
class Site:
    server: Embedded
    files: Path
    values: dict[str, str] = field(default_factory=dict)  # by their names in commands

    def run(self, command: str, *, user: str = "admin", stdin: str = "") -> subprocess.CompletedProcess[str]:
        program, *arguments = shlex.split(command.replace('"', '\\"'))
        for name, value in self.values.items():
            arguments = [argument.replace(f"{{{name}}}", value) for argument in arguments]
        path = HERDER if program == "herder" else peer(program)
        known = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "HERDER_DATA_DIR")}
        own = {"HOME": str(self.files / "home"), "HERDER_DATA_DIR": str(self.files / "home")}
        config = {"KUBECONFIG": str(self.files / f"{user}.yaml")} if user else {}
        return subprocess.run(
            [path, *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT, env=known | own | config
        )

    def must(self, command: str, **options: str) -> str:
        done = self.run(command, **options)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait_for(self, command: str) -> str:
        """Repeat until the command succeeds and prints something."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            done = self.run(command)
            if done.returncode == 0 and done.stdout:
                return done.stdout
            assert time.monotonic() < deadline, f"{command}: {done.stdout}{done.stderr}"
            time.sleep(0.2)

    def first_line(self, mistake: Mistake) -> tuple[int, str]:
        """Exit code, and the first line that the user sees: of the error, or of the condition that was asked for."""
        done = self.run(mistake.command, user=mistake.user, stdin=mistake.stdin)
        output = done.stderr if done.returncode else done.stdout
        return done.returncode, (output.splitlines() or [""])[0]

    def shown(self, text: str) -> str:
        """The text without the values of this run."""
        for name in ("files", "data", "listen", "registry", "waiting", "checksum"):
            text = text.replace(self.values[name], f"{{{name}}}")
        return text


@contextmanager
def running_site(directory: Path) -> Iterator[Site]:
    data, files, listen = directory / "data", directory / "files", f"127.0.0.1:{free_port()}"
    (files / "home").mkdir(parents=True)
    flags = ("--capi-core=own", "--machines", "--gateway")
    with registry() as images, host_shutdown(data), Embedded(data, flags=flags, listen=listen) as server:
        site = Site(server, files, {"url": f"https://{listen}", "listen": listen, "data": str(data)})
        site.values |= {"files": str(files), "registry": images.host, "checksum": "", "waiting": ""}
        for name, content in FILES.items():
            (files / name).write_text(content)
        (files / "admin.yaml").write_bytes(server.kubeconfig.read_bytes())
        _create_users(site)
        _create_clusters(site)
        _write_kubeconfigs(site, directory)
        yield site


def _create_users(site: Site) -> None:
    certificates = site.wait_for("kubectl get --raw /cacerts")  # served once the gateway is ready
    site.values["checksum"] = hashlib.sha256(certificates.encode()).hexdigest()
    site.must("herder users create dolly --password-stdin", stdin=PASSWORD)
    for name in ("dolly", "revoked"):
        command = "herder login {url} -u dolly --password-stdin --ca-checksum {checksum} --kubeconfig"
        site.must(f"{command} {{files}}/{name}.yaml", stdin=PASSWORD)
    bearer = yaml.safe_load((site.files / "revoked.yaml").read_text())["users"][0]["user"]["token"]
    site.must(f"kubectl delete tokens.management.cattle.io {bearer.partition(':')[0]}")


def _create_clusters(site: Site) -> None:
    site.wait_for("kubectl get crd digitaloceanconfigs.rke-machine-config.cattle.io -o name")
    site.must("""kubectl patch nodedriver digitalocean --type=merge -p {"spec":{"active":false}}""")
    k3s = "--kubernetes v1.36.3+k3s1 --workers 0 --config {files}/registry.yaml"
    site.must(f"herder create cluster weald --no-wait {k3s}")
    site.must("kubectl create namespace full")
    site.must("kubectl create quota jobs --hard=count/jobs.batch=0 -n full")
    site.must("herder create cluster glen -n full --workers 0 --no-wait")
    site.must("herder import strange")
    site.must("kubectl create -f {files}/dell.yaml")
    site.must("herder create cluster meadow --workers 1 --timeout 80")
    waiting = site.wait_for("kubectl get machines.cluster.x-k8s.io -n full -o jsonpath={.items[*].metadata.name}")
    site.values["waiting"] = waiting
    site.must("kubectl create quota none --hard=count/clusters.provisioning.cattle.io=1 -n full")
    gone = "kubectl wait --for=delete crd/digitaloceanconfigs.rke-machine-config.cattle.io --timeout=60s"
    site.must(gone)
    label = "-n fleet-default -l cluster.x-k8s.io/cluster-name=weald --timeout=80s"
    site.must(f"kubectl wait --for=condition=PlanApplied=False machines.cluster.x-k8s.io {label}")


def _write_kubeconfigs(site: Site, directory: Path) -> None:
    text = (site.files / "admin.yaml").read_text()
    (site.files / "refused.yaml").write_text(text.replace(site.values["listen"], "127.0.0.1:1"))
    config = yaml.safe_load(text)
    cluster = config["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["certificate-authority"] = str(Authority(directory / "authority").path)
    (site.files / "other-ca.yaml").write_text(yaml.safe_dump(config))
