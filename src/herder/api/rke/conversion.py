"""Convert objects that were exported from Rancher to objects that this manager accepts.

References to objects of the other manager, its finalizers, its own annotations and one-time operations are dropped:
they would delete the objects, keep them forever, or repeat an operation.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.identity.tenancy.secrets import ACCOUNT_TOKEN_TYPE, GENERATED_NAME, ISSUED_TYPES
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.credentials import CREATED_BY, CREATOR
from herder.api.machines.kinds import CONFIG_GROUP
from herder.api.management.crds import PROVISIONING_CLUSTER_CRD
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.names import MANAGEMENT_NAME
from herder.api.rke import operations
from herder.api.rke.admission.cluster import validate
from herder.api.rke.fields.rows import Effect, Row
from herder.api.rke.fields.table import TABLE, distribution_of
from herder.engine.meta.kinds import Object
from herder.engine.schema import CompiledSchema, compile_schema

_SERVER_FIELDS = {
    "uid": "the API server assigns it",
    "resourceVersion": "the API server assigns it",
    "generation": "the API server assigns it",
    "creationTimestamp": "the API server assigns it",
    "deletionTimestamp": "the API server assigns it",
    "deletionGracePeriodSeconds": "the API server assigns it",
    "selfLink": "removed from Kubernetes",
    "managedFields": "the API server records new managers",
    "ownerReferences": "the owner exists only in the other manager; the object would be deleted at once",
    "finalizers": "only the other manager would remove them; the object could never be deleted",
}
_QUIET = ("uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields")
"""Fields of every export, which need no line in the report."""

_FOREIGN_MARKS = re.compile(
    r"(objectset\.rio\.cattle\.io|lifecycle\.cattle\.io|authz\.management\.cattle\.io|management\.cattle\.io"
    r"|cattle\.io/timestamp|kubectl\.kubernetes\.io/last-applied-configuration)(/.*|$)"
)
_FOREIGN_NAMES = frozenset({CREATOR, CREATED_BY, MANAGEMENT_NAME, "field.cattle.io/creatorRequestUUID"})
_FOREIGN_MARK = "written by the other manager"
_OPERATION = "a one-time operation, which would run again; request it after the import"
_UNKNOWN = "this manager has no such field"
_GENERATED = "the manager generates it"
_STATUS = "controllers report it"
_NAMESPACE = ("", "Namespace")
_KEPT_KINDS = frozenset(
    {
        _NAMESPACE,
        (SECRET.group, SECRET.kind),
        (CONFIG_MAP.group, CONFIG_MAP.kind),
        (PROVISIONING_CLUSTER.group, PROVISIONING_CLUSTER.kind),
    }
)
_GENERATED_SECRET = re.compile(GENERATED_NAME)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    obj: str  # kind and name
    path: str  # empty: the whole object
    text: str


@dataclass(slots=True)
class Conversion:
    """Converted objects, what was dropped, and what the remaining fields do."""

    objects: list[Object] = field(default_factory=list)
    dropped: list[Finding] = field(default_factory=list)
    fields: list[Finding] = field(default_factory=list)
    refused: list[Finding] = field(default_factory=list)


def convert(documents: Iterable[Any]) -> Conversion:
    """Convert exported objects; Lists are flattened. Raises ValueError for a document that is no object."""
    result = Conversion()
    for obj in _flattened(documents):
        _convert(copy.deepcopy(obj), result)
    return result


def _flattened(documents: Iterable[Any]) -> Iterator[Object]:
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, dict) or not document.get("kind") or not document.get("apiVersion"):
            raise ValueError(f"document {number}: must be a Kubernetes object with apiVersion and kind")
        if isinstance(document.get("items"), list):
            yield from _flattened(document["items"])
        elif not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
            raise ValueError(f"document {number}: metadata.name: required")
        else:
            yield document


def _convert(obj: Object, result: Conversion) -> None:
    name = f"{obj['kind']} {obj['metadata']['name']}"
    if reason := _unwanted(obj):
        result.dropped.append(Finding(name, "", reason))
        return
    result.dropped += [Finding(name, path, reason) for path, reason in _clean(obj)]
    result.objects.append(obj)
    if _group_kind(obj) == (PROVISIONING_CLUSTER.group, PROVISIONING_CLUSTER.kind):
        refused = {error.field: error.body for error in validate(obj, None)}
        for path in _leaves(obj.get("spec") or {}, "spec"):
            why = _refusal(refused, path)
            (result.refused if why else result.fields).append(
                Finding(name, path, why or effect_of(path, distribution_of(obj)))
            )


# --- objects --------------------------------------------------------------------------------------------------------


def _group_kind(obj: Object) -> tuple[str, str]:
    return str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"])


def _unwanted(obj: Object) -> str:
    """Why an object is not converted; empty if it is."""
    group, kind = _group_kind(obj)
    if (group, kind) not in _KEPT_KINDS and group != CONFIG_GROUP:
        return "herder creates its own; users and roles: herder users create, herder grant"
    if (group, kind) != (SECRET.group, SECRET.kind):
        return ""
    type_, name = obj.get("type") or "", str(obj["metadata"]["name"])
    is_issued = type_ == ACCOUNT_TOKEN_TYPE or type_ in ISSUED_TYPES or _GENERATED_SECRET.search(name)
    return f"{_GENERATED}: a credential of the other manager" if is_issued else ""


def _clean(obj: Object) -> Iterator[tuple[str, str]]:
    """Remove what must not be copied, and yield path and reason of each removed field."""
    metadata = obj["metadata"]
    for name, reason in _SERVER_FIELDS.items():
        found = metadata.pop(name, None)
        if found and name not in _QUIET:
            yield from _removed_metadata(name, found, reason)
    for section in ("annotations", "labels"):
        marks = metadata.get(section) or {}
        for mark in sorted(marks):
            if mark in _FOREIGN_NAMES or _FOREIGN_MARKS.match(mark):
                del marks[mark]
                yield f"metadata.{section}[{mark}]", _FOREIGN_MARK
        if not marks:
            metadata.pop(section, None)
    if obj.pop("status", None):
        yield "status", _STATUS
    if _group_kind(obj) == (PROVISIONING_CLUSTER.group, PROVISIONING_CLUSTER.kind):
        yield from _clean_cluster(obj)


def _removed_metadata(name: str, found: Any, reason: str) -> Iterator[tuple[str, str]]:
    if name == "finalizers":
        yield from ((f"metadata.finalizers[{each}]", reason) for each in found)
    elif name == "ownerReferences":
        yield from ((f"metadata.ownerReferences[{each.get('kind')} {each.get('name')}]", reason) for each in found)
    else:
        yield f"metadata.{name}", reason


def _clean_cluster(cluster: Object) -> Iterator[tuple[str, str]]:
    config = (cluster.get("spec") or {}).get("rkeConfig") or {}
    for operation in operations.KINDS:
        if config.pop(operation, None):
            yield f"spec.rkeConfig.{operation}", _OPERATION
    if (cluster.get("spec") or {}).pop(operations.AGENTS, None):
        yield f"spec.{operations.AGENTS}", _OPERATION
    for warning in _cluster_schema().prune(cluster):
        yield warning.removeprefix('unknown field "').removesuffix('"'), _UNKNOWN


@cache
def _cluster_schema() -> CompiledSchema:
    return compile_schema(PROVISIONING_CLUSTER_CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


# --- fields ---------------------------------------------------------------------------------------------------------


def effect_of(path: str, distribution: str) -> str:
    """What a field of a Cluster does here: from the field table, and its description in the schema."""
    row = _row(re.sub(r"\[\d+\]", "[]", path))
    effect = row.effects.get(distribution) if row else None
    if row is not None and effect is Effect.NONE:
        return f"no effect: {row.reason}"
    done = [effect.value] if effect is not None else []
    return "; ".join([*done, *(text for text in (row.remark if row else "", _description(path)) if text)])


def _row(path: str) -> Row | None:
    """The row of a field, or of the subtree that it is in."""
    return next((row for row in TABLE if path == row.path or (row.subtree and path.startswith(row.path))), None)


def _description(path: str) -> str:
    node: Any = _cluster_schema().schema
    for name in path.replace("[", ".[").split("."):
        properties = node.get("properties") or {}
        node = node.get("items") if name.startswith("[") else properties.get(name) or node.get("additionalProperties")
        if not isinstance(node, dict):
            return ""  # below a field with any content, such as a distribution's configuration
    return " ".join(str(node.get("description") or "").split())


def _leaves(value: Any, path: str) -> Iterator[str]:
    """Fields with a value. Maps and lists without objects are one field."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}")
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for position, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{position}]")
    elif value not in (None, "", [], {}, False):
        yield path


def _refusal(refused: dict[str, str], path: str) -> str:
    """Why admission refuses a field, or the object that it is in."""
    for field_, reason in refused.items():
        if path == field_ or path.startswith((f"{field_}.", f"{field_}[")) or field_.startswith(f"{path}."):
            return reason
    return ""
