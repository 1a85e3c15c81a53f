"""Generate the data of the built-in kinds from the sources of one version of kube-apiserver.

Three sources, all in the Go module cache: the published OpenAPI documents (schemas, list types, defaults), the
discovery documents (resources, verbs, short names), and the Go types themselves (protobuf numbers, omitted zero
values in JSON, type names in error messages). Descriptions are dropped.

    python tools/generate_builtins.py        # needs `go env GOMODCACHE` to hold k8s.io/kubernetes and its modules
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

KUBERNETES = "v1.36.3"
STAGING = "v0.36.3"
OUT = Path(__file__).parents[1] / "src/herder/engine/apiserver/builtin/data"

# Short package name -> Go directory. The short name is also the data file's.
APIS = {
    "core.v1": "core/v1", "apps.v1": "apps/v1", "batch.v1": "batch/v1", "rbac.v1": "rbac/v1",
    "coordination.v1": "coordination/v1", "policy.v1": "policy/v1", "events.v1": "events/v1",
    "authentication.v1": "authentication/v1", "authorization.v1": "authorization/v1",
    "admissionregistration.v1": "admissionregistration/v1", "discovery.v1": "discovery/v1",
    "networking.v1": "networking/v1", "storage.v1": "storage/v1", "scheduling.v1": "scheduling/v1",
    "autoscaling.v1": "autoscaling/v1", "autoscaling.v2": "autoscaling/v2", "certificates.v1": "certificates/v1",
    "node.v1": "node/v1", "flowcontrol.v1": "flowcontrol/v1", "resource.v1": "resource/v1",
}  # fmt: skip
PACKAGES: dict[str, tuple[str, str]] = {
    **{short: (f"k8s.io/api@{STAGING}/{path}", f"io.k8s.api.{path.replace('/', '.')}") for short, path in APIS.items()},
    "apiextensions.v1": (
        f"k8s.io/apiextensions-apiserver@{STAGING}/pkg/apis/apiextensions/v1",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
    ),
    "apiregistration.v1": (
        f"k8s.io/kube-aggregator@{STAGING}/pkg/apis/apiregistration/v1",
        "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1",
    ),
    "meta.v1": (f"k8s.io/apimachinery@{STAGING}/pkg/apis/meta/v1", "io.k8s.apimachinery.pkg.apis.meta.v1"),
    "runtime": (f"k8s.io/apimachinery@{STAGING}/pkg/runtime", "io.k8s.apimachinery.pkg.runtime"),
    "intstr": (f"k8s.io/apimachinery@{STAGING}/pkg/util/intstr", "io.k8s.apimachinery.pkg.util.intstr"),
    "quantity": (f"k8s.io/apimachinery@{STAGING}/pkg/api/resource", "io.k8s.apimachinery.pkg.api.resource"),
}
# Types with custom JSON, which decoders handle by name.
LEAVES = {
    "meta.v1.Time", "meta.v1.MicroTime", "meta.v1.Duration", "meta.v1.FieldsV1", "runtime.RawExtension",
    "intstr.IntOrString", "resource.Quantity", "apiextensions.v1.JSON", "apiextensions.v1.JSONSchemaPropsOrArray",
    "apiextensions.v1.JSONSchemaPropsOrBool", "apiextensions.v1.JSONSchemaPropsOrStringArray",
}  # fmt: skip
IMPORTED = {
    "k8s.io/apimachinery/pkg/runtime": "runtime",
    "k8s.io/apimachinery/pkg/util/intstr": "intstr",
    "k8s.io/apimachinery/pkg/api/resource": "resource",
    "k8s.io/apimachinery/pkg/types": "types",
}
IMPORTED |= {
    re.sub(r"@[^/]+", "", directory): short
    for short, (directory, _) in PACKAGES.items()
    if short not in {"runtime", "intstr", "quantity"}
}
GROUPS = {
    "": ["v1"], "apps": ["v1"], "batch": ["v1"], "rbac.authorization.k8s.io": ["v1"], "coordination.k8s.io": ["v1"],
    "policy": ["v1"], "events.k8s.io": ["v1"], "authentication.k8s.io": ["v1"], "authorization.k8s.io": ["v1"],
    "admissionregistration.k8s.io": ["v1"], "apiextensions.k8s.io": ["v1"], "apiregistration.k8s.io": ["v1"],
    "discovery.k8s.io": ["v1"], "networking.k8s.io": ["v1"], "storage.k8s.io": ["v1"], "scheduling.k8s.io": ["v1"],
    "autoscaling": ["v2", "v1"], "certificates.k8s.io": ["v1"], "node.k8s.io": ["v1"],
    "flowcontrol.apiserver.k8s.io": ["v1"], "resource.k8s.io": ["v1"],
}  # fmt: skip
DROPPED_KEYS = {"description", "externalDocs", "example"}


def main() -> None:
    cache = Path(subprocess.check_output(["go", "env", "GOMODCACHE"], text=True).strip())
    schemas = published_schemas(cache / f"k8s.io/kubernetes@{KUBERNETES}/api/openapi-spec/v3")
    constants: dict[str, str] = {}
    enums = {
        f"{short}.{name}": values
        for short, (directory, _) in PACKAGES.items()
        for name, values in go_enums(cache / directory, constants).items()
    }
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.json"):
        old.unlink()
    for short, (directory, prefix) in PACKAGES.items():
        own = {name: schema for name, schema in schemas.items() if name.rpartition(".")[0] == prefix}
        structs, types = go_types(cache / directory, short)
        for name, schema in own.items():
            add_enums(schema, flat_fields(name.rpartition(".")[2], structs), enums)
        write(short, {"definitions": own, "structs": structs, "types": types})
    discovery = cache / f"k8s.io/kubernetes@{KUBERNETES}/api/discovery"
    write("resources", {
        "packages": {prefix: short for short, (_, prefix) in PACKAGES.items()},
        "resources": [row for group, versions in GROUPS.items() for row in resource_rows(discovery, group, versions)],
    })  # fmt: skip


def write(name: str, data: object) -> None:
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(data, separators=(",", ":"), ensure_ascii=False) + "\n")


# --- OpenAPI ----------------------------------------------------------------------------------------------------


def published_schemas(directory: Path) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for document in sorted(directory.glob("*_openapi.json")):
        for name, schema in json.loads(document.read_text()).get("components", {}).get("schemas", {}).items():
            known = merged.setdefault(name, without_prose(schema))
            # Types served under many groups (DeleteOptions, WatchEvent) are published with the same long list of
            # kinds everywhere; the first copy is as good as any.
            assert known.keys() == without_prose(schema).keys(), name
    return dict(sorted(merged.items()))


def without_prose(schema: Any, *, names: bool = False) -> Any:
    """Return the schema without descriptions; `names`: the keys are property names, not keywords."""
    if isinstance(schema, list):
        return [without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_prose(value, names=key == "properties" and not names)
        for key, value in schema.items()
        if names or key not in DROPPED_KEYS
    }


def flat_fields(name: str, structs: dict[str, Any]) -> list[list[Any]]:
    """Return the fields of a struct, including those of embedded structs."""
    fields = []
    for field in structs.get(name, []):
        fields += [field] if field[0] else flat_fields(field[1].rpartition(".")[2], structs)
    return fields


def add_enums(schema: dict[str, Any], fields: list[list[Any]], enums: dict[str, list[str]]) -> None:
    """Add enum values, which kube-apiserver publishes but the OpenAPI documents in its sources omit."""
    for name, kind, *_ in fields:
        found = schema.get("properties", {}).get(name, {})
        values = enums.get(kind.lstrip("*[]"))
        if values and found.get("type") in ("string", "array"):
            (found["items"] if found["type"] == "array" else found)["enum"] = values


# --- Go types ---------------------------------------------------------------------------------------------------

_IMPORT = re.compile(r'^\s*(?:import\s+)?(\w+\s+)?"(k8s\.io/[^"]+)"', re.MULTILINE)
_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_EMPTY = re.compile(r"^type (\w+) struct ?\{\s*\}", re.MULTILINE)
_NAMED = re.compile(r"^type (\w+) (?!struct\b|interface\b|func\b)([^\n/={]+?)\s*(?://.*)?$", re.MULTILINE)
_GROUPED = re.compile(r"^type \((.*?)^\)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(?:(\w+)\s+)?([*\[\]\w.]+)\s+`([^`]*)`", re.MULTILINE)
_ENUM = re.compile(r"^// \+enum\n(?://.*\n)*type (\w+) string", re.MULTILINE)
_CONSTANT = re.compile(
    r'^\s*(?:const\s+)?(\w+)(?:\s+(\w+)\s*=\s*|\s*=\s*(\w+)\()(?:"([^"]*)"|\w+\.(\w+)\))', re.MULTILINE
)
_BASIC = {"string", "bool", "int", "int32", "int64", "uint8", "uint32", "float64", "byte"}


def go_types(directory: Path, short: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Structs as {name: [[json name, type, protobuf number, omitted when]]} and other named types by what they are.

    A field with an empty JSON name is embedded: its fields are those of the JSON object around it.
    """
    structs: dict[str, Any] = {}
    types: dict[str, str] = {}
    for path in sorted(directory.glob("*.go")):
        if path.name.endswith("_test.go") or path.name.startswith(("zz_", "generated")):
            continue
        text = path.read_text()
        package = short if short != "quantity" else "resource"
        resolve = resolver(text, package)
        for name, body in _STRUCT.findall(text):
            if f"{package}.{name}" in LEAVES:
                continue
            fields = [field for field in struct_fields(body, resolve) if field]
            if fields and name[0].isupper():
                structs[name] = fields
        structs |= {name: [] for name in _EMPTY.findall(text) if name[0].isupper()}
        for name, underlying in _NAMED.findall(text) + [
            pair for block in _GROUPED.findall(text) for pair in re.findall(r"^\s+(\w+)\s+(\w+)$", block, re.MULTILINE)
        ]:
            if name[0].isupper() and f"{package}.{name}" not in LEAVES:
                types[name] = resolve(underlying)
    return structs, types


def go_enums(directory: Path, known: dict[str, str]) -> dict[str, list[str]]:
    """Return the enum types with their constants; `known` collects those of other packages."""
    texts = [path.read_text() for path in sorted(directory.glob("*.go")) if not path.name.endswith("_test.go")]
    marked = {name for text in texts for name in _ENUM.findall(text)}
    values: dict[str, set[str]] = {name: set() for name in marked}
    for text in texts:
        for name, declared, converted, value, elsewhere in _CONSTANT.findall(text):
            known[name] = value or known.get(elsewhere, "")
            if (kind := declared or converted) in marked:
                values[kind].add(known[name])
    return {name: sorted(found) for name, found in values.items() if found}


def resolver(text: str, package: str) -> Any:
    aliases: dict[str, str] = {}
    for alias, path in _IMPORT.findall(text):
        if path in IMPORTED:
            aliases[alias.strip() or path.rsplit("/", 1)[1]] = IMPORTED[path]

    def resolve(expression: str) -> str:
        def one(match: re.Match[str]) -> str:
            word = match.group()
            if word in _BASIC or word == "map":
                return word
            scope, dot, name = word.partition(".")
            if not dot:
                return f"{package}.{word}"
            return f"{aliases.get(scope, scope)}.{name}"

        return re.sub(r"[A-Za-z_][\w.]*", one, expression)

    return resolve


def struct_fields(body: str, resolve: Any) -> list[list[Any]]:
    fields = []
    for name, expression, tags in _FIELD.findall(re.sub(r"^\s*//.*$", "", body, flags=re.MULTILINE)):
        json_tag = re.search(r'json:"([^"]*)"', tags)
        protobuf = re.search(r'protobuf:"\w+,(\d+)', tags)
        if json_tag is None or json_tag.group(1) == "-":
            continue
        json_name, *options = json_tag.group(1).split(",")
        if not json_name and "inline" not in options:
            json_name = name
        omitted = ("e" if "omitempty" in options else "") + ("z" if "omitzero" in options else "")
        fields.append([json_name, resolve(expression), int(protobuf.group(1)) if protobuf else 0, omitted])
    return fields


# --- discovery --------------------------------------------------------------------------------------------------


def resource_rows(directory: Path, group: str, versions: list[str]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for version in versions:
        name = f"apis__{group}__{version}.json" if group else "api__v1.json"
        for entry in json.loads((directory / name).read_text())["resources"]:
            plural, _, subresource = entry["name"].partition("/")
            if subresource:
                found = rows[plural]["subresources"].setdefault(
                    subresource, {"kind": kind_of(entry, group, version), "verbs": entry["verbs"], "versions": []}
                )
                found["versions"].append(version)
                continue
            row = rows.setdefault(plural, {"group": group, "plural": plural, "versions": [], "subresources": {}})
            row["versions"].append(version)
            row |= {
                "singular": entry["singularName"], "kind": entry["kind"], "namespaced": entry["namespaced"],
                "verbs": entry["verbs"], "shortNames": entry.get("shortNames", []),
                "categories": entry.get("categories", []),
            }  # fmt: skip
            if entry.get("group") is not None and entry["group"] != group:
                row["kindGroupVersion"] = [entry["group"], entry["version"]]
    return list(rows.values())


def kind_of(entry: dict[str, Any], group: str, version: str) -> list[str]:
    return [entry.get("group", group), entry.get("version", version), entry["kind"]]


if __name__ == "__main__":
    main()
