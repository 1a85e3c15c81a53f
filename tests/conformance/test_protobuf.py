"""Kubernetes protobuf bodies, as Go clients send them for built-in kinds."""

from __future__ import annotations

from tests.conformance.objects import secret
from tests.support.api import Api

PROTOBUF = "application/vnd.kubernetes.protobuf"


def field(number: int, value: bytes | str) -> bytes:
    """Encode a length-delimited field: text, bytes or a message."""
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def number(field_number: int, value: int) -> bytes:
    return _varint(field_number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def entry(key: str, value: str | bytes) -> bytes:
    return field(1, key) + field(2, value)


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, raw)


async def test_a_config_map_is_created(api: Api) -> None:
    metadata = field(1, "a") + field(11, entry("app", "x")) + field(12, entry("note", "y"))
    raw = field(1, metadata) + field(2, entry("k", "v")) + field(3, entry("bin", b"\x00\x01"))
    answer = await api.post(api.at("configmaps"), envelope("v1", "ConfigMap", raw), content_type=PROTOBUF)
    created = answer.expect(201)
    assert created["metadata"]["labels"] == {"app": "x"}
    assert created["metadata"]["annotations"] == {"note": "y"}
    assert created["data"] == {"k": "v"}
    assert created["binaryData"] == {"bin": "AAE="}


async def test_a_secret_is_updated(api: Api) -> None:
    created = await api.create("secrets", secret("a", x="1"))
    version = created["metadata"]["resourceVersion"]
    metadata = field(1, "a") + field(6, version)
    raw = field(1, metadata) + field(2, entry("x", b"2")) + field(3, "Opaque")
    answer = await api.put(api.at("secrets", "a"), envelope("v1", "Secret", raw), content_type=PROTOBUF)
    assert answer.expect(200)["data"] == {"x": "Mg=="}


async def test_numbers_and_times(api: Api) -> None:
    spec = field(1, "me") + number(2, 15) + field(4, number(1, 1_700_000_000) + number(2, 5000)) + number(5, 3)
    raw = field(1, field(1, "a")) + field(2, spec)
    body = envelope("coordination.k8s.io/v1", "Lease", raw)
    answer = await api.post(api.at("coordination.k8s.io/v1/leases"), body, content_type=PROTOBUF)
    assert answer.expect(201)["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": "2023-11-14T22:13:20.000005Z",
        "leaseTransitions": 3,
    }


async def test_options_of_a_delete(api: Api) -> None:
    await api.create("secrets", secret("a"))
    raw = field(2, field(1, "other"))
    options = envelope("v1", "DeleteOptions", raw)
    answer = await api.send("DELETE", api.at("secrets", "a"), options, content_type=PROTOBUF)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_a_review(api: Api) -> None:
    attributes = field(1, api.namespace) + field(2, "get") + field(5, "pods")
    raw = field(1, b"") + field(2, field(1, attributes) + field(3, "alice"))
    body = envelope("authorization.k8s.io/v1", "SubjectAccessReview", raw)
    answer = await api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body, content_type=PROTOBUF)
    assert answer.expect(201)["status"] == {"allowed": False}


async def test_unknown_protobuf_fields_are_skipped(api: Api) -> None:
    raw = field(1, field(1, "a")) + field(99, "future") + number(98, 7)
    answer = await api.post(api.at("configmaps"), envelope("v1", "ConfigMap", raw), content_type=PROTOBUF)
    answer.expect(201)


async def test_the_kind_is_optional(api: Api) -> None:
    body = b"k8s\x00" + field(2, field(1, field(1, "a")))
    answer = await api.post(api.at("configmaps"), body, content_type=PROTOBUF)
    assert answer.expect(201)["kind"] == "ConfigMap"


async def test_the_kind_must_match_the_url(api: Api) -> None:
    body = envelope("v1", "Secret", field(1, field(1, "a")))
    answer = await api.post(api.at("configmaps"), body, content_type=PROTOBUF)
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_clients_that_accept_both_get_json(api: Api) -> None:
    await api.create("secrets", secret("a"))
    answer = await api.get(api.at("secrets", "a"), accept=f"application/json, {PROTOBUF}")
    assert answer.headers["content-type"] == "application/json"
