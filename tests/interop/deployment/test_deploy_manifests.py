"""The plain manifests and the chart's objects on a kube-apiserver, and the manager as they start it.

There is no kubelet and no image: the command of the Deployment runs on this host, in a mount namespace with the files
of a pod. It runs as the service account of the manifests, with a token.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.interop.deployment.charts import PROVIDER, VALUES
from tests.interop.deployment.manager_pod import eventually, manager_pod
from tests.support.engines import Engine
from tests.support.kube import RealKube
from tests.support.manager.chart_stand_in import Chart
from tools.deploy_manifests import CHART, FILE


@pytest.mark.parametrize("name", ["required", "all", "no policies"])
def test_the_objects_of_the_chart_are_valid(engine: Engine, name: str) -> None:
    for namespace in ("herder-system", "cattle-system"):
        engine.kubectl("create", "namespace", namespace, check=False)
    known = [each for each in Chart(CHART).objects(VALUES[name]) if each["kind"] != "ServiceMonitor"]
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
    assert container["image"] == "registry.example.com/mirror/herder/herder:vVERSION"
    assert {"name": "HERDER_HOSTNAME", "value": "manager.example.com"} in container["env"]


def test_the_manifests_can_be_applied_again(engine: Engine) -> None:
    """A controller of the cluster adds the rights of providers to the role that aggregates them."""
    engine.kubectl("apply", "--server-side", "-k", str(FILE.parent))
    engine.kubectl("apply", "-f", "-", stdin=PROVIDER)
    role = ("get", "clusterrole", "herder-providers", "-o", "jsonpath={.metadata.resourceVersion} {.rules}")
    eventually(lambda: "pasture.example.com" in engine.kubectl(*role).stdout, lambda: engine.kubectl(*role).stdout)
    aggregated = engine.kubectl(*role).stdout
    engine.kubectl("apply", "--server-side", "-k", str(FILE.parent))
    assert engine.kubectl(*role).stdout == aggregated


def test_the_manager_runs_as_the_manifests_start_it(kube: RealKube, engine: Engine, tmp_path: Path) -> None:
    engine.kubectl("apply", "-k", str(FILE.parent))
    with manager_pod(kube, engine, tmp_path) as pod:
        eventually(pod.is_leader, pod.log)
        ready = "jsonpath={.status.ready}"
        local = ("-n", "fleet-local", "get", "clusters.provisioning.cattle.io", "local", "-o", ready)
        eventually(lambda: engine.kubectl(*local, check=False).stdout == "true", pod.log)
