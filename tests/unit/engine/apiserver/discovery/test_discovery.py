"""Discovery documents."""

from __future__ import annotations

import msgspec
import pytest

from herder.engine.apiserver.builtin import resources
from herder.engine.apiserver.crds import resource_from_crd
from herder.engine.apiserver.endpoints.discovery import Discovery, storage_version_hash, version_priority
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.errors import MethodNotAllowed, NotAcceptable, NotFound
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Request, Response
from tests.unit.engine.apiserver.crds.samples import definition

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.fixture
def registry() -> Registry:
    return Registry([*resources(), resource_from_crd(definition())])


@pytest.fixture
def discovery(registry: Registry) -> Discovery:
    return Discovery(registry, server_address="127.0.0.1:6443")


def request(discovery: Discovery, path: str, accept: str = "", method: str = "GET") -> Response:
    found = discovery.handle(Request(method, path, headers={"accept": accept} if accept else {}))
    assert found is not None
    return found


def document(discovery: Discovery, path: str, accept: str = "") -> Object:
    decoded: Object = msgspec.json.decode(request(discovery, path, accept).content())
    return decoded


def test_core_versions_include_the_server_address(discovery: Discovery) -> None:
    assert document(discovery, "/api") == {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}],
    }


def test_groups_are_listed_in_the_real_servers_order_with_custom_ones_last(discovery: Discovery) -> None:
    names = [group["name"] for group in document(discovery, "/apis")["groups"]]
    assert names[:3] == ["apiregistration.k8s.io", "apps", "events.k8s.io"]
    assert names[-1] == "example.com"


def test_the_preferred_version_is_the_most_mature_one(discovery: Discovery) -> None:
    group = document(discovery, "/apis/example.com")
    assert [version["version"] for version in group["versions"]] == ["v1", "v1alpha1"]
    assert group["preferredVersion"] == {"groupVersion": "example.com/v1", "version": "v1"}


def test_versions_are_ordered_as_kubernetes_prefers_them() -> None:
    versions = ["v1alpha1", "foo1", "v10", "v1", "v2beta1", "v2", "v1beta1", "foo10", "v11alpha2"]
    assert sorted(versions, key=version_priority) == [
        "v10", "v2", "v1", "v2beta1", "v1beta1", "v11alpha2", "v1alpha1", "foo1", "foo10",
    ]  # fmt: skip


def test_resources_of_a_built_in_group_are_sorted_with_their_subresources(discovery: Discovery) -> None:
    listed = document(discovery, "/apis/apps/v1")["resources"]
    assert [entry["name"] for entry in listed[:5]] == [
        "controllerrevisions", "daemonsets", "daemonsets/status", "deployments", "deployments/scale",
    ]  # fmt: skip
    assert listed[3] == {
        "name": "deployments",
        "singularName": "deployment",
        "namespaced": True,
        "kind": "Deployment",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "shortNames": ["deploy"],
        "categories": ["all"],
        "storageVersionHash": "8aSe+NMegvE=",
    }
    assert listed[4] == {
        "name": "deployments/scale",
        "singularName": "",
        "namespaced": True,
        "group": "autoscaling",
        "version": "v1",
        "kind": "Scale",
        "verbs": ["get", "patch", "update"],
    }


def test_a_custom_resource_is_described_as_by_kube_apiserver(discovery: Discovery) -> None:
    listed = document(discovery, "/apis/example.com/v1")["resources"]
    assert [entry["name"] for entry in listed] == ["widgets", "widgets/status", "widgets/scale"]
    assert listed[0] == {
        "name": "widgets",
        "singularName": "widget",
        "namespaced": True,
        "kind": "Widget",
        "verbs": ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        "shortNames": ["wd"],
        "categories": ["all"],
        "storageVersionHash": "gIwvi5rymmg=",
    }


def test_every_served_version_has_the_hash_of_the_storage_version(registry: Registry) -> None:
    widgets = registry.get(GroupResource("example.com", "widgets"))
    assert widgets is not None
    assert storage_version_hash(widgets) == "gIwvi5rymmg="


def test_the_aggregated_document_contains_all_groups(discovery: Discovery) -> None:
    groups = document(discovery, "/apis", AGGREGATED)
    assert groups["kind"] == "APIGroupDiscoveryList"
    assert groups["apiVersion"] == "apidiscovery.k8s.io/v2"
    by_name = {item["metadata"]["name"]: item for item in groups["items"]}
    deployments = next(
        entry for entry in by_name["apps"]["versions"][0]["resources"] if entry["resource"] == "deployments"
    )
    assert deployments["responseKind"] == {"group": "", "version": "", "kind": "Deployment"}
    assert deployments["subresources"][0]["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    widgets = by_name["example.com"]["versions"][0]["resources"][0]
    assert widgets["responseKind"] == {"group": "example.com", "version": "v1", "kind": "Widget"}
    assert [entry["subresource"] for entry in widgets["subresources"]] == ["status", "scale"]


def test_the_core_group_has_its_own_aggregated_document(discovery: Discovery) -> None:
    (core,) = document(discovery, "/api", AGGREGATED)["items"]
    assert core["metadata"] == {}
    assert core["versions"][0]["version"] == "v1"


def test_an_unchanged_aggregated_document_is_not_modified(discovery: Discovery) -> None:
    first = request(discovery, "/apis", AGGREGATED)
    assert first.headers["content-type"] == AGGREGATED
    headers = {"accept": AGGREGATED, "if-none-match": first.headers["etag"]}
    again = discovery.handle(Request("GET", "/apis", headers=headers))
    assert again is not None
    assert (again.status, again.content()) == (304, b"")


def test_documents_are_updated_with_the_registry(registry: Registry, discovery: Discovery) -> None:
    before = request(discovery, "/apis", AGGREGATED).headers["etag"]
    registry.remove(GroupResource("example.com", "widgets"))
    assert request(discovery, "/apis", AGGREGATED).headers["etag"] != before
    assert discovery.handle(Request("GET", "/apis/example.com")) is None


def test_a_client_that_prefers_legacy_discovery_gets_it(discovery: Discovery) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    assert document(discovery, "/apis", accept)["kind"] == "APIGroupList"


def test_unknown_discovery_formats_are_not_acceptable(discovery: Discovery) -> None:
    for accept in ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", "text/plain"):
        with pytest.raises(NotAcceptable, match="only the following media types are accepted"):
            request(discovery, "/apis", accept)


def test_discovery_supports_yaml(discovery: Discovery) -> None:
    found = request(discovery, "/apis/apps", "application/yaml")
    assert found.headers["content-type"] == "application/yaml"
    assert found.content().startswith(b"apiVersion: v1\nkind: APIGroup\nname: apps\n")


def test_an_unserved_version_of_a_built_in_group_is_not_found(discovery: Discovery) -> None:
    with pytest.raises(NotFound, match="the server could not find the requested resource"):
        request(discovery, "/apis/apps/v7")
    with pytest.raises(NotFound):
        request(discovery, "/api/v2")


@pytest.mark.parametrize("path", ["/apis/nope", "/apis/example.com/v8", "/healthz", "/apis/apps/v1/deployments"])
def test_other_paths_are_not_handled(discovery: Discovery, path: str) -> None:
    assert discovery.handle(Request("GET", path)) is None


def test_discovery_is_read_only(discovery: Discovery) -> None:
    with pytest.raises(MethodNotAllowed):
        request(discovery, "/version", method="POST")


def test_the_version_sorts_like_the_compatible_kubernetes_release(discovery: Discovery) -> None:
    version = document(discovery, "/version")
    assert (version["major"], version["minor"]) == ("1", "36")
    assert version["gitVersion"].split("+")[0] == "v1.36.3"


def test_write_verbs_are_hidden_while_a_crd_terminates(registry: Registry) -> None:
    crd = definition()
    crd["status"]["conditions"].append({"type": "Terminating", "status": "True"})
    registry.add(resource_from_crd(crd))
    (widgets, *_) = document(Discovery(registry), "/apis/example.com/v1")["resources"]
    assert widgets["verbs"] == ["delete", "deletecollection", "get", "list", "watch"]
