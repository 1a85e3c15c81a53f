"""The plain manifests and the chart's objects on a kube-apiserver, and the manager as they start it.

There is no kubelet and no image: the command of the Deployment runs on this host, in a mount namespace with the files
of a pod. It runs as the service account of the manifests, with a token.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.programs import run
from tests.support.canaries import assert_no_secrets, in_logs
from tests.support.capi import webhook_flags
from tests.support.embedded import HERDER
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube, free_port
from tests.support.manager import account as manager_account
from tests.support.manager.chart_stand_in import Chart, Values
from tests.support.processes import terminate
from tools.deploy_manifests import CHART, FILE, GATEWAY_PORT, METRICS_PORT, WEBHOOK_PORT

HOST = "herder.example.com"
REQUIRED = {"hostname": HOST, "image": {"repository": "herder.invalid/herder", "tag": "none"}}
ALL_VALUES = REQUIRED | {
    "bootstrapPassword": "correct horse battery",
    "systemDefaultRegistry": "registry.example.com",
    "privateCA": True,
    "ingress": {"enabled": True, "ingressClassName": "nginx", "tls": {"source": "secret"}},
    "service": {"type": "LoadBalancer", "annotations": {"example.com/a": "b"}},
    "extraArgs": ["--capi-core=external"],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}],
    "imagePullSecrets": [{"name": "pull"}],
    "tolerations": [{"operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
}
MONITORED = {**REQUIRED, "serviceMonitor": {"enabled": True}, "networkPolicy": {"enabled": False}}
VALUES = {"required": REQUIRED, "all": ALL_VALUES, "monitored": MONITORED}
TIMEOUT = 150.0
SERVICE_ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKube]:
    directory = tmp_path_factory.mktemp("kube")
    with RealKube(directory, controller_manager=True, controllers=CONTROLLERS, audited=True) as running:
        yield running


@pytest.fixture(scope="module")
def engine(kube: RealKube) -> Engine:
    return Engine("real", kube.kubeconfig)


def eventually(holds: Callable[[], object], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


@pytest.mark.parametrize("values", VALUES.values(), ids=list(VALUES))
def test_the_objects_of_the_chart_are_valid(engine: Engine, values: Values) -> None:
    for namespace in ("herder-system", "cattle-system"):
        engine.kubectl("create", "namespace", namespace, check=False)
    known = [each for each in Chart(CHART).objects(values) if each["kind"] != "ServiceMonitor"]
    engine.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(known))


def test_the_ingress_is_valid(engine: Engine) -> None:
    engine.kubectl("create", "namespace", "herder-system", check=False)
    engine.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(FILE.parent / "ingress.yaml"))


def test_the_documented_customization_sets_image_and_host_name(engine: Engine, tmp_path: Path) -> None:
    page = (FILE.parents[1] / "docs" / "on-a-cluster.md").read_text()
    example = page.partition("# kustomization.yaml\n")[2].partition("```")[0]
    shutil.copytree(FILE.parent, tmp_path / "herder" / "deploy")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "kustomization.yaml").write_text(example)
    objects = yaml.safe_load_all(engine.kubectl("kustomize", str(tmp_path / "site")).stdout)
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/herder:0.2.0"
    assert {"name": "HERDER_HOSTNAME", "value": "manager.example.com"} in container["env"]


class Pod:
    """The container of the Deployment as a process of this host."""

    def __init__(self, kube: RealKube, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.gateway, self.metrics = free_port(), free_port()
        self._log = directory / "run.log"
        deployment = yaml.safe_load(engine.kubectl("-n", "herder-system", "get", "deploy", "herder", "-o=yaml").stdout)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]} | {"HERDER_HOSTNAME": "localhost"}
        expanded = [arg.replace("$(HERDER_HOSTNAME)", "localhost") for arg in container["args"]]
        ports = {GATEWAY_PORT: self.gateway, METRICS_PORT: self.metrics}
        listen = {f"0.0.0.0:{port}": f"127.0.0.1:{own}" for port, own in ports.items()}
        # No Service exists on this host, so the API server needs the address of the webhooks.
        arguments = [arg for arg in expanded if f":{WEBHOOK_PORT}" not in arg] + list(webhook_flags())
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


def _replaced(text: str, values: dict[str, str]) -> str:
    for old, new in values.items():
        text = text.replace(old, new)
    return text


def test_the_manager_runs_as_the_manifests_start_it(
    kube: RealKube, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a mount namespace with the files of a pod: needs root")
    directory = tmp_path_factory.mktemp("pod")
    engine.kubectl("apply", "-k", str(FILE.parent))
    pod = Pod(kube, engine, directory)
    try:
        eventually(pod.is_healthy, pod.log)
        eventually(lambda: pod.accepts(pod.gateway), pod.log)  # as its readiness probe
        ready = "jsonpath={.status.ready}"
        local = ("-n", "fleet-local", "get", "clusters.provisioning.cattle.io", "local", "-o", ready)
        eventually(lambda: engine.kubectl(*local, check=False).stdout == "true", pod.log)
        holder = ("-n", "herder-system", "get", "lease", "herder-controllers", "-o", "jsonpath={.spec.holderIdentity}")
        assert engine.kubectl(*holder).stdout
    finally:
        assert terminate(pod.process) == 0, pod.log()
    assert_no_secrets(in_logs(directory))
    manager_account.assert_nothing_denied(kube.kubeconfig)


# --- helm -----------------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("values", VALUES.values(), ids=list(VALUES))
def test_helm_renders_the_same(engine: Engine, values: Values, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    arguments = ("template", "herder", str(CHART), "--namespace=herder-system", "--values", str(file))
    rendered = yaml.safe_load_all(run(engine, "helm", *arguments, home=tmp_path).stdout)
    theirs = [each for each in rendered if each and not _is_test(each)]
    ours = Chart(CHART).objects(values)
    assert sorted(map(yaml.safe_dump, theirs)) == sorted(map(yaml.safe_dump, ours))
    run(engine, "helm", "lint", str(CHART), "--namespace=herder-system", "--values", str(file), home=tmp_path)


def _is_test(obj: Any) -> bool:
    return "helm.sh/hook" in (obj["metadata"].get("annotations") or {})


@pytest.mark.extended
def test_helm_refuses_missing_values(engine: Engine, tmp_path: Path) -> None:
    done = run(engine, "helm", "template", "herder", str(CHART), home=tmp_path, check=False)
    assert done.returncode != 0
    assert "hostname" in done.stderr
