"""The real helm checks and renders our chart; a kube-apiserver validates what it renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.app.rbac.roles import role_objects
from tests.interop.deployment.charts import OF_SECRET, REQUIRED, SERVICE_MONITOR, VALUES, Helm, is_test, name_of
from tests.support.engines import Engine
from tests.support.manager.chart_stand_in import Chart, Values, merged
from tools.deploy_manifests import CHART, FILE, PARTS

pytestmark = pytest.mark.extended

ALL = pytest.mark.parametrize("values", VALUES.values(), ids=list(VALUES))
ROLES = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


@pytest.fixture
def helm(engine: Engine, tmp_path: Path) -> Helm:
    return Helm(engine, tmp_path)


@ALL
def test_lint(helm: Helm, values: Values) -> None:
    assert "0 chart(s) failed" in helm.on_chart("lint", values, "--strict")


@ALL
def test_the_objects_are_valid(helm: Helm, engine: Engine, values: Values) -> None:
    for namespace in ("herder-system", "cattle-system"):
        engine.kubectl("create", "namespace", namespace, check=False)
    engine.kubectl("apply", "--server-side", "-f", "-", stdin=SERVICE_MONITOR)
    engine.kubectl("wait", "crd/servicemonitors.monitoring.coreos.com", "--for=condition=Established")
    rendered = yaml.safe_dump_all(helm.rendered(values))
    engine.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=rendered)


@ALL
def test_the_stand_in_renders_the_same(helm: Helm, values: Values) -> None:
    """Most tests of the chart run without helm, with a stand-in."""
    theirs = [each for each in helm.rendered(values) if not is_test(each)]
    ours = Chart(CHART).objects(values)
    assert sorted(map(yaml.safe_dump, theirs)) == sorted(map(yaml.safe_dump, ours))


def test_it_renders_the_plain_manifests(helm: Helm) -> None:
    """Except for what only one of them needs, and defaults of the API server."""
    chart = {name_of(each): each for each in helm.rendered(REQUIRED) if not is_test(each)}
    plain = {name_of(each): each for each in yaml.safe_load_all(FILE.read_text())}
    namespace = chart["Namespace", "", "cattle-system"]["metadata"]
    assert namespace.pop("annotations") == {"helm.sh/resource-policy": "keep"}
    (container,) = chart["Deployment", "herder-system", "herder"]["spec"]["template"]["spec"]["containers"]
    assert container.pop("imagePullPolicy") == "IfNotPresent"
    assert chart["Service", "herder-system", "herder"]["spec"].pop("type") == "ClusterIP"
    del plain["Namespace", "", "herder-system"]  # helm install --create-namespace
    assert chart == plain


def test_it_renders_the_optional_manifests(helm: Helm) -> None:
    chart = {each["kind"]: each for each in helm.rendered(merged(REQUIRED | OF_SECRET, VALUES["monitored"]))}
    for name in ("ingress", "service-monitor"):
        plain = yaml.safe_load((FILE.parent / f"{name}.yaml").read_text())
        rendered = chart[plain["kind"]]
        assert rendered["spec"] == plain["spec"]
        assert (rendered["metadata"].get("annotations") or {}) == (plain["metadata"].get("annotations") or {})


@ALL
def test_it_has_the_rights_of_the_manager_and_no_others(helm: Helm, values: Values) -> None:
    roles = {name_of(each): each for each in helm.rendered(values) if each["kind"] in ROLES}
    assert roles == {name_of(each): each for each in role_objects(PARTS)}


# --- values ---------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Values, str]] = {
    "no host name": ({"hostname": ""}, "at '/hostname': minLength: got 0, want 1"),
    "URL as host name": ({"hostname": "https://herder.example.com"}, "at '/hostname': 'https://herder.example.com'"),
    "address of an ingress": ({"hostname": "10.0.0.5", "ingress": {"enabled": True}}, "at '/hostname': '10.0.0.5'"),
    "no image": ({"image": {"repository": "", "tag": "v1"}}, "at '/image/repository': minLength"),
    "neither tag nor digest": ({"image": {"tag": ""}}, "at '/image/tag': minLength"),
    "number as tag": ({"image": {"tag": 1.1}}, "at '/image/tag': got number, want string"),
    "no replicas": ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    "text as replicas": ({"replicas": "many"}, "at '/replicas': got string, want integer"),
    "short password": ({"bootstrapPassword": "short"}, "at '/bootstrapPassword': minLength: got 5, want 12"),
    "number as password": ({"bootstrapPassword": 123456789012}, "at '/bootstrapPassword': got number, want string"),
    "URL as registry": ({"systemDefaultRegistry": "https://r.example.com"}, "at '/systemDefaultRegistry'"),
    "source of Rancher": ({"ingress": {"tls": {"source": "letsEncrypt"}}}, "must be one of 'herder', 'secret'"),
    "text as boolean": ({"privateCA": "yes"}, "at '/privateCA': got string, want boolean"),
    "misspelled": ({"hostName": "herder.example.com"}, "additional properties 'hostName' not allowed"),
}


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_values_are_refused_with_their_name(helm: Helm, values: Values, message: str) -> None:
    for command in ("template", "install"):
        refused = helm.on_chart(command, merged(REQUIRED, values), check=False)
        assert message in refused
        assert "short" not in refused


def test_missing_values_are_refused(helm: Helm) -> None:
    refused = helm.on_chart("template", {}, check=False)
    assert "at '/hostname'" in refused
    assert "at '/image/repository'" in refused


def test_another_namespace_is_refused(helm: Helm, engine: Engine) -> None:
    refused = helm("install", "herder", str(CHART), *_flags(REQUIRED), namespace="default", check=False)
    assert "install the chart in the namespace herder-system" in refused.stderr
    assert engine.kubectl("-n", "default", "get", "secrets", "-o", "name").stdout == "", "no release is recorded"


def test_an_old_kubernetes_is_refused(helm: Helm) -> None:
    refused = helm.on_chart("template", REQUIRED, "--kube-version=1.29.9", check=False)
    assert "chart requires kubeVersion" in refused
    assert helm.rendered(REQUIRED, "--kube-version=1.30.0")


def _flags(values: Any) -> list[str]:
    image = values["image"]
    pairs = {"hostname": values["hostname"], "image.repository": image["repository"], "image.tag": image["tag"]}
    return [f"--set={name}={value}" for name, value in pairs.items()]
