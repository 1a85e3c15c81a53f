"""Requests that cost a server far more than their sender, as data.

Tests measure the event-loop time of each one; `bench/abuse.py` measures the latency of other clients.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

GROUP = "abuse.example.com"
KIND = "Target"
PLURAL = "targets"
DEFINITION_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

JSON = "application/json"
YAML = "application/yaml"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Attack:
    """One request. `path` has a placeholder for the namespace; `accepted` says whether an honest client may send it."""

    name: str
    method: str
    path: str
    content_type: str
    body: Callable[[], bytes]
    accepted: bool = False
    creates: str = ""  # a path of an object that must exist first


CONFIGMAPS = "/api/v1/namespaces/{namespace}/configmaps"
TARGETS = f"/apis/{GROUP}/v1/namespaces/{{namespace}}/{PLURAL}"
OWN_MANAGER = "?fieldManager=abuse&force=true"


def definition() -> dict[str, Any]:
    """A kind whose patterns and rules are expensive."""
    text = {"type": "string"}
    rules = {
        "matched": [{"rule": "self.matches('[ab]*a[ab]{300}$')"}],
        "loops": [{"rule": "self.all(a, self.all(b, a + b >= 0))"}],
        "found": [{"rule": "self.find('a*c') == ''"}],
        "quantities": [{"rule": "self.all(q, self.all(p, quantity(q).compareTo(quantity(q)) == 0))"}],
    }
    spec = {
        "patterned": text | {"pattern": "[ab]*a[ab]{300}$"},
        "matched": text | {"maxLength": 100_000, "x-kubernetes-validations": rules["matched"]},
        "found": text | {"maxLength": 100_000, "x-kubernetes-validations": rules["found"]},
        "loops": {
            "type": "array",
            "maxItems": 1000,
            "items": {"type": "integer"},
            "x-kubernetes-validations": rules["loops"],
        },
        "quantities": {
            "type": "array",
            "maxItems": 400,
            "items": text | {"maxLength": 20},
            "x-kubernetes-validations": rules["quantities"],
        },
        "keyed": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": text, "port": {"type": "integer"}},
                "required": ["name"],
            },
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": "target", "kind": KIND, "listKind": f"{KIND}List"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def target(name: str, **spec: Any) -> bytes:
    obj = {"apiVersion": f"{GROUP}/v1", "kind": KIND, "metadata": {"name": name}, "spec": spec}
    return json.dumps(obj, separators=(",", ":")).encode()


def configmap(name: str, data: dict[str, str]) -> bytes:
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    return json.dumps(obj, separators=(",", ":")).encode()


@cache
def letters(count: int) -> str:
    """Text on which `[ab]*a[ab]{300}$` reaches a new set of states at nearly every character."""
    drawn = random.Random(1)  # seeded, so that the text is always the same
    return "".join(drawn.choice("ab") for _ in range(count))


def many_keys(count: int) -> bytes:
    return configmap("keys", {f"k{number}": "v" for number in range(count)})


def yaml_document(size: int) -> bytes:
    head = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\ndata:\n"
    lines = (b"  key%d: value\n" % number for number in range(size // 18))
    return head + b"".join(lines)


def laughs(levels: int = 9) -> bytes:
    lines = [b"apiVersion: v1", b"kind: ConfigMap", b"metadata: {name: laughs}", b"data:"]
    lines.append(b"  a0: &a0 [" + b", ".join([b"x" * 50] * 10) + b"]")
    lines += [b"  a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, levels)]
    return b"\n".join(lines) + b"\n# " + b"x" * 20_000


def doubling_copies(count: int = 40) -> bytes:
    """Each operation copies the whole document into itself."""
    ops: list[dict[str, Any]] = [{"op": "add", "path": "/data/a", "value": "x" * 1000}]
    ops += [{"op": "copy", "from": "/data", "path": f"/data/c{number}"} for number in range(count)]
    return json.dumps(ops).encode()


def applied(fields: int) -> bytes:
    spec = {"free": {f"field{number}": "v" for number in range(fields)}}
    return target("applied", **spec)


def owned(count: int) -> bytes:
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": f"n{n}", "uid": f"u{n}"} for n in range(count)]
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": owners}}
    return json.dumps(obj, separators=(",", ":")).encode()


def definition_of_rules(count: int) -> bytes:
    """A CRD below 64 KiB whose rules take long to compile."""
    found = definition()
    names = {"plural": "rules", "singular": "rule", "kind": "Rule", "listKind": "RuleList"}
    found["metadata"]["name"] = f"rules.{GROUP}"
    found["spec"]["names"] = names
    rules = [{"rule": f"self.size() < {n + 20} && self != 'x' && self.startsWith('')"} for n in range(count)]
    properties = {
        f"p{n}": {"type": "string", "maxLength": 9, "x-kubernetes-validations": [rules[n]]} for n in range(count)
    }
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"] = properties
    return json.dumps(found, separators=(",", ":")).encode()


def keyed_list(count: int) -> bytes:
    return target(f"keyed-{count}", keyed=[{"name": f"n{number}"} for number in range(count)])


def long_integer(digits: int) -> bytes:
    return target("number", free={"a": 1}).replace(b":1}", b":" + b"9" * digits + b"}")


def nested(depth: int) -> bytes:
    head = f'{{"apiVersion":"{GROUP}/v1","kind":"{KIND}","metadata":{{"name":"deep"}},"spec":{{"free":'.encode()
    return head + b'{"a":' * depth + b"1" + b"}" * depth + b"}}"


def empty_lists(count: int) -> bytes:
    head = f'{{"apiVersion":"{GROUP}/v1","kind":"{KIND}","metadata":{{"name":"lists"}},"spec":{{"free":{{"a":['.encode()
    return head + b",".join([b"[]"] * count) + b"]}}}"


def repeated_keys(count: int) -> bytes:
    pairs = b",".join(b'"k%d":"v","k%d":"v"' % (n, n) for n in range(count))
    return b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"twice"},"data":{' + pairs + b"}}"


COMPUTATIONS: tuple[Attack, ...] = (
    Attack("pattern", "POST", TARGETS, JSON, lambda: target("pattern", patterned=letters(20_000))),
    Attack("CEL matches", "POST", TARGETS, JSON, lambda: target("matches", matched=letters(20_000))),
    Attack("CEL find", "POST", TARGETS, JSON, lambda: target("find", found="a" * 6_000)),
    Attack("CEL nested loops", "POST", TARGETS, JSON, lambda: target("loops", loops=list(range(440))), accepted=True),
    Attack("CEL quantities", "POST", TARGETS, JSON, lambda: target("quantities", quantities=["1Mi"] * 300)),
    Attack("list map", "POST", TARGETS, JSON, lambda: keyed_list(4_000), accepted=True),
    Attack("large list map", "POST", TARGETS, JSON, lambda: keyed_list(60_000), accepted=True),
    Attack("set", "POST", TARGETS, JSON, lambda: target("set", set=[f"n{n}" for n in range(8_000)]), accepted=True),
    Attack("large set", "POST", TARGETS, JSON, lambda: target("sets", set=[f"n{n}" for n in range(150_000)])),
    Attack("64 KiB of keys", "POST", CONFIGMAPS, JSON, lambda: many_keys(5_000), accepted=True),
    Attack("200,000 keys", "POST", CONFIGMAPS, JSON, lambda: many_keys(200_000)),
    Attack("repeated keys", "POST", CONFIGMAPS + "?fieldValidation=Warn", JSON, lambda: repeated_keys(60_000)),
    Attack("owners", "POST", CONFIGMAPS, JSON, lambda: owned(25_000)),
    Attack("definition of many rules", "POST", DEFINITION_PATH, JSON, lambda: definition_of_rules(450), accepted=True),
    Attack("empty lists", "POST", TARGETS, JSON, lambda: empty_lists(1_000_000)),
    Attack("deep", "POST", TARGETS, JSON, lambda: nested(400_000)),
    Attack("long integer", "POST", TARGETS, JSON, lambda: long_integer(5_000)),
    Attack("YAML, 60 KiB", "POST", CONFIGMAPS, YAML, lambda: yaml_document(60_000), accepted=True),
    Attack("YAML, 3 MB", "POST", CONFIGMAPS, YAML, lambda: yaml_document(3_000_000)),
    Attack("YAML aliases", "POST", CONFIGMAPS, YAML, laughs),
    Attack("apply, 60 KiB", "PATCH", TARGETS + "/applied" + OWN_MANAGER, APPLY, lambda: applied(4_000), accepted=True),
    Attack("apply, 1.2 MB", "PATCH", TARGETS + "/applied" + OWN_MANAGER, APPLY, lambda: applied(65_000)),
    Attack("JSON patch copies", "PATCH", CONFIGMAPS + "/patched", JSON_PATCH, doubling_copies, creates=CONFIGMAPS),
)  # fmt: skip
"""Expensive computations: each is one ordinary request of an ordinary user."""


def honest_configmap(size: int) -> bytes:
    """A ConfigMap as bundles and dashboards create it: few keys, long values."""
    return configmap("honest", {f"file{n}.json": "x" * (size // 8) for n in range(8)})
