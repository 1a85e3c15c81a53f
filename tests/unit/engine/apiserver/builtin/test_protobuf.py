"""Protobuf bodies encoded by kube-apiserver decode to the same objects as JSON; malformed ones are rejected."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from herder.engine.apiserver.builtin import protobuf
from herder.engine.apiserver.builtin.protowire import BYTES
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import GroupVersionKind
from tests.unit.engine.apiserver.builtin.answers import REAL
from tests.unit.engine.apiserver.builtin.driving import resource_of
from tests.unit.engine.apiserver.builtin.record import key, without_uids
from tests.unit.engine.apiserver.builtin.samples import SAMPLES


def _body(sample: dict[str, Any]) -> bytes:
    return base64.b64decode(REAL["protobuf"][key(sample)])


@pytest.mark.parametrize("sample", SAMPLES, ids=key)
def test_protobuf_and_json_decode_to_the_same_object(sample: dict[str, Any]) -> None:
    decoded = protobuf.decode(_body(sample))
    version = sample["apiVersion"].rpartition("/")[2]
    model = resource_of(sample).versions[version].model
    obj, unknown = model.decode(decoded)
    model.default(obj)
    for name in ("uid", "creationTimestamp", "managedFields", "namespace"):
        obj["metadata"].pop(name, None)
    expected = REAL["created"][key(sample)]
    if "lastPhaseTransitionTime" in expected.get("status", {}):
        obj["status"]["lastPhaseTransitionTime"] = expected["status"]["lastPhaseTransitionTime"]
    assert without_uids(obj) == expected
    assert unknown == []


def test_embedded_json_is_decoded_unchanged() -> None:
    raw = b'{"kind":"Widget","apiVersion":"example.com/v1"}'
    body = protobuf.MAGIC + _field(2, raw) + _field(4, b"application/json")
    assert protobuf.decode(body) == {"kind": "Widget", "apiVersion": "example.com/v1"}


def test_delete_options_are_accepted_in_every_group() -> None:
    meta = _field(1, b"apps/v1") + _field(2, b"DeleteOptions")
    raw = b"\x08\x05" + _field(4, b"Background")
    body = protobuf.MAGIC + _field(1, meta) + _field(2, raw)
    assert protobuf.decode(body) == {
        "kind": "DeleteOptions",
        "apiVersion": "apps/v1",
        "gracePeriodSeconds": 5,
        "propagationPolicy": "Background",
    }


def test_a_body_without_a_kind_has_the_expected_kind() -> None:
    body = protobuf.MAGIC + _field(2, _field(1, _field(1, b"x")))
    assert protobuf.decode(body, GroupVersionKind("", "v1", "ConfigMap"))["metadata"] == {"name": "x"}


def test_negative_numbers_are_signed() -> None:
    raw = _field(2, b"\x08" + b"\xff" * 9 + b"\x01")
    meta = _field(1, b"apps/v1") + _field(2, b"Deployment")
    body = protobuf.MAGIC + _field(1, meta) + _field(2, raw)
    assert protobuf.decode(body)["spec"] == {"replicas": -1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"k8s",
        b"{}",
        protobuf.MAGIC + b"\x12\xff\xff\xff\xff\x0f",
        protobuf.MAGIC + b"\x0a",
        protobuf.MAGIC + b"\x00\x00",
        protobuf.MAGIC + b"\x13",
        protobuf.MAGIC + b"\xff" * 20,
        protobuf.MAGIC + b"\x0a\x0a\x0a\x02v1\x12\x04Nope",
        protobuf.MAGIC,
    ],
)
def test_malformed_bodies_are_bad_requests(body: bytes) -> None:
    with pytest.raises(BadRequest):
        protobuf.decode(body)


_CONFIG = GroupVersionKind("", "v1", "ConfigMap")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b"{}",
            "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a "
            "protobuf message, expected prefix [107 56 115 0] (7b7d)",
        ),
        (
            protobuf.MAGIC + b"\x12\xff\xff\xff\xff\x0f",
            "the object provided is unrecognized (must be of type ConfigMap): unexpected EOF (6b38730012ffffffff0f)",
        ),
        (
            protobuf.MAGIC + b"\x12\x02\x0a\x09",
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: unexpected EOF',
        ),
        (
            protobuf.MAGIC + b"\x0a\x0a\x0a\x02v1\x12\x04Nope",
            'Nope in version "v1" cannot be handled as a ConfigMap: no kind "Nope" is registered for version "v1"',
        ),
    ],
)
def test_malformed_bodies_have_kube_apiservers_messages(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as rejected:
        protobuf.decode(body, _CONFIG)
    assert rejected.value.message == message


def test_corrupted_bodies_never_crash() -> None:
    chance = random.Random(7)
    bodies = [_body(sample) for sample in SAMPLES]
    for _ in range(3000):
        body = bytearray(chance.choice(bodies))
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(4, len(body))] = chance.randrange(256)
        cut = bytes(body[: chance.randint(4, len(body))]) if chance.random() < 0.3 else bytes(body)
        try:
            obj = protobuf.decode(cut)
            kind = GroupVersionKind.of(obj)
            resource_of(obj).versions[kind.version].model.decode(obj)
        except (BadRequest, KeyError):
            continue


def test_deeply_nested_messages_are_bad_requests() -> None:
    schema = b""
    while len(schema) < 1 << 17:
        schema = _field(28, schema)  # JSONSchemaProps.not, nested
    version = _field(1, b"v1") + _field(4, _field(1, schema))
    raw = _field(2, _field(7, version))
    meta = _field(1, b"apiextensions.k8s.io/v1") + _field(2, b"CustomResourceDefinition")
    with pytest.raises(BadRequest, match="nested too deeply"):
        protobuf.decode(protobuf.MAGIC + _field(1, meta) + _field(2, raw))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])
