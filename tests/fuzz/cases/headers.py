# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""Headers: content types, negotiation, impersonation, credentials, framing."""

from __future__ import annotations

import msgspec

from tests.fuzz.server_pair import CONFIG_MAPS, WIDGETS, config_map, posted, widget
from tests.fuzz.wire import Input

_TYPES = [
    "", "text/plain", "application", "application/", "/", "*/*", "application/*", "application/json;", "application/json; charset=utf-8", "application/json; charset=utf-16",
    "application/json, application/yaml", "application/JSON", "application/x-www-form-urlencoded", "multipart/form-data", "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf;type=x", "application/vnd.kubernetes.protobuf;stream=watch", "application/yaml", "application/json;stream=watch", "application/cbor", "application/merge-patch+json",
    "application/json-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/apply-patch+json", "application/apply-patch+cbor",
    "application/json; =", "application/json; a=b; a=c", "é", "application/json application/json", "text/yaml", "application/octet-stream",
]  # fmt: skip

_ACCEPTED = [
    "text/html", "application/xml", "*", "*/*", "application/*", "application/json;q=0", "application/json;q=x", "application/nope, application/json", "application/json;as=Nope;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v9;g=meta.k8s.io", "application/json;as=Table;v=v1;g=nope", "application/json;as=Table", "application/json;as=Table;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/yaml", "application/json;stream=watch", "application/json;pretty=x",
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=Nope;v=v1;g=meta.k8s.io,application/json", "application/json;g=meta.k8s.io", "application/json;v=v1", "text/plain;q=1, */*;q=0.1",
    "application/json;as=;v=;g=", "application/cbor", "", ",", ";", "application/json;as=Table;v=v1;g=meta.k8s.io,application/nope", "é", "application/json;charset=utf-16",
]  # fmt: skip

_OTHERS: list[tuple[tuple[str, str], ...]] = [
    (("Impersonate-User", ""),),
    (("Impersonate-Group", "g"),),
    (("Impersonate-Uid", "u"),),
    (("Impersonate-Extra-x", "y"),),
    (("Impersonate-User", "nobody"),),
    (("Impersonate-User", "nobody"), ("Impersonate-Group", "system:masters")),
    (("Impersonate-User", "system:serviceaccount:a"),),
    (("Impersonate-User", "system:serviceaccount:fuzz:default"),),
    (("Impersonate-User", "system:serviceaccount::"),),
    (("Impersonate-User", "system:anonymous"),),
    (("Impersonate-User", "a"), ("Impersonate-User", "b")),
    (("Impersonate-User", "x" * 2000),),
    (("Impersonate-User", "é"),),
    (("Impersonate-User", "a"), ("Impersonate-Extra-", "x")),
    (("Impersonate-User", "a"), ("Impersonate-Extra-%zz", "x")),
    (("Authorization", "Bearer"),),
    (("Authorization", "Bearer "),),
    (("Authorization", "Bearer x"),),
    (("Authorization", "Bearer a.b.c"),),
    (("Authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."),),
    (("Authorization", "Basic YTpi"),),
    (("Authorization", "Nope"),),
    (("Authorization", "Bearer x y z"),),
    (("Authorization", "Bearer é"),),
    (("Content-Length", "0"),),
    (("Content-Encoding", "gzip"),),
    (("Content-Encoding", "nope"),),
    (("Accept-Encoding", "nope;q=x"),),
    (("Accept-Encoding", "gzip;q=0, *;q=0"),),
    (("If-None-Match", "*"),),
    (("Range", "bytes=0-1"),),
    (("Expect", "nope"),),
    (("Expect", "100-continue"),),
    (("X-Long", "x" * 60000),),
    (("User-Agent", ""),),
    (("User-Agent", "x" * 1000),),
    (("User-Agent", "é💥"),),
    (("Host", "nope.example.com"),),
    (("Host", ""),),
    (("Connection", "close"),),
    (("Connection", "upgrade"), ("Upgrade", "websocket")),
    (("Connection", "upgrade"), ("Upgrade", "nope")),
    (("Origin", "https://nope.example.com"),),
    (("X-Remote-User", "admin"),),
    (("X-Http-Method-Override", "DELETE"),),
    (("Cookie", "a=b; c"),),
]

CASES: list[Input] = []
for _type in _TYPES:
    CASES += [
        posted(f"header: create Content-Type {_type!r}", f"{CONFIG_MAPS}?dryRun=All", config_map("x-header"), "POST", _type),
        posted(f"header: create widget Content-Type {_type!r}", f"{WIDGETS}?dryRun=All", widget("x-header"), "POST", _type),
        posted(f"header: update Content-Type {_type!r}", f"{CONFIG_MAPS}/standing?dryRun=All", config_map(), "PUT", _type),
        posted(f"header: patch Content-Type {_type!r}", f"{CONFIG_MAPS}/standing?dryRun=All", {}, "PATCH", _type),
        posted(f"header: patch widget Content-Type {_type!r}", f"{WIDGETS}/standing?dryRun=All", {}, "PATCH", _type),
        posted(f"header: delete Content-Type {_type!r}", f"{CONFIG_MAPS}/standing?dryRun=All", {"dryRun": ["All"]}, "DELETE", _type),
    ]  # fmt: skip
_PLACES = {
    "list": CONFIG_MAPS,
    "get": f"{CONFIG_MAPS}/standing",
    "get widget": f"{WIDGETS}/standing",
    "missing": f"{CONFIG_MAPS}/nope",
    "watch": f"{CONFIG_MAPS}?watch=1",
    "discovery": "/apis",
    "version": "/version",
}
CASES += [
    Input(f"header: {place} Accept {accepted!r}", "GET", url, headers=(("Accept", accepted),))
    for accepted in _ACCEPTED
    for place, url in _PLACES.items()
]
CASES += [
    Input(f"header: create Accept {accepted!r}", "POST", f"{CONFIG_MAPS}?dryRun=All", msgspec.json.encode(config_map("x-header")), (("Accept", accepted), ("Content-Type", "application/json")))
    for accepted in _ACCEPTED
]  # fmt: skip
CASES += [
    Input(f"header: {' '.join(f'{n}={v[:40]}' for n, v in headers)}", "GET", f"{CONFIG_MAPS}/standing", headers=headers)
    for headers in _OTHERS
]
CASES += [
    Input("header: compressed body", "POST", f"{CONFIG_MAPS}?dryRun=All", b"\x1f\x8b not gzip", (("Content-Encoding", "gzip"), ("Content-Type", "application/json"))),
    Input("header: unknown encoding of the body", "POST", f"{CONFIG_MAPS}?dryRun=All", msgspec.json.encode(config_map("x-header")), (("Content-Encoding", "nope"), ("Content-Type", "application/json"))),
    Input("header: create as nobody", "POST", f"{CONFIG_MAPS}?dryRun=All", b"not even JSON", (("Impersonate-User", "nobody"), ("Content-Type", "application/json"))),
    Input("header: create nowhere as nobody", "POST", "/api/v1/nopes", b"{}", (("Impersonate-User", "nobody"), ("Content-Type", "application/json"))),
]  # fmt: skip
