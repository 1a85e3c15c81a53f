import pytest

from herder.engine.apiserver.request.negotiation import Rendering, body_type, negotiate
from herder.engine.meta.errors import NotAcceptable, UnsupportedMediaType
from herder.engine.wire import Query, Request

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def rendering(accept: str = "", query: str = "", agent: str = "") -> Rendering:
    return negotiate(Request("GET", "/", Query.parse(query), {"accept": accept, "user-agent": agent}))


@pytest.mark.parametrize(
    ("accept", "media_type", "transform"),
    [
        ("", "application/json", ""),
        ("*/*", "application/json", ""),
        ("application/yaml", "application/yaml", ""),
        ("application/vnd.kubernetes.protobuf,application/json", "application/json", ""),
        ("application/json;q=0.5,application/yaml", "application/yaml", ""),
        (f"{TABLE},application/json", "application/json", "Table"),
        ("application/json;as=Unheard;v=v1;g=meta.k8s.io,application/json", "application/json", ""),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json", "PartialObjectMetadata"),
        (f"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,{TABLE}", "application/json", "Table"),
    ],
)
def test_the_first_supported_media_type_is_served(accept: str, media_type: str, transform: str) -> None:
    found = rendering(accept)
    assert (found.media_type, found.transform) == (media_type, transform)


@pytest.mark.parametrize(
    "accept", ["text/html", "application/vnd.kubernetes.protobuf", "application/json;as=Unheard;v=v1;g=meta.k8s.io"]
)
def test_unsupported_media_types_are_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        rendering(accept)


def test_curl_and_pretty_true_get_indented_responses() -> None:
    assert rendering(agent="curl/8").pretty
    assert not rendering(agent="kubectl/v1").pretty
    assert rendering(query="pretty=true", agent="kubectl/v1").pretty
    assert not rendering(query="pretty=false", agent="curl/8").pretty


def test_bodies_of_unknown_media_types_are_rejected() -> None:
    assert body_type(Request("POST", "/")) == "application/json"
    assert (
        body_type(Request("POST", "/", headers={"content-type": "application/yaml; charset=utf-8"}))
        == "application/yaml"
    )
    with pytest.raises(UnsupportedMediaType, match="accepted media types include: application/json"):
        body_type(Request("POST", "/", headers={"content-type": "text/plain"}))
