# ruff: noqa: E501 — lists of values read better in few lines
"""Inputs from a seed: input number n of seed s is always the same, independent of earlier inputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec
import yaml

from tests.fuzz.cases.patches import APPLY, JSON_PATCH, MERGE, STRATEGIC
from tests.fuzz.inputs import definitions, protobufs
from tests.fuzz.inputs.mutation import STRINGS, junk, mangled, mutated, mutated_repeatedly
from tests.fuzz.server_pair import CONFIG_MAPS, CORE, DEFINITIONS, GROUP, PODS, SAMPLES, WIDGETS, collection_of, posted
from tests.fuzz.wire import Input
from tests.unit.engine.apiserver.builtin.samples import SAMPLES as BUILTIN

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"


def generate(seed: int, number: int, only: str = "") -> Input:
    dice = random.Random(f"{seed}/{number}")
    kinds = [kind for kind in GENERATORS if kind.__name__.startswith(only)] if only else GENERATORS
    return dice.choice(kinds)(dice)


# --- URLs -------------------------------------------------------------------------------------------------------------

_SEGMENTS = [
    "api", "apis", "v1", "v2", "apps", "namespaces", "fuzz", "configmaps", "pods", "widgets", GROUP, "standing", "status", "scale", "watch", "nope", "..", ".", "", "%2e", "%2F", "%zz", "%ff", "nodes",
    "proxy", "log", "exec", "openapi", "v3", "healthz", "a%20b", "~", ";x", "token", "serviceaccounts", "default", "customresourcedefinitions", "apiextensions.k8s.io", "deployments",
]  # fmt: skip
_URLS = [CONFIG_MAPS, f"{CONFIG_MAPS}/standing", WIDGETS, f"{WIDGETS}/standing", f"{WIDGETS}/standing/status", PODS, f"{PODS}/standing/log", DEFINITIONS, f"{CORE}/serviceaccounts/default/token", "/api/v1/namespaces/fuzz", "/apis/apps/v1/deployments"]  # fmt: skip
_QUERIES: dict[str, list[str]] = {
    "limit": ["0", "1", "-1", "x", ""], "continue": ["x", "", "e30"], "resourceVersion": ["0", "1", "x", "-1", ""], "resourceVersionMatch": ["Exact", "NotOlderThan", "x", ""], "labelSelector": ["a", "a=b", "a in (", "!", ""],
    "fieldSelector": ["metadata.name=x", "x", "spec.color=red", "a=b", ""], "timeoutSeconds": ["1", "x", "-1"], "sendInitialEvents": ["true", "false", "x", ""], "allowWatchBookmarks": ["true", "x"], "watch": ["0", "false"], "fieldManager": ["m", "", "%00", "x" * 129, "é"],
    "fieldValidation": ["Strict", "Warn", "Ignore", "x"], "force": ["true", "x", ""], "propagationPolicy": ["Orphan", "x", ""], "gracePeriodSeconds": ["0", "x", "-1"], "orphanDependents": ["true", "x"], "pretty": ["true", "x"], "timeout": ["1s", "x", "5"], "nope": ["1"], "includeObject": ["None", "x"], "container": ["c", "nope"],
}  # fmt: skip
_METHODS = ["GET", "GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


def url(dice: random.Random) -> Input:
    parts = dice.choice(_URLS).split("/")[1:]
    for _ in range(dice.choice([1, 1, 2])):
        place = dice.randrange(len(parts) + 1)
        match dice.randrange(3):
            case 0:
                parts[place:place] = [dice.choice(_SEGMENTS)]
            case 1:
                parts[place : place + 1] = [dice.choice(_SEGMENTS)]
            case _:
                del parts[place : place + 1]
    method = dice.choice(_METHODS)
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    harmless = "" if method == "GET" else "?dryRun=All"
    return _sent("url", method, "/" + "/".join(parts) + harmless, body, JSON)


def query(dice: random.Random) -> Input:
    method = dice.choice(_METHODS[:7])
    pairs = []
    for name in dice.sample(list(_QUERIES), dice.choice([1, 2, 2, 3])):
        value = dice.choice(_QUERIES[name]) if dice.random() < 0.85 else dice.choice(STRINGS)
        pairs.append(f"{name}={quote(value, safe='%')}")
    collection = dice.choice(_URLS[:4])
    named = collection.endswith("standing")
    if method == "POST":
        collection = collection.removesuffix("/standing")
        body = msgspec.json.encode(_fresh(SAMPLES[collection], "q"))
    elif method == "PUT" and named:
        body = msgspec.json.encode(SAMPLES[collection.removesuffix("/standing")])
    elif method == "PATCH":
        body = b"{}"
    else:
        body = None
    if method != "GET":
        pairs.append("dryRun=All")
    return _sent("query", method, f"{collection}?{'&'.join(pairs)}", body, MERGE if method == "PATCH" else JSON)


def header(dice: random.Random) -> Input:
    names = ["Accept", "Content-Type", "Accept-Encoding", "Impersonate-User", "Impersonate-Group", "User-Agent", "X-Any", "If-Match", "Connection", "Cache-Control"]  # fmt: skip
    types = [JSON, YAML, PROTOBUF, MERGE, "text/plain", "*/*", f"{JSON};as=Table;v=v1;g=meta.k8s.io", f"{JSON};q=0.5, {YAML}", f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io"]  # fmt: skip
    headers: dict[str, str] = {}
    for name in dice.sample(names, dice.choice([1, 2])):
        value = dice.choice(
            types if name in ("Accept", "Content-Type") else ["a", "x y", "", "gzip", "close", "nobody"]
        )
        if dice.random() < 0.3:
            value = mangled(value.encode(), dice).decode("latin-1")
        headers[name] = "".join(character for character in value if " " <= character <= "~").strip()
    if dice.random() < 0.5:
        return Input("header", "GET", dice.choice(_URLS[:6]), headers=tuple(headers.items()))
    body = msgspec.json.encode(_fresh(SAMPLES[CONFIG_MAPS], "h"))
    headers.setdefault("Content-Type", JSON)
    return Input("header", "POST", f"{CONFIG_MAPS}?dryRun=All", body, tuple(headers.items()))


def selector(dice: random.Random) -> Input:
    atoms = ["a", "b", "in", "notin", "exists", "!", "=", "==", "!=", "(", ")", ",", " ", "x/y", "A", "-", ">", "<", "1", "metadata.name", "spec.color", "\\", "é", "''", "a.b", "_", ".", "x" * 64]  # fmt: skip
    valid = ["a=b", "a in (b,c)", "!a", "a notin (b)", "a>1", "metadata.name=x", "spec.color!=red", "a,b", "x.y/z=w"]
    if dice.random() < 0.6:
        text = mangled(dice.choice(valid).encode(), dice).decode("latin-1")
    else:
        text = "".join(dice.choice(atoms) for _ in range(dice.randrange(1, 8)))
    kind = dice.choice(["labelSelector", "fieldSelector"])
    return Input("selector", "GET", f"{dice.choice([CONFIG_MAPS, WIDGETS, PODS])}?{kind}={quote(text)}")


# --- bodies -----------------------------------------------------------------------------------------------------------


def custom_object(dice: random.Random) -> Input:
    obj = mutated_repeatedly(_fresh(rich_widget(), "w"), dice)
    if dice.random() < 0.3:
        return posted("custom object: update", f"{WIDGETS}/standing?{_validation(dice)}", _renamed(obj), "PUT")
    return posted("custom object", f"{WIDGETS}?{_validation(dice)}", obj)


def config_object(dice: random.Random) -> Input:
    collection = dice.choice([place for place in SAMPLES if place not in (WIDGETS, PODS)])
    obj = mutated_repeatedly(_fresh(SAMPLES[collection], "c"), dice)
    if dice.random() < 0.3:
        return posted("plain object: update", f"{collection}/standing?{_validation(dice)}", _renamed(obj), "PUT")
    return posted("plain object", f"{collection}?{_validation(dice)}", obj)


def builtin_object(dice: random.Random) -> Input:
    sample = dice.choice(BUILTIN)
    return posted("built-in object", f"{collection_of(sample)}?{_validation(dice)}", mutated_repeatedly(sample, dice))


def mangled_json(dice: random.Random) -> Input:
    collection = dice.choice([CONFIG_MAPS, WIDGETS])
    return _sent(
        "mangled JSON",
        "POST",
        f"{collection}?dryRun=All",
        mangled(msgspec.json.encode(SAMPLES[collection]), dice),
        JSON,
    )


def mangled_yaml(dice: random.Random) -> Input:
    collection = dice.choice([CONFIG_MAPS, WIDGETS])
    body = yaml.safe_dump(SAMPLES[collection]).encode()
    return _sent("mangled YAML", "POST", f"{collection}?dryRun=All", mangled(body, dice), YAML)


def protobuf(dice: random.Random) -> Input:
    sample = dice.choice(BUILTIN)
    body = protobufs.recorded()[f"{sample['kind']}/{sample['metadata']['name']}"]
    return _sent("protobuf", "POST", f"{collection_of(sample)}?dryRun=All", protobufs.corrupted(body, dice), PROTOBUF)


def definition(dice: random.Random) -> Input:
    return posted("definition", f"{DEFINITIONS}?{_validation(dice)}", definitions.definition(dice))


def manager(dice: random.Random) -> Input:
    name = dice.choice(STRINGS) if dice.random() < 0.3 else mangled(b"manager", dice).decode("latin-1") * dice.choice([1, 1, 20])  # fmt: skip
    return posted("field manager", f"{CONFIG_MAPS}/standing?dryRun=All&fieldManager={quote(name)}", {}, "PATCH", MERGE)


# --- patches ----------------------------------------------------------------------------------------------------------

_POINTERS = ["/data", "/data/a", "/data/x", "/metadata", "/metadata/labels", "/metadata/labels/a", "/metadata/finalizers/0", "/metadata/finalizers/-", "/spec", "/spec/color", "/spec/parts/0", "/spec/parts/0/name", "/spec/tags/-", "/spec/notes/n", "/spec/replicas", "/kind", "/nope", "", "/", "/a~1b", "/~2", "/spec/template/spec/containers/0/image", "/metadata/name", "/status"]  # fmt: skip


def json_patch(dice: random.Random) -> Input:
    collection = dice.choice(list(SAMPLES))
    operations = []
    for _ in range(dice.choice([1, 1, 2, 3])):
        operation: Any = {"op": dice.choice(["add", "remove", "replace", "move", "copy", "test"]), "path": dice.choice(_POINTERS)}  # fmt: skip
        if operation["op"] in ("move", "copy"):
            operation["from"] = dice.choice(_POINTERS)
        elif operation["op"] != "remove":
            operation["value"] = dice.choice([junk(dice), "x", {}, "red"])
        operations.append(operation if dice.random() < 0.9 else mutated(operation, dice))
    return posted("JSON patch", f"{collection}/standing?dryRun=All", operations, "PATCH", JSON_PATCH)


def merge_patch(dice: random.Random) -> Input:
    collection = dice.choice(list(SAMPLES))
    return posted("merge patch", f"{collection}/standing?dryRun=All", _piece(SAMPLES[collection], dice), "PATCH", MERGE)


def strategic_patch(dice: random.Random) -> Input:
    collection = dice.choice([place for place in SAMPLES if place != WIDGETS])
    patch = _piece(SAMPLES[collection], dice)
    if dice.random() < 0.4:
        patch = _directed(patch, dice)
    return posted("strategic patch", f"{collection}/standing?dryRun=All", patch, "PATCH", STRATEGIC)


def apply_patch(dice: random.Random) -> Input:
    collection = dice.choice(list(SAMPLES))
    obj = mutated_repeatedly(rich_widget() if collection == WIDGETS else SAMPLES[collection], dice)
    name = dice.choice(["standing", "standing", "x-applied"])
    force = dice.choice(["", "&force=true"])
    return posted("apply", f"{collection}/{name}?dryRun=All&fieldManager=applier{force}", obj, "PATCH", APPLY)


def _piece(sample: Any, dice: random.Random) -> Any:
    """The sample, or some of its top-level fields, with an error somewhere."""
    patch = mutated_repeatedly(sample, dice)
    if isinstance(patch, dict) and dice.random() < 0.7:
        patch = {key: value for key, value in patch.items() if dice.random() < 0.5}
    return patch


def _directed(patch: Any, dice: random.Random) -> Any:
    if isinstance(patch, dict):
        chosen = {key: _directed(value, dice) if dice.random() < 0.7 else value for key, value in patch.items()}
        if dice.random() < 0.3:
            directive = dice.choice(["$patch", "$retainKeys", "$setElementOrder/containers", "$deleteFromPrimitiveList/finalizers"])  # fmt: skip
            chosen[directive] = dice.choice(["replace", "delete", "merge", "nope", [], ["name"], [{"name": "c"}], 1])
        return chosen
    if isinstance(patch, list):
        return [_directed(item, dice) for item in patch]
    return patch


# --- helpers ----------------------------------------------------------------------------------------------------------


def rich_widget() -> Any:
    spec = {
        "color": "red", "replicas": 2, "ratio": 0.5, "wide": 5, "narrow": 5, "size": "1", "when": "2024-01-01T00:00:00Z", "word": "abc", "maybe": None, "yes": True,
        "parts": [{"name": "a", "size": 1}, {"name": "b"}], "tags": ["a", "b"], "steps": ["s"], "free": {"a": [1, {"b": None}]}, "notes": {"n": "1"}, "low": 1, "high": 2, "fixed": "f",
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {}},
    }  # fmt: skip
    metadata = {"name": "standing", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["a/b"]}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": metadata, "spec": spec}


def _fresh(sample: Any, prefix: str) -> Any:
    return sample | {"metadata": sample["metadata"] | {"name": f"x-{prefix}"}}


def _renamed(obj: Any) -> Any:
    """The object with the name of the existing one, unless its name was mutated."""
    if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict) and str(obj["metadata"].get("name")).startswith("x-"):  # fmt: skip
        return obj | {"metadata": obj["metadata"] | {"name": "standing"}}
    return obj


def _validation(dice: random.Random) -> str:
    return f"dryRun=All&fieldValidation={dice.choice(['Strict', 'Warn', 'Ignore'])}"


def _sent(about: str, method: str, url: str, body: bytes | None, content_type: str) -> Input:
    return Input(about, method, url, body, (("Content-Type", content_type),) if body is not None else ())


GENERATORS: list[Callable[[random.Random], Input]] = [
    url, query, header, selector, custom_object, custom_object, config_object, builtin_object, mangled_json, mangled_yaml, protobuf, definition, definition, manager,
    json_patch, merge_patch, strategic_patch, apply_patch,
]  # fmt: skip
