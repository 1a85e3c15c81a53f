import pytest

from herder.engine.apiserver.request.info import request_info
from herder.engine.wire import Query

PODS = "/api/v1/namespaces/ns/pods"


def read(method: str, url: str) -> tuple[str, str, str, str, str, str, str]:
    path, _, query = url.partition("?")
    info = request_info(method, path, Query.parse(query))
    return info.verb, info.group, info.version, info.namespace, info.resource, info.subresource, info.name


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("GET", PODS, ("list", "", "v1", "ns", "pods", "", "")),
        ("GET", f"{PODS}?watch=true", ("watch", "", "v1", "ns", "pods", "", "")),
        ("GET", f"{PODS}?watch=1", ("watch", "", "v1", "ns", "pods", "", "")),
        ("GET", f"{PODS}?watch=false", ("list", "", "v1", "ns", "pods", "", "")),
        ("GET", f"{PODS}?watch", ("watch", "", "v1", "ns", "pods", "", "")),
        ("GET", f"{PODS}/p", ("get", "", "v1", "ns", "pods", "", "p")),
        ("GET", f"{PODS}/p?watch=true", ("get", "", "v1", "ns", "pods", "", "p")),
        ("GET", f"{PODS}/p/log", ("get", "", "v1", "ns", "pods", "log", "p")),
        ("POST", PODS, ("create", "", "v1", "ns", "pods", "", "")),
        ("PUT", f"{PODS}/p/status", ("update", "", "v1", "ns", "pods", "status", "p")),
        ("PATCH", f"{PODS}/p", ("patch", "", "v1", "ns", "pods", "", "p")),
        ("DELETE", f"{PODS}/p", ("delete", "", "v1", "ns", "pods", "", "p")),
        ("DELETE", PODS, ("deletecollection", "", "v1", "ns", "pods", "", "")),
        ("GET", "/apis/apps/v1/deployments", ("list", "apps", "v1", "", "deployments", "", "")),
        ("GET", "/api/v1/namespaces", ("list", "", "v1", "", "namespaces", "", "")),
        ("GET", "/api/v1/namespaces/ns", ("get", "", "v1", "ns", "namespaces", "", "ns")),
        ("PUT", "/api/v1/namespaces/ns/finalize", ("update", "", "v1", "ns", "namespaces", "finalize", "ns")),
        ("PUT", "/api/v1/namespaces/ns/status", ("update", "", "v1", "ns", "namespaces", "status", "ns")),
        ("GET", "/api/v1/watch/namespaces/ns/pods", ("watch", "", "v1", "ns", "pods", "", "")),
        ("GET", "/api/v1/watch/namespaces/ns/pods/p", ("watch", "", "v1", "ns", "pods", "", "p")),
        ("GET", f"{PODS}?fieldSelector=metadata.name%3Dp", ("list", "", "v1", "ns", "pods", "", "p")),
        ("GET", f"{PODS}?fieldSelector=metadata.name%3D%3D%2C", ("list", "", "v1", "ns", "pods", "", "")),
    ],
)
def test_a_path_is_parsed_into_request_info(method: str, url: str, expected: tuple[str, ...]) -> None:
    assert read(method, url) == expected


def test_delete_collection_has_no_resource_name() -> None:
    expected = ("deletecollection", "", "v1", "ns", "pods", "", "")
    assert read("DELETE", f"{PODS}?fieldSelector=metadata.name%3Dp") == expected


@pytest.mark.parametrize(
    "path", ["/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/version"]
)
def test_other_paths_have_their_method_as_verb(path: str) -> None:
    info = request_info("GET", path, Query())
    assert (info.verb, info.is_resource_request, info.path) == ("get", False, path)


def test_the_path_after_a_subresource_is_kept() -> None:
    info = request_info("GET", f"{PODS}/p/proxy/a/b", Query())
    assert (info.subresource, info.parts) == ("proxy", ("a", "b"))
