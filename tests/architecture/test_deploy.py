"""The plain manifests and the chart: generated files are up to date, and both describe the same deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from herder.api.identity.authn.passwords import MAX_LENGTH, MIN_LENGTH
from herder.api.settings import Settings
from herder.app.rbac.roles import role_objects
from tests.support.manager.chart_stand_in import Chart, ChartError, Values, merged
from tools import deploy_manifests

REQUIRED = {"hostname": "herder.example.com", "image": {"repository": "herder.invalid/herder", "tag": "none"}}
KEPT = {"helm.sh/resource-policy": "keep"}
CHART = Chart(deploy_manifests.CHART)
SCHEMA = json.loads((deploy_manifests.CHART / "values.schema.json").read_text())
ROLES = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
SECRET_TLS = {"enabled": True, "tls": {"source": "secret"}}


def rendered(**values: Any) -> dict[tuple[str, str], Any]:
    return _by_name(CHART.objects({**REQUIRED, **values}))


def _by_name(objects: list[Any]) -> dict[tuple[str, str], Any]:
    named = {
        (each["kind"], each["metadata"].get("namespace", "") + "/" + each["metadata"]["name"]): each for each in objects
    }
    assert len(named) == len(objects)
    return named


def container(objects: dict[tuple[str, str], Any]) -> Any:
    (found,) = objects["Deployment", "herder-system/herder"]["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("path", deploy_manifests.rendered(), ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path: Path) -> None:
    assert path.read_text() == deploy_manifests.rendered()[path], "python -m tools.deploy_manifests"


def test_the_chart_has_the_rights_of_the_manager_and_no_others() -> None:
    roles = [each for each in CHART.objects(REQUIRED) if each["kind"] in ROLES]
    assert _by_name(roles) == _by_name(role_objects(deploy_manifests.PARTS))


def test_the_chart_and_the_manifests_describe_the_same_deployment() -> None:
    chart, plain = rendered(), _by_name(deploy_manifests.objects())
    assert chart["Namespace", "/cattle-system"]["metadata"].pop("annotations") == KEPT
    assert container(chart).pop("imagePullPolicy") == "IfNotPresent"
    assert chart["Service", "herder-system/herder"]["spec"].pop("type") == "ClusterIP"
    del plain["Namespace", "/herder-system"]  # helm install --create-namespace
    assert chart == plain


def test_the_optional_manifests_are_those_of_the_chart() -> None:
    chart = rendered(ingress={**SECRET_TLS, "ingressClassName": "nginx"}, serviceMonitor={"enabled": True})
    for name in ("ingress", "service-monitor"):
        plain = yaml.safe_load((deploy_manifests.FILE.parent / f"{name}.yaml").read_text())
        obj = chart[plain["kind"], "herder-system/herder"]
        assert (obj["spec"], obj["metadata"].get("annotations") or {}) == (
            plain["spec"],
            plain["metadata"].get("annotations") or {},
        )


def test_a_single_replica_can_be_evicted() -> None:
    """With `minAvailable: 1`, the drain of its Node would never end."""
    spec = rendered(replicas=1)["PodDisruptionBudget", "herder-system/herder"]["spec"]
    assert (spec["maxUnavailable"], spec.get("minAvailable")) == (1, None)


def test_the_rights_on_providers_belong_to_their_controller() -> None:
    """An empty list would conflict in server-side apply, and revoke these rights for a moment with helm."""
    (role,) = (each for each in role_objects(deploy_manifests.PARTS) if "aggregationRule" in each)
    assert "rules" not in role


def test_the_pod_runs_without_privileges() -> None:
    pod = rendered()["Deployment", "herder-system/herder"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container(rendered())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


# --- values ---------------------------------------------------------------------------------------------------------


def _is_valid(values: Values) -> bool:
    coalesced = {name: value for name, value in merged(CHART.defaults, values).items() if value is not None}
    return not list(jsonschema.Draft7Validator(SCHEMA).iter_errors(coalesced))


@pytest.mark.parametrize("missing", REQUIRED)
def test_values_without_a_default_are_required(missing: str) -> None:
    assert _is_valid(REQUIRED)
    assert not _is_valid({name: value for name, value in REQUIRED.items() if name != missing})


@pytest.mark.parametrize(
    "values",
    [
        {"hostname": "https://herder.example.com"},
        {"replicas": 0},
        {"ingress": {"tls": {"source": "letsEncrypt"}}},
        {"image": {"repository": "herder", "tag": ""}},
        {"hostName": "herder.example.com"},
        {"hostname": "10.0.0.5", "ingress": {"enabled": True}},
        {"bootstrapPassword": "p" * (MIN_LENGTH - 1)},
        {"bootstrapPassword": "p" * (MAX_LENGTH + 1)},
        {"systemDefaultRegistry": "https://registry.example.com"},
        {"ingress": None},
    ],
    ids=[
        "URL as host name",
        "no replicas",
        "unknown source",
        "image without tag",
        "misspelled value",
        "address as the host of an Ingress",
        "short password",
        "long password",
        "URL as registry",
        "removed default",
    ],
)
def test_wrong_values_are_refused(values: Values) -> None:
    assert not _is_valid({**REQUIRED, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"hostname": "10.0.0.5"},
        {"bootstrapPassword": "p" * MIN_LENGTH},
        {"systemDefaultRegistry": "registry.example.com:5000/mirror/rancher"},
        {"ingress": {"enabled": True}},
    ],
    ids=["address without an Ingress", "shortest password", "registry with port and path", "Ingress"],
)
def test_other_values_are_accepted(values: Values) -> None:
    assert _is_valid({**REQUIRED, **values})


def test_the_schema_knows_every_value() -> None:
    def unknown(values: Values, schema: Any, path: str = "") -> list[str]:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        known = schema.get("properties")
        if known is None:
            return []
        nested = [
            each
            for name, value in values.items()
            if isinstance(value, dict) and name in known
            for each in unknown(value, known[name], f"{path}{name}.")
        ]
        return [path + name for name in values if name not in known] + nested

    assert unknown(CHART.defaults, SCHEMA) == []


def test_another_namespace_is_refused() -> None:
    with pytest.raises(ChartError, match="namespace herder-system"):
        CHART.objects(REQUIRED, namespace="default")


def test_an_ingress_passes_tls_through_or_terminates_it() -> None:
    def ingress(**more: Any) -> Any:
        return rendered(ingress={"enabled": True, **more})["Ingress", "herder-system/herder"]

    assert ("Ingress", "herder-system/herder") not in rendered()
    assert ingress()["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/ssl-passthrough": "true"}
    assert "tls" not in ingress()["spec"]
    annotations = {"cert-manager.io/cluster-issuer": "issuer"}
    terminating = ingress(tls={"source": "secret"}, ingressClassName="nginx", extraAnnotations=annotations)
    assert terminating["spec"]["tls"] == [{"hosts": ["herder.example.com"], "secretName": "tls-herder-ingress"}]
    assert terminating["metadata"]["annotations"].items() >= annotations.items()


def test_agents_trust_the_certificate_of_the_ingress() -> None:
    """Without a private CA, they use the CAs of their system. The manager's own CA would not verify it."""
    public = container(rendered(ingress=SECRET_TLS))["args"]
    flags = dict(arg.removeprefix("--set=").split("=", 1) for arg in public if arg.startswith("--set="))
    assert flags == {"server-url": "https://$(HERDER_HOSTNAME)", "cacerts": "", "agent-tls-mode": "system-store"}
    expanded = flags | {"server-url": "https://herder.example.com"}
    settings = Settings(flags=expanded, detected={"cacerts": "the CA of the gateway"})
    assert (settings.get("cacerts"), settings.problems()) == ("", [])
    private = container(rendered(ingress=SECRET_TLS, privateCA=True))
    assert "--set=cacerts=" not in private["args"]
    source = {"secretKeyRef": {"name": "tls-ca", "key": "cacerts.pem"}}
    assert {"name": "CATTLE_CACERTS", "valueFrom": source} in private["env"]


def test_optional_values_reach_their_objects() -> None:
    password = "correct horse battery"
    objects = rendered(
        bootstrapPassword=password,
        systemDefaultRegistry="registry.example.com",
        serviceMonitor={"enabled": True},
        networkPolicy={"enabled": False},
        podDisruptionBudget={"enabled": False},
        extraArgs=["--capi-core=external"],
        imagePullSecrets=[{"name": "pull"}],
        tolerations=[{"operator": "Exists"}],
        nodeSelector={"kubernetes.io/os": "linux"},
        priorityClassName="system-cluster-critical",
        replicas=3,
        service={"type": "LoadBalancer", "annotations": {"example.com/a": "b"}},
    )
    assert objects["Secret", "cattle-system/bootstrap-secret"]["data"].keys() == {"bootstrapPassword"}
    assert ("ServiceMonitor", "herder-system/herder") in objects
    assert not {"NetworkPolicy", "PodDisruptionBudget"} & {kind for kind, _ in objects}
    args = container(objects)["args"]
    assert args[-2:] == ["--set=system-default-registry=registry.example.com", "--capi-core=external"]
    deployment = objects["Deployment", "herder-system/herder"]["spec"]
    assert deployment["replicas"] == 3
    pod = deployment["template"]["spec"]
    assert (pod["imagePullSecrets"], pod["tolerations"]) == ([{"name": "pull"}], [{"operator": "Exists"}])
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"kubernetes.io/os": "linux"}, "system-cluster-critical")
    assert objects["Service", "herder-system/herder"]["spec"]["type"] == "LoadBalancer"


def test_the_notes_name_the_image_and_the_host() -> None:
    notes = CHART.text(deploy_manifests.CHART / "templates" / "NOTES.txt", REQUIRED)
    assert "herder.invalid/herder:none" in notes
    assert "No image of the manager is published" in notes
    assert "https://herder.example.com" in notes
