"""Discovery and OpenAPI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.support.api import Api

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def by_name(resources: list[Any]) -> dict[str, Any]:
    return {resource["name"]: resource for resource in resources}


async def test_versions_of_the_core_group(api: Api) -> None:
    found = await api.read("/api")
    assert found["kind"] == "APIVersions"
    assert found["versions"] == ["v1"]


async def test_groups_and_their_preferred_versions(api: Api) -> None:
    found = await api.read("/apis")
    assert (found["kind"], found["apiVersion"]) == ("APIGroupList", "v1")
    groups = {group["name"]: group["preferredVersion"]["groupVersion"] for group in found["groups"]}
    expected = {
        "admissionregistration.k8s.io": "admissionregistration.k8s.io/v1",
        "apiextensions.k8s.io": "apiextensions.k8s.io/v1",
        "apiregistration.k8s.io": "apiregistration.k8s.io/v1",
        "apps": "apps/v1",
        "authentication.k8s.io": "authentication.k8s.io/v1",
        "authorization.k8s.io": "authorization.k8s.io/v1",
        "batch": "batch/v1",
        "coordination.k8s.io": "coordination.k8s.io/v1",
        "discovery.k8s.io": "discovery.k8s.io/v1",
        "events.k8s.io": "events.k8s.io/v1",
        "networking.k8s.io": "networking.k8s.io/v1",
        "policy": "policy/v1",
        "rbac.authorization.k8s.io": "rbac.authorization.k8s.io/v1",
        "scheduling.k8s.io": "scheduling.k8s.io/v1",
        "storage.k8s.io": "storage.k8s.io/v1",
    }
    assert {name: groups.get(name) for name in expected} == expected


async def test_one_group(api: Api) -> None:
    found = await api.read("/apis/apps")
    assert (found["kind"], found["name"]) == ("APIGroup", "apps")
    assert found["versions"] == [{"groupVersion": "apps/v1", "version": "v1"}]


async def test_resources_of_the_core_group(api: Api) -> None:
    found = await api.read("/api/v1")
    assert (found["kind"], found["groupVersion"]) == ("APIResourceList", "v1")
    resources = by_name(found["resources"])
    pods = resources["pods"]
    assert pods["kind"] == "Pod"
    assert pods["namespaced"] is True
    assert pods["singularName"] == "pod"
    assert pods["shortNames"] == ["po"]
    assert pods["categories"] == ["all"]
    assert pods["verbs"] == ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    assert resources["namespaces"]["namespaced"] is False
    assert "deletecollection" not in resources["namespaces"]["verbs"]
    assert resources["pods/status"]["verbs"] == ["get", "patch", "update"]
    assert resources["serviceaccounts/token"]["kind"] == "TokenRequest"
    assert resources["serviceaccounts/token"]["group"] == "authentication.k8s.io"
    assert resources["pods/eviction"]["verbs"] == ["create"]


async def test_core_resources_are_discovered(api: Api) -> None:
    names = set(by_name((await api.read("/api/v1"))["resources"]))
    assert names >= {
        "bindings",
        "configmaps",
        "endpoints",
        "events",
        "limitranges",
        "namespaces",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "podtemplates",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "serviceaccounts",
        "services",
    }


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("apps/v1", {"deployments", "daemonsets", "statefulsets", "replicasets", "controllerrevisions"}),
        ("batch/v1", {"jobs", "cronjobs", "jobs/status"}),
        ("rbac.authorization.k8s.io/v1", {"roles", "rolebindings", "clusterroles", "clusterrolebindings"}),
        ("coordination.k8s.io/v1", {"leases"}),
        ("policy/v1", {"poddisruptionbudgets"}),
        ("events.k8s.io/v1", {"events"}),
        (
            "authorization.k8s.io/v1",
            {
                "subjectaccessreviews",
                "selfsubjectaccessreviews",
                "selfsubjectrulesreviews",
                "localsubjectaccessreviews",
            },
        ),
        ("authentication.k8s.io/v1", {"tokenreviews", "selfsubjectreviews"}),
        (
            "admissionregistration.k8s.io/v1",
            {"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "validatingadmissionpolicies"},
        ),
        ("apiextensions.k8s.io/v1", {"customresourcedefinitions", "customresourcedefinitions/status"}),
        ("apiregistration.k8s.io/v1", {"apiservices"}),
        ("discovery.k8s.io/v1", {"endpointslices"}),
        ("networking.k8s.io/v1", {"networkpolicies", "ingresses", "ingressclasses"}),
        ("storage.k8s.io/v1", {"storageclasses", "volumeattachments", "csidrivers", "csinodes"}),
        ("scheduling.k8s.io/v1", {"priorityclasses"}),
    ],
)
async def test_resources_of_groups(api: Api, group: str, names: set[str]) -> None:
    found = await api.read(f"/apis/{group}")
    assert found["groupVersion"] == group
    assert set(by_name(found["resources"])) >= names


async def test_custom_resources_are_discovered(api: Api, widgets: Widgets) -> None:
    resources = by_name((await api.read(f"/apis/{widgets.group}/v1"))["resources"])
    assert set(resources) == {"widgets", "widgets/status", "widgets/scale"}
    found = resources["widgets"]
    assert (found["kind"], found["singularName"], found["namespaced"]) == ("Widget", "widget", True)
    assert found["categories"] == ["all"]
    assert found["verbs"] == ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
    assert resources["widgets/scale"]["kind"] == "Scale"
    assert resources["widgets/scale"]["group"] == "autoscaling"
    assert resources["widgets/status"]["verbs"] == ["get", "patch", "update"]
    group = await api.read(f"/apis/{widgets.group}")
    assert group["preferredVersion"] == {"groupVersion": f"{widgets.group}/v1", "version": "v1"}


async def test_aggregated_discovery_of_all_groups(api: Api, widgets: Widgets) -> None:
    answer = await api.until("/apis", lambda answer: widgets.group in answer.text)
    answer = await api.get("/apis", accept=AGGREGATED)
    found = answer.expect(200)
    assert answer.headers["content-type"] == AGGREGATED
    assert (found["kind"], found["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    groups = {group["metadata"]["name"]: group["versions"] for group in found["items"]}
    apps = {resource["resource"]: resource for resource in groups["apps"][0]["resources"]}
    assert apps["deployments"]["responseKind"] == {"group": "", "version": "", "kind": "Deployment"}
    assert apps["deployments"]["scope"] == "Namespaced"
    assert apps["deployments"]["shortNames"] == ["deploy"]
    assert {sub["subresource"] for sub in apps["deployments"]["subresources"]} == {"scale", "status"}
    custom = groups[widgets.group][0]
    assert custom["version"] == "v1"
    assert custom["resources"][0]["resource"] == "widgets"


async def test_aggregated_discovery_of_the_core_group(api: Api) -> None:
    found = (await api.get("/api", accept=AGGREGATED)).expect(200)
    (group,) = found["items"]
    resources = {resource["resource"]: resource for resource in group["versions"][0]["resources"]}
    assert resources["pods"]["singularResource"] == "pod"
    assert resources["namespaces"]["scope"] == "Cluster"


async def test_aggregated_discovery_honors_etags(api: Api) -> None:
    first = await api.get("/api", accept=AGGREGATED)
    again = await api.get("/api", accept=AGGREGATED, if_none_match=first.headers["etag"])
    assert again.status == 304
    assert again.content == b""


async def test_the_version_of_the_server(api: Api) -> None:
    found = await api.read("/version")
    assert (found["major"], found["minor"]) == ("1", "36")
    assert found["gitVersion"].startswith("v1.36.")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.text) == (200, "ok")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_health_in_detail(api: Api) -> None:
    answer = await api.get("/readyz?verbose")
    assert answer.status == 200
    assert answer.text.startswith("[+]ping ok\n")
    assert answer.text.endswith("readyz check passed\n")


async def test_the_root_lists_paths(api: Api) -> None:
    paths = (await api.read("/"))["paths"]
    assert {"/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/openapi/v2", "/version"} <= set(
        paths
    )


# --- OpenAPI --------------------------------------------------------------------------------------------------------


async def test_openapi_v2(api: Api) -> None:
    found = await api.read("/openapi/v2")
    assert found["swagger"] == "2.0"
    pod = found["definitions"]["io.k8s.api.core.v1.Pod"]
    assert pod["x-kubernetes-group-version-kind"] == [{"group": "", "kind": "Pod", "version": "v1"}]
    assert pod["properties"]["spec"]["$ref"] == "#/definitions/io.k8s.api.core.v1.PodSpec"
    spec = found["definitions"]["io.k8s.api.core.v1.PodSpec"]
    assert spec["properties"]["containers"]["x-kubernetes-patch-merge-key"] == "name"
    assert "containers" in spec["required"]
    assert "/api/v1/namespaces/{namespace}/pods" in found["paths"]


async def test_openapi_v3_has_a_document_for_each_group(api: Api, widgets: Widgets) -> None:
    def served(answer: Any) -> bool:
        return f"apis/{widgets.group}/v1" in answer.text

    paths = (await api.until("/openapi/v3", served)).body["paths"]
    assert {"api/v1", "apis/apps/v1", "apis/rbac.authorization.k8s.io/v1"} <= set(paths)
    url = paths["api/v1"]["serverRelativeURL"]
    assert url.startswith("/openapi/v3/api/v1?hash=")
    document = await api.read(url)
    assert document["openapi"].startswith("3.0")
    schemas = document["components"]["schemas"]
    assert "io.k8s.api.core.v1.Pod" in schemas
    post = document["paths"]["/api/v1/namespaces/{namespace}/pods"]["post"]
    assert post["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert {p["name"] for p in post["parameters"]} >= {"dryRun", "fieldManager", "fieldValidation"}


async def test_openapi_v3_describes_custom_resources(api: Api, widgets: Widgets) -> None:
    url = f"/openapi/v3/apis/{widgets.group}/v1"
    document = (await api.until(url, lambda answer: answer.status == 200)).body
    (schema,) = [found for name, found in document["components"]["schemas"].items() if name.endswith(".v1.Widget")]
    assert schema["properties"]["spec"]["properties"]["color"] == {"type": "string", "enum": ["red", "green", "blue"]}
    assert schema["properties"]["spec"]["properties"]["parts"]["x-kubernetes-list-map-keys"] == ["name"]
    assert schema["x-kubernetes-group-version-kind"] == [{"group": widgets.group, "kind": "Widget", "version": "v1"}]
    assert f"/apis/{widgets.group}/v1/namespaces/{{namespace}}/widgets/{{name}}/scale" in document["paths"]


async def test_openapi_v3_is_cacheable_by_hash(api: Api) -> None:
    paths = (await api.read("/openapi/v3"))["paths"]
    answer = await api.get(paths["apis/apps/v1"]["serverRelativeURL"])
    assert answer.status == 200
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["etag"]


async def test_openapi_v2_honors_etags(api: Api) -> None:
    first = await api.get("/openapi/v2")
    again = await api.get("/openapi/v2", if_none_match=first.headers["etag"])
    assert (again.status, again.content) == (304, b"")


async def test_openapi_v2_as_protobuf_for_kubectl(api: Api) -> None:
    answer = await api.get("/openapi/v2", accept="application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
    assert answer.status == 200
    assert "protobuf" in answer.headers["content-type"]
    assert answer.content[:5] == b"\n\x032.0"
