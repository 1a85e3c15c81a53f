"""Strategy of CustomResourceDefinition: defaults, server-owned fields and validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from herder.engine.apiserver.crds.status import CLEANUP, set_condition
from herder.engine.apiserver.crds.validation import check_approval, check_change, check_definition, check_status
from herder.engine.apiserver.registry.strategy import Context, Strategy
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import Object

_KNOWN_FORMATS = frozenset((
    "bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5",
    "isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration",
    "datetime", "date-time", "int32", "int64", "float", "double", "k8s-short-name", "k8s-long-name",
    "k8s-label-key", "k8s-label-value",
))  # fmt: skip


class DefinitionStrategy(Strategy):
    """Strategy of CustomResourceDefinition."""

    unconditional_update = False

    def default(self, obj: Object, context: Context) -> None:
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return
        names = spec.get("names")
        if isinstance(names, dict) and names.get("kind"):
            names["singular"] = names.get("singular") or names["kind"].lower()
            names["listKind"] = names.get("listKind") or names["kind"] + "List"
        conversion = spec.get("conversion") or {"strategy": "None"}
        spec["conversion"] = conversion
        service = ((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service")
        if service:
            service.setdefault("port", 443)

    def prepare_create(self, obj: Object, context: Context) -> None:
        obj["status"] = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}}
        _add_stored_version(obj)

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        if context.subresource != "status":
            obj["status"] = dict(old.get("status") or {})
            _add_stored_version(obj)

    def prepare_delete(self, obj: Object, context: Context) -> None:
        """Add the finalizer that keeps the CRD until its instances are deleted."""
        finalizers = obj["metadata"].setdefault("finalizers", [])
        if CLEANUP not in finalizers:
            finalizers.append(CLEANUP)
        message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
        now = context.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        set_condition(obj, "Terminating", "True", "InstanceDeletionPending", message, now=now)

    def validate(self, obj: Object, context: Context) -> Iterable[FieldError]:
        if context.subresource == "status":
            yield from check_status(obj)
            return
        yield from check_definition(obj)
        if not (obj.get("metadata") or {}).get("resourceVersion"):  # an update is checked against the old object
            yield from check_approval(obj, None)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Iterable[FieldError]:
        if context.subresource != "status":
            yield from check_change(obj, old)

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        before = set(_formats(old)) if old else set()
        return [f'unrecognized format "{name}"' for name in _formats(obj) if name not in before]


def _add_stored_version(crd: Object) -> None:
    """Add the storage version to storedVersions. Older versions stay there until a migration removes them."""
    stored = crd["status"].get("storedVersions") or []
    for version in (crd.get("spec") or {}).get("versions") or ():
        if version.get("storage"):
            if version.get("name") not in stored:
                crd["status"]["storedVersions"] = [*stored, version.get("name")]
            return


def _formats(crd: Object) -> Iterator[str]:
    for version in (crd.get("spec") or {}).get("versions") or ():
        yield from _unknown_formats((version.get("schema") or {}).get("openAPIV3Schema"))


def _unknown_formats(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    name = schema.get("format")
    if isinstance(name, str) and name and name.replace("-", "") not in _KNOWN_FORMATS and name not in _KNOWN_FORMATS:
        yield name
    for field in ("items", "additionalProperties", "not"):
        yield from _unknown_formats(schema.get(field))
    for field in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(field) or ():
            yield from _unknown_formats(inner)
    for inner in (schema.get("properties") or {}).values():
        yield from _unknown_formats(inner)
