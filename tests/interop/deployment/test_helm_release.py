"""The life cycle of a release of our chart with the real helm on a kube-apiserver, and the manager that it describes.

There is no kubelet: pods are validated but not started. The manager runs on this host, as the Deployment of the release
starts it, with the rights of its service account.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.deployment.charts import PASSWORD, PROVIDER, REQUIRED, SERVICE_MONITOR, Helm, is_test
from tests.interop.deployment.manager_pod import eventually, manager_pod
from tests.support.engines import Engine
from tests.support.kube import RealKube
from tests.support.peers import peer
from tests.support.processes import terminate
from tools.deploy_manifests import CHART, FILE, USER_ID

pytestmark = pytest.mark.extended

DOCS = FILE.parents[1] / "docs" / "on-a-cluster.md"
CLUSTER = {
    "apiVersion": "provisioning.cattle.io/v1",
    "kind": "Cluster",
    "metadata": {"name": "barn", "namespace": "fleet-default"},
    "spec": {},
}
ON_ITS_OWN = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
"""What the cluster creates in each namespace."""


@pytest.fixture
def helm(engine: Engine, tmp_path: Path) -> Iterator[Helm]:
    """No release exists before and after."""
    helm = Helm(engine, tmp_path)
    yield helm
    helm("uninstall", "herder", "--ignore-not-found")


def objects(engine: Engine) -> set[tuple[str, str, str, str]]:
    """All objects but Events: the group, kind, namespace and name."""
    listed = engine.kubectl("api-resources", "--verbs=list", "-o=name").stdout.split()
    kinds = ",".join(kind for kind in listed if not kind.startswith("events"))
    found = json.loads(engine.kubectl("get", kinds, "-A", "-o=json", "--ignore-not-found").stdout or '{"items": []}')
    return {
        (each["apiVersion"].rpartition("/")[0], each["kind"], meta.get("namespace", ""), meta["name"])
        for each in found["items"]
        if (meta := each["metadata"]) and (each["kind"], meta["name"]) not in ON_ITS_OWN
    }


def password(engine: Engine) -> str:
    found = engine.kubectl("-n=cattle-system", "get", "secret", "bootstrap-secret", "-o=jsonpath={.data.*}").stdout
    return base64.b64decode(found).decode()


def deployment(engine: Engine) -> Any:
    return json.loads(engine.kubectl("-n=herder-system", "get", "deployment", "herder", "-o=json").stdout)["spec"]


def arguments(engine: Engine) -> list[str]:
    (container,) = deployment(engine)["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


# --- the release ----------------------------------------------------------------------------------------------------


def test_install_upgrade_rollback_uninstall(helm: Helm, engine: Engine) -> None:
    before = objects(engine)
    notes = helm.on_chart("install", REQUIRED | {"bootstrapPassword": PASSWORD}, "--create-namespace")
    assert "The manager is at https://herder.example.com" in notes
    assert password(engine) == PASSWORD
    assert deployment(engine)["replicas"] == 2

    flag = "--set=system-default-registry=registry.example.com"
    helm.on_chart("upgrade", REQUIRED | {"replicas": 3, "systemDefaultRegistry": "registry.example.com"})
    assert deployment(engine)["replicas"] == 3
    assert flag in arguments(engine)
    assert password(engine) == PASSWORD, "the value is missing, but the Secret stays"
    helm.on_chart("upgrade", REQUIRED | {"bootstrapPassword": "another correct horse"})
    assert password(engine) == PASSWORD, "that of the first installation"

    helm("rollback", "herder", "2")
    assert deployment(engine)["replicas"] == 3
    assert flag in arguments(engine)
    helm("rollback", "herder", "1")
    assert deployment(engine)["replicas"] == 2
    assert flag not in arguments(engine)
    assert password(engine) == PASSWORD
    history = json.loads(helm("history", "herder", "-o=json").stdout)
    assert [each["status"] for each in history] == ["superseded"] * 4 + ["deployed"]
    manifests = [helm("get", "manifest", "herder", f"--revision={each['revision']}").stdout for each in history]
    named = {frozenset(re.findall(r"^kind: (\w+)\nmetadata:\n  name: (\S+)", each, re.MULTILINE)) for each in manifests}
    assert len(named) == 1, "every revision has the same objects, so that each can be rolled back to"

    helm("uninstall", "herder")
    assert {each[1:] for each in objects(engine) - before} <= {
        ("Namespace", "", "cattle-system"),
        ("Namespace", "", "herder-system"),
    }
    helm.on_chart("install", REQUIRED)


def test_the_documented_commands(helm: Helm, engine: Engine) -> None:
    """But for `helm test`, whose pod no node runs."""
    section = DOCS.read_text().partition("## Helm chart\n")[2].partition("\n## ")[0]
    install, upgrade, uninstall = re.findall(r"```sh\n(helm .*?)```", section, re.DOTALL)
    (helm.home / "charts").symlink_to(CHART.parent)
    (helm.home / "values.yaml").write_text(yaml.safe_dump(REQUIRED | {"replicas": 3}))
    in_a_shell(install, engine, helm.home)
    in_a_shell("\n".join(line for line in upgrade.splitlines() if "helm test" not in line), engine, helm.home)
    history = json.loads(helm("history", "herder", "-o=json").stdout)
    assert [each["description"] for each in history] == ["Install complete", "Upgrade complete", "Rollback to 1"]
    in_a_shell(uninstall, engine, helm.home)
    assert json.loads(helm("list", "--all", "-o=json").stdout) == []


def in_a_shell(commands: str, engine: Engine, directory: Path) -> None:
    path = ":".join([*(str(peer(name).parent) for name in ("helm", "kubectl")), os.environ["PATH"]])
    environment = os.environ | {"KUBECONFIG": str(engine.kubeconfig), "PATH": path, "HOME": str(directory)}
    subprocess.run(["bash", "-ceu", commands], cwd=directory, env=environment, check=True, timeout=120)


def test_a_password_that_the_manager_generated_stays(helm: Helm, engine: Engine) -> None:
    helm.on_chart("install", REQUIRED, "--create-namespace")
    generated = ("secret", "generic", "bootstrap-secret", "--from-literal=bootstrapPassword=generated password")
    engine.kubectl("-n=cattle-system", "create", *generated)
    helm.on_chart("upgrade", REQUIRED | {"bootstrapPassword": PASSWORD})
    assert password(engine) == "generated password"
    helm("uninstall", "herder")
    helm.on_chart("install", REQUIRED | {"bootstrapPassword": PASSWORD})
    assert password(engine) == "generated password"
    engine.kubectl("-n=cattle-system", "delete", "secret", "bootstrap-secret")


def test_upgrades_keep_the_rights_on_providers(helm: Helm, engine: Engine) -> None:
    """A controller of the cluster adds them to the role of the chart."""
    helm.on_chart("install", REQUIRED, "--create-namespace")
    engine.kubectl("apply", "-f", "-", stdin=PROVIDER)
    role = ("get", "clusterrole", "herder-providers", "-o=jsonpath={.metadata.resourceVersion} {.rules}")
    eventually(lambda: "pasture.example.com" in engine.kubectl(*role).stdout, lambda: engine.kubectl(*role).stdout)
    aggregated = engine.kubectl(*role).stdout
    helm.on_chart("upgrade", REQUIRED | {"replicas": 3})
    assert engine.kubectl(*role).stdout == aggregated


def test_the_chart_takes_over_plain_manifests(helm: Helm, engine: Engine) -> None:
    engine.kubectl("apply", "--server-side", "-k", str(FILE.parent))
    refused = helm.on_chart("install", REQUIRED, check=False)
    assert "cannot be imported into the current release" in refused
    helm.on_chart("install", REQUIRED | {"replicas": 3}, "--take-ownership")
    assert deployment(engine)["replicas"] == 3


def test_a_service_monitor_needs_the_kind_of_the_prometheus_operator(helm: Helm, engine: Engine) -> None:
    monitored = REQUIRED | {"serviceMonitor": {"enabled": True}}
    refused = helm.on_chart("install", monitored, "--create-namespace", check=False)
    assert 'no matches for kind "ServiceMonitor"' in refused
    assert "ensure CRDs are installed first" in refused
    assert engine.kubectl("-n=herder-system", "get", "deployments", "-o=name").stdout == "", "nothing was created"
    engine.kubectl("apply", "-f", "-", stdin=SERVICE_MONITOR)
    engine.kubectl("wait", "crd/servicemonitors.monitoring.coreos.com", "--for=condition=Established")
    helm.on_chart("install", monitored)
    assert engine.kubectl("-n=herder-system", "get", "servicemonitors", "-o=name").stdout.strip()


# --- its pods -------------------------------------------------------------------------------------------------------


def test_the_pods_meet_the_restricted_pod_security_standard(helm: Helm, engine: Engine) -> None:
    """The admission of the API server checks it."""
    helm.on_chart("install", REQUIRED, "--create-namespace")
    level = "pod-security.kubernetes.io/enforce=restricted"
    engine.kubectl("label", "namespace", "herder-system", level)
    template = deployment(engine)["template"]
    (test,) = (each for each in helm.rendered(REQUIRED) if is_test(each))
    for name, spec in {"manager": template["spec"], "test": test["spec"]}.items():
        assert {spec["securityContext"][of] for of in ("runAsUser", "runAsGroup")} == {USER_ID}
        meta = {"name": name, "namespace": "herder-system"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        engine.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
        del pod["spec"]["securityContext"]
        refused = engine.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)
        assert 'violates PodSecurity "restricted' in refused.stderr, "the admission is enabled"
    engine.kubectl("label", "namespace", "herder-system", "pod-security.kubernetes.io/enforce-")


@pytest.mark.parametrize(("phase", "status"), [("Succeeded", 0), ("Failed", 1)])
def test_the_result_of_helm_test_is_that_of_its_pod(helm: Helm, engine: Engine, phase: str, status: int) -> None:
    """No kubelet runs the pod, so the test reports its result."""
    helm.on_chart("install", REQUIRED, "--create-namespace")
    done: list[subprocess.CompletedProcess[str]] = []
    tested = threading.Thread(target=lambda: done.append(helm("test", "herder", "--timeout=60s", check=False)))
    tested.start()
    pod = ("-n=herder-system", "pod", "herder-test-gateway")
    eventually(lambda: engine.kubectl(*pod[:1], "get", *pod[1:], check=False).returncode == 0, lambda: str(done))
    patch = json.dumps({"status": {"phase": phase}})
    engine.kubectl(*pod[:1], "patch", *pod[1:], "--subresource=status", "--type=merge", f"-p={patch}")
    tested.join()
    assert done[0].returncode == status, done[0].stderr
    engine.kubectl(*pod[:1], "delete", *pod[1:], "--ignore-not-found", "--force")


def test_the_manager_runs_as_the_chart_starts_it(
    kube: RealKube, helm: Helm, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With two replicas. Then it is uninstalled, with the commands of the page that describes it."""
    before = objects(engine)
    helm.on_chart("install", REQUIRED | {"bootstrapPassword": PASSWORD}, "--create-namespace")
    with manager_pod(kube, engine, tmp_path_factory.mktemp("pod")) as pod:
        eventually(pod.is_leader, pod.log)
        eventually(lambda: engine.kubectl("get", "users.management.cattle.io", check=False).stdout, pod.log)
        created = ("create", "-f", "-")
        eventually(lambda: not engine.kubectl(*created, stdin=json.dumps(CLUSTER), check=False).returncode, pod.log)
        cluster = ("-n=fleet-default", "get", "clusters.provisioning.cattle.io", "barn")
        eventually(lambda: engine.kubectl(*cluster, "-o=jsonpath={.status.clusterName}").stdout, pod.log)
        assert _is_answered(helm, pod.gateway)
        engine.kubectl("-n=fleet-default", "delete", "clusters.provisioning.cattle.io", "barn", "--timeout=60s")
        with manager_pod(kube, engine, tmp_path_factory.mktemp("pod"), beside=pod) as other:
            assert pod.is_leader()
            assert terminate(pod.process) == 0, pod.log()
            eventually(other.is_leader, other.log)
    helm("uninstall", "herder")
    custom = {name for _, kind, _, name in objects(engine) - before if kind == "CustomResourceDefinition"}
    groups = {name.partition(".")[2] for name in custom}
    left = {each for each in objects(engine) - before if each[0] not in groups | {"apiregistration.k8s.io"}}
    section = DOCS.read_text().partition("### Uninstall\n")[2].partition("\n## ")[0]
    assert {kind for _, kind, _, _ in left} == set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    assert ("", "Secret", "cattle-system", "bootstrap-secret") not in left, "the chart created it"

    (commands,) = re.findall(r"```sh\n(kubectl delete .*?)```", section, re.DOTALL)
    in_a_shell(commands, engine, helm.home)
    groups_left = {group for group, *_ in objects(engine) - before}
    assert "admissionregistration.k8s.io" not in groups_left


def _is_answered(helm: Helm, port: int) -> bool:
    """Whether the command of the pod of `helm test` succeeds at this gateway."""
    (test,) = (each for each in helm.rendered(REQUIRED) if is_test(each))
    (container,) = test["spec"]["containers"]
    *command, script = container["command"]
    assert '"herder"' in script
    local = script.replace('"herder"', f'"localhost", {port}')
    return subprocess.run([*command, local], check=False, timeout=60).returncode == 0
