# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""Bodies that do not match their content type, or are too large."""

from __future__ import annotations

import msgspec

from tests.fuzz.server_pair import CONFIG_MAPS, CORE, DEFINITIONS, PODS, WIDGETS, config_map, widget
from tests.fuzz.wire import Input

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_CM = b'"apiVersion":"v1","kind":"ConfigMap"'

_JSON = [
    b"", b" ", b"null", b"true", b"1", b'"x"', b"[]", b"[{}]", b"{}", b"{", b"}", b"{]", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a":1 "b":2}', b"{'a':1}", b"{a:1}", b'{"a":01}', b'{"a":+1}', b'{"a":.5}',
    b'{"a":1.}', b'{"a":1e}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b'{"a":"\\x"}', b'{"a":"\n"}', b'{"a":"', b'{"a":tru}', b"{} {}", b"{}x", b"{} //", b"\xef\xbb\xbf{}",
    b'\x00{"a":1}', b"\xff\xfe{\x00}\x00", b"[" * 100000, b'{"a":' * 20000, b"{" + _CM, b'{"kind":"ConfigMap"}', b'{"apiVersion":"v1"}', b'{"apiVersion":1,"kind":"ConfigMap"}', b'{"apiVersion":"v1","kind":[]}',
    b'{"apiVersion":null,"kind":null,"metadata":{"name":"x"}}', b'{"apiVersion":"v9","kind":"ConfigMap","metadata":{"name":"x"}}', b'{"apiVersion":"v1","kind":"Nope","metadata":{"name":"x"}}',
    b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}', b'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"}}', b'{"apiVersion":"a/b/c","kind":"ConfigMap"}', b'{"apiVersion":"/","kind":"ConfigMap"}',
    b'{"apiVersion":"/v1","kind":"ConfigMap","metadata":{"name":"x"}}', b'{"apiVersion":"v1","kind":"ConfigMapList","items":[]}', b'{"apiVersion":"v1","kind":"configmap","metadata":{"name":"x"}}', b'{"apiVersion":"v1","kind":"Status"}',
    b"{" + _CM + b',"metadata":{"name":"x","name":"y"}}', b"{" + _CM + b',"metadata":{"name":"x"},"metadata":{"name":"y"}}', b"{" + _CM + b',"metadata":{"name":"x"},"data":{"a":"b","a":"c"}}', b"{" + _CM + b',"Metadata":{"name":"x"}}',
    b"{" + _CM + b',"metadata":{"name":"x"},"data":{"a":"\xff"}}', b"{" + _CM + b',"metadata":{"name":"x"},"data":{"a":"\\u0000"}}', b"{" + _CM + b',"metadata":{"name":"x\\u0000"}}',
    b"{" + _CM + b',"metadata":{"name":"x"},"data":{"a":"\\ud800"}}', b"{" + _CM + b',"metadata":{"name":"x"},"immutable":1e400}', b"{" + _CM + b',"metadata":{"name":"x","generation":99999999999999999999}}', b"{" + _CM + b',"metadata":{"name":"x","generation":1.5}}',
    b"{" + _CM + b',"metadata":{"name":"x","generation":1e2}}', b"{" + _CM + b',"metadata":{"name":"x"},"":{}}', b"---\n{}", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", b"<xml/>", b"a=b",
]  # fmt: skip

_YAML = [
    b"", b"---", b"---\n---", b"a", b"- a", b"a: b: c", b"\ta: b", b"a: 'b", b'a: "\\x"', b"a: &a [*a]", b"&a a: *b", b"a: *a", b"!!python/object:os.system {}", b"!nope {}", b"%YAML 9.9\n---\n{}", b"a: 1\na: 2", b"? [a]\n: b", b"1: 2", b"null: x", b"true: x", b"1.5: x",
    b"a: .nan", b"a: .inf", b"a: 2024-01-01", b"<<: {a: b}", b"<<: a", b"a: !!binary x", b"{", b"[", b"}", b"\x00", b"\xff", b"a: \x01", b"@a", b"`a", b"a: |\n b\n  c\n d: e\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n name: y\n",
    b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\napiVersion: v1\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 1}\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yes}\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: 1}\n",
    b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: b, a: c}\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\nnope: 1\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, creationTimestamp: 2024-01-01}\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {1: b}\n",
    b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
    b"[" * 5000, b"a:\n" + b"".join(b" " * n + b"a:\n" for n in range(1, 400)), b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: 012}\n", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: on}\n",
]  # fmt: skip


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])


def envelope(raw: bytes, api_version: bytes = b"v1", kind: bytes = b"ConfigMap", more: bytes = b"") -> bytes:
    return _MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + more


_META = field(1, field(1, b"x"))
_PROTOBUF = [
    b"", b"k8s", _MAGIC, b"k8s\x01" + envelope(_META)[4:], b"{}", msgspec.json.encode(config_map("x")), _MAGIC + b"\x00", _MAGIC + b"\xff" * 20, _MAGIC + b"\x0a\xff\xff\xff\xff\x0f", _MAGIC + b"\x0a\x05abc", _MAGIC + b"\x08\x01", _MAGIC + b"\x0b", _MAGIC + b"\x0c",
    _MAGIC + field(2, _META), _MAGIC + field(1, b"") + field(2, _META), _MAGIC + field(1, field(1, b"v1")) + field(2, _META), _MAGIC + field(1, b"\xff") + field(2, _META), envelope(_META, b"v9"), envelope(_META, b"v1", b"Nope"), envelope(_META, b"v1", b"Secret"),
    envelope(_META, b"apps/v1", b"Deployment"), envelope(_META, b"a/b/c"), envelope(_META, b"\xff\xfe"), envelope(_META, b"v1", b""), envelope(b""), envelope(b"\x0a"), envelope(b"\x0a\x01"), envelope(b"\x0a\x02\x0a\x05"), envelope(field(1, field(1, b"\xff"))), envelope(field(1, field(1, b"X y"))),
    envelope(field(1, b"\x08\x05")), envelope(field(1, field(1, b"x") + b"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")), envelope(_META + b"\xf8\x07\x01"), envelope(_META + b"\xfb\x07"), envelope(_META + b"\xfc\x07"), envelope(_META + b"\x00\x00"), envelope(_META + field(2, b"\x0a")),
    envelope(_META + field(2, field(1, b"a"))), envelope(_META + field(2, field(2, b"b"))), envelope(_META + field(2, field(1, b"a b") + field(2, b"c"))), envelope(_META + field(2, field(1, b"a") + field(2, b"\xff"))), envelope(_META + field(3, field(1, b"a") + field(2, b"\xff"))),
    envelope(_META + b"\x20\x05"), envelope(_META, more=field(3, b"gzip")), envelope(_META, more=field(4, b"application/json")), envelope(b'{"metadata":{"name":"x"}}', more=field(4, b"application/json")), envelope(_META, more=field(4, b"nope/nope")), envelope(_META, more=field(9, b"x")), envelope(_META, more=b"\xff"),
    envelope(_META) * 2, envelope(_META)[:-1], envelope(_META)[:-3], envelope(_META) + b"\x00", envelope(field(1, field(1, b"x") + field(8, b"\x08" + b"\xff" * 9 + b"\x01"))), envelope(field(1, field(1, b"x") + field(8, b"\x10" + b"\xff" * 9 + b"\x01"))),
    envelope(field(1, field(1, b"x") + field(8, b"\x08" + b"\xff" * 8 + b"\x7f"))), envelope(field(1, field(1, b"x") + field(17, field(7, field(1, b"{"))))), envelope(field(1, field(1, b"x") + field(17, field(1, b"m") + field(2, b"Nope")))), envelope(field(1, b"\x0b" * 5000)), envelope(b"\x0b" * 20000),
]  # fmt: skip


def _huge(size: int) -> bytes:
    return msgspec.json.encode(config_map("x-huge", data={"a": "x" * size}))


def _to(about: str, url: str, body: bytes, content_type: str, method: str = "POST") -> Input:
    return Input(about, method, f"{url}?dryRun=All", body, (("Content-Type", content_type),))


CASES = [
    _to(f"body: {kind} JSON {body[:100]!r} of {len(body)}", url, body, JSON)
    for body in _JSON
    for kind, url in (("configmap", CONFIG_MAPS), ("widget", WIDGETS))
]
CASES += [
    _to(
        f"body: update {url.rpartition('/')[2]} JSON {body[:100]!r} of {len(body)}",
        f"{url}/standing",
        body,
        JSON,
        "PUT",
    )
    for body in _JSON[:24]
    for url in (CONFIG_MAPS, WIDGETS)
]
CASES += [
    _to(
        f"body: delete {url.rpartition('/')[2]} JSON {body[:100]!r} of {len(body)}", f"{url}/nope", body, JSON, "DELETE"
    )
    for body in _JSON[:40]
    for url in (CONFIG_MAPS, WIDGETS)
]
CASES += [
    _to(f"body: {kind} YAML {body[:100]!r} of {len(body)}", url, body, YAML)
    for body in _YAML
    for kind, url in (("configmap", CONFIG_MAPS), ("widget", WIDGETS))
]
CASES += [_to(f"body: protobuf {body[:70]!r} of {len(body)}", CONFIG_MAPS, body, PROTOBUF) for body in _PROTOBUF]
CASES += [
    _to(f"body: delete protobuf {body[:40]!r}", f"{CONFIG_MAPS}/nope", body, PROTOBUF, "DELETE")
    for body in _PROTOBUF[:20]
]
CASES += [
    _to(f"body: patch protobuf {body[:40]!r}", f"{CONFIG_MAPS}/standing", body, PROTOBUF, "PATCH")
    for body in _PROTOBUF[:2]
]
CASES += [
    _to("body: protobuf of a custom kind", WIDGETS, envelope(_META, b"fuzz.example.com/v1", b"Widget"), PROTOBUF),
    _to("body: a review in protobuf of nothing", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", b"", PROTOBUF),
    _to("body: data of 1.2 MB", CONFIG_MAPS, _huge(1_200_000), JSON),
    _to("body: data of 2 MB", CONFIG_MAPS, _huge(2_000_000), JSON),
    _to("body: data of 3 MB", CONFIG_MAPS, _huge(3_100_000), JSON),
    _to("body: data of 4 MB", CONFIG_MAPS, _huge(4_000_000), JSON),
    _to("body: spaces of 4 MB", CONFIG_MAPS, b" " * 4_000_000, JSON),
    _to("body: YAML of 4 MB", CONFIG_MAPS, b"#" * 4_000_000, YAML),
    _to("body: protobuf of 4 MB", CONFIG_MAPS, b"k8s\x00" * 1_000_000, PROTOBUF),
    _to("body: patch of 4 MB", f"{CONFIG_MAPS}/standing", b" " * 4_000_000, "application/merge-patch+json", "PATCH"),
    _to("body: delete options of 4 MB", f"{CONFIG_MAPS}/nope", b" " * 4_000_000, JSON, "DELETE"),
    _to("body: update of 4 MB", f"{CONFIG_MAPS}/standing", _huge(4_000_000), JSON, "PUT"),
    _to("body: widget of 2 MB", WIDGETS, msgspec.json.encode(widget("x", spec={"color": "red", "free": {"a": "x" * 2_000_000}})), JSON),
    _to("body: 20,000 labels", CONFIG_MAPS, msgspec.json.encode(config_map("x", metadata={"name": "x", "labels": {f"l{n}": "" for n in range(20_000)}})), JSON),
    _to("body: annotations of 300 kB", CONFIG_MAPS, msgspec.json.encode(config_map("x", metadata={"name": "x", "annotations": {"a": "x" * 300_000}})), JSON),
    _to("body: deep unknown field", WIDGETS, b'{"apiVersion":"fuzz.example.com/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"color":"red","free":' + b'{"a":' * 300 + b"1" + b"}" * 302, JSON),
    _to("body: pod of wrong bytes", PODS, b"\x80\x81", JSON),
    _to("body: definition of wrong bytes", DEFINITIONS, b"\x80\x81", JSON),
    _to("body: token request of a list", f"{CORE}/serviceaccounts/default/token", b"[]", JSON),
    _to("body: token request of text", f"{CORE}/serviceaccounts/default/token", b'{"spec":{"expirationSeconds":"x"}}', JSON),
    _to("body: token for a moment", f"{CORE}/serviceaccounts/default/token", b'{"spec":{"expirationSeconds":1}}', JSON),
    _to("body: token for ever", f"{CORE}/serviceaccounts/default/token", b'{"spec":{"expirationSeconds":99999999999}}', JSON),
    _to("body: token for an unknown kind", f"{CORE}/serviceaccounts/default/token", b'{"spec":{"boundObjectRef":{"kind":"Nope","name":"x"}}}', JSON),
    _to("body: token for a missing pod", f"{CORE}/serviceaccounts/default/token", b'{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"nope"}}}', JSON),
    _to("body: token for nobody", f"{CORE}/serviceaccounts/nope/token", b"{}", JSON),
    _to("body: empty review", "/apis/authorization.k8s.io/v1/subjectaccessreviews", b"{}", JSON),
    _to("body: review of two things", "/apis/authorization.k8s.io/v1/subjectaccessreviews", b'{"spec":{"user":"u","resourceAttributes":{},"nonResourceAttributes":{}}}', JSON),
    _to("body: review of nobody", "/apis/authorization.k8s.io/v1/subjectaccessreviews", b'{"spec":{"resourceAttributes":{}}}', JSON),
    _to("body: review of itself, empty", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", b"{}", JSON),
    _to("body: rules review, empty", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", b"{}", JSON),
    _to("body: review in another namespace", "/apis/authorization.k8s.io/v1/namespaces/fuzz/localsubjectaccessreviews", b'{"spec":{"user":"u","resourceAttributes":{"namespace":"other"}}}', JSON),
    _to("body: token review, empty", "/apis/authentication.k8s.io/v1/tokenreviews", b"{}", JSON),
    _to("body: token review of a number", "/apis/authentication.k8s.io/v1/tokenreviews", b'{"spec":{"token":1}}', JSON),
    _to("body: eviction of nobody", f"{PODS}/nope/eviction", b"{}", JSON),
    _to("body: eviction of another", f"{PODS}/standing/eviction", b'{"metadata":{"name":"other"}}', JSON),
    _to("body: binding without a target", f"{PODS}/standing/binding", b'{"metadata":{"name":"standing"}}', JSON),
    _to("body: binding of another kind", f"{PODS}/standing/binding", b'{"metadata":{"name":"standing"},"target":{"kind":"Pod","name":"x"}}', JSON),
    _to("body: scale of the wrong kind", f"{WIDGETS}/standing/scale", b'{"kind":"Widget","apiVersion":"fuzz.example.com/v1"}', JSON, "PUT"),
    _to("body: scale below zero", f"{WIDGETS}/standing/scale", b'{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"standing"},"spec":{"replicas":-1}}', JSON, "PUT"),
    _to("body: scale above the limit", f"{WIDGETS}/standing/scale", b'{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"standing"},"spec":{"replicas":1000}}', JSON, "PUT"),
    _to("body: scale of text", f"{WIDGETS}/standing/scale", b'{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"standing"},"spec":{"replicas":"x"}}', JSON, "PUT"),
    _to("body: scale of another", f"{WIDGETS}/standing/scale", b'{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"other"},"spec":{"replicas":1}}', JSON, "PUT"),
    _to("body: scale of a deployment below zero", "/apis/apps/v1/namespaces/fuzz/deployments/standing/scale", b'{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"standing"},"spec":{"replicas":-1}}', JSON, "PUT"),
]  # fmt: skip
