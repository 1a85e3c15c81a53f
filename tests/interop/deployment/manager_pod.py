"""A pod of the manager without a kubelet: its command as a process of this host, with the files of a pod."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml

from tests.support.canaries import assert_no_secrets, in_logs
from tests.support.capi import webhook_flags
from tests.support.embedded import HERDER
from tests.support.engines import Engine
from tests.support.kube import RealKube, free_port
from tests.support.manager import account as manager_account
from tests.support.processes import terminate
from tools.deploy_manifests import GATEWAY_PORT, METRICS_PORT, WEBHOOK_PORT

TIMEOUT = 150.0
SERVICE_ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"


def eventually(holds: Callable[[], object], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


@contextmanager
def manager_pod(
    kube: RealKube, engine: Engine, directory: Path, *, beside: ManagerPod | None = None
) -> Iterator[ManagerPod]:
    """A replica of the installed Deployment, once its probes succeed. `beside`: another one.

    It must stop cleanly, and none of its requests may be denied.
    """
    if os.geteuid() != 0:
        pytest.skip("a mount namespace with the files of a pod: needs root")
    pod = ManagerPod(kube, engine, directory, beside.webhook_url if beside else "")
    try:
        eventually(pod.is_healthy, pod.log)
        eventually(lambda: pod.accepts(pod.gateway), pod.log)  # as its readiness probe
        yield pod
    finally:
        assert terminate(pod.process) == 0, pod.log()
    assert_no_secrets(in_logs(directory))
    manager_account.assert_nothing_denied(kube.kubeconfig)


class ManagerPod:
    """The container of the Deployment as a process of this host."""

    def __init__(self, kube: RealKube, engine: Engine, directory: Path, webhook_url: str = "") -> None:
        self.engine = engine
        self.gateway, self.metrics = free_port(), free_port()
        self._log = directory / "run.log"
        deployment = yaml.safe_load(engine.kubectl("-n", "herder-system", "get", "deploy", "herder", "-o=yaml").stdout)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]} | {"HERDER_HOSTNAME": "localhost"}
        expanded = [arg.replace("$(HERDER_HOSTNAME)", "localhost") for arg in container["args"]]
        ports = {GATEWAY_PORT: self.gateway, METRICS_PORT: self.metrics}
        listen = {f"0.0.0.0:{port}": f"127.0.0.1:{own}" for port, own in ports.items()}
        # No Service exists on this host, so the API server needs the address of the webhooks of one replica.
        listen_flag, listen_address, url_flag, own_url = webhook_flags()
        self.webhook_url = webhook_url or own_url
        arguments = [arg for arg in expanded if f":{WEBHOOK_PORT}" not in arg]
        arguments += [listen_flag, listen_address, url_flag, self.webhook_url]
        command = [_replaced(arg, listen) for arg in arguments]
        files = self._service_account(kube, directory)
        mounts = f"mount -t tmpfs none /run && mkdir -p {SERVICE_ACCOUNT} && mount --bind {files} {SERVICE_ACCOUNT}"
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(kube.port)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", HERDER, *command],
                stdout=log,
                stderr=log,
                env=os.environ | variables | environment | {"HERDER_DATA_DIR": str(directory), "HOME": str(directory)},
                start_new_session=True,
            )

    def _service_account(self, kube: RealKube, directory: Path) -> Path:
        """The files that the kubelet mounts."""
        files = directory / "account"
        files.mkdir()
        token = self.engine.kubectl("-n", "herder-system", "create", "token", "herder", "--duration=2h").stdout.strip()
        contents = {"token": token, "namespace": "herder-system", "ca.crt": kube.authority.path.read_text()}
        for name, content in contents.items():
            (files / name).write_text(content)
        return files

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/healthz", timeout=30) as response:
                return bool(response.status == HTTPStatus.OK)
        except OSError:
            return False

    def accepts(self, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def is_leader(self) -> bool:
        lease = ("lease", "herder-controllers", "-o", "jsonpath={.spec.holderIdentity}")
        return f"_{self.process.pid}_" in self.engine.kubectl("-n", "herder-system", "get", *lease, check=False).stdout


def _replaced(text: str, values: dict[str, str]) -> str:
    for old, new in values.items():
        text = text.replace(old, new)
    return text
