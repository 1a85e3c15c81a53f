"""The rules that metadata of every object follows, whatever its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from herder.engine.apiserver.options import manager_problems
from herder.engine.apiserver.resources import Resource
from herder.engine.apiserver.scope import RequestContext
from herder.engine.meta import names
from herder.engine.meta.errors import (
    BadRequest,
    FieldError,
    forbidden_field,
    invalid_value,
    required,
    too_long,
)
from herder.engine.meta.kinds import Object

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"

_ANNOTATIONS_LIMIT = 256 << 10
_SUBRESOURCE_LIMIT = 256
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels and no look-alikes, so that no word appears by chance
_SUFFIX_LENGTH = 5
_GENERATED_LIMIT = 63 - _SUFFIX_LENGTH
_SIMPLE_LABEL = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_STANDARD_FINALIZERS = frozenset({"kubernetes", ORPHAN, FOREGROUND})
_METADATA = ("metadata", "apiVersion", "kind")
_BOOKKEEPING = (*_METADATA, "status")
_SYSTEM_FIELDS = ("creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


def metadata_of(obj: Object) -> Object:
    """The object's metadata, made where there is none."""
    found = obj.get("metadata")
    if not isinstance(found, dict):
        found = obj["metadata"] = {}
    return found


# --- before a create ----------------------------------------------------------------------------------------------


def settle_namespace(call: RequestContext, obj: Object) -> None:
    """An object without a namespace gets the request's; one with another is refused; cluster-scoped ones have none."""
    metadata = metadata_of(obj)
    wanted = call.namespace
    given = metadata.get("namespace") or ""
    if given == wanted:
        if not wanted:
            metadata.pop("namespace", None)
        return
    if not given:
        metadata["namespace"] = wanted
    elif not wanted:
        metadata.pop("namespace", None)
    else:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def wipe_system_fields(metadata: Object) -> None:
    for name in _SYSTEM_FIELDS:
        metadata.pop(name, None)


def generated_name(base: str, entropy: Callable[[int], bytes]) -> str:
    suffix = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in entropy(_SUFFIX_LENGTH))
    return base[:_GENERATED_LIMIT] + suffix


def without_repeated_owners(call: RequestContext, obj: Object, *, after_admission: bool = False) -> None:
    owners = metadata_of(obj).get("ownerReferences")
    if not isinstance(owners, list) or len(owners) < 2:
        return
    kept: dict[bytes, Any] = {}
    dropped: list[str] = []
    for owner in owners:
        spelled = msgspec.json.encode(owner, order="deterministic")
        if spelled in kept:
            dropped.append(str(owner.get("uid", "")))
        else:
            kept[spelled] = owner
    if dropped:
        metadata_of(obj)["ownerReferences"] = list(kept.values())
        listed = ", ".join(dropped)
        when = " after mutating admission happens" if after_admission else ""
        call.warn(
            f".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, "
            f"and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
            f"{listed}"
        )


# --- validation ---------------------------------------------------------------------------------------------------


def validate_metadata(metadata: Object, resource: Resource) -> Iterator[FieldError]:
    """What is wrong with metadata by itself, with the name as the kind has it."""
    yield from _validate_names(metadata, resource.strategy.name_check)
    yield from _validate_namespace(metadata, resource.namespaced)
    yield from _validate_lists(metadata)
    finalizers = metadata.get("finalizers")
    if finalizers:
        yield from _validate_finalizers(finalizers)


def validate_standard_finalizers(metadata: Object) -> Iterator[FieldError]:
    """Finalizers of built-in kinds are Kubernetes' own, or say whose they are."""
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid_value(f"metadata.finalizers[{index}]", finalizer, why)


def _validate_lists(metadata: Object) -> Iterator[FieldError]:
    yield from _validate_labels(metadata.get("labels") or {})
    yield from _validate_annotations(metadata.get("annotations") or {})
    owners = metadata.get("ownerReferences")
    if owners:
        yield from _validate_owners(owners)
    managed = metadata.get("managedFields")
    if managed:
        yield from validate_managed_fields(managed)


def _validate_names(metadata: Object, name_check: names.NameCheck) -> Iterator[FieldError]:
    generate = metadata.get("generateName")
    if generate:
        # A prefix may end in what a name may not end in: the suffix follows.
        for complaint in name_check(generate.rstrip("-.") or generate):
            yield invalid_value("metadata.generateName", generate, complaint)
    name = metadata.get("name")
    if not name:
        yield required("metadata.name", "name or generateName is required")
        return
    for complaint in name_check(name):
        yield invalid_value("metadata.name", name, complaint)


def _validate_namespace(metadata: Object, namespaced: bool) -> Iterator[FieldError]:
    namespace = metadata.get("namespace") or ""
    if not namespaced:
        if namespace:
            yield forbidden_field("metadata.namespace", "not allowed on this type")
    elif not namespace:
        yield required("metadata.namespace")
    else:
        for complaint in names.dns1123_label(namespace):
            yield invalid_value("metadata.namespace", namespace, complaint)


def _validate_labels(labels: dict[str, str]) -> Iterator[FieldError]:
    for key, value in labels.items():
        if not _SIMPLE_LABEL.match(key):
            for complaint in names.qualified_name(key):
                yield invalid_value("metadata.labels", key, complaint)
        if value and not _SIMPLE_LABEL.match(value):
            for complaint in names.label_value(value):
                yield invalid_value("metadata.labels", value, complaint)


def _validate_annotations(annotations: dict[str, str]) -> Iterator[FieldError]:
    size = 0
    for key, value in annotations.items():
        size += len(key) + len(value)
        if not _SIMPLE_LABEL.match(key):
            for complaint in names.qualified_name(key.lower()):
                yield invalid_value("metadata.annotations", key, complaint)
    if size * 4 > _ANNOTATIONS_LIMIT:  # may be too much once encoded
        size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        if size > _ANNOTATIONS_LIMIT:
            yield too_long("metadata.annotations", _ANNOTATIONS_LIMIT)


def _validate_owners(owners: list[Object]) -> Iterator[FieldError]:
    at = "metadata.ownerReferences"
    controller = ""
    for owner in owners:
        api_version, kind = owner.get("apiVersion") or "", owner.get("kind") or ""
        if not api_version.rpartition("/")[2] or api_version.count("/") > 1:
            yield invalid_value(f"{at}.apiVersion", api_version, "version must not be empty")
        for name, value in (("kind", kind), ("name", owner.get("name") or ""), ("uid", owner.get("uid") or "")):
            if not value:
                yield invalid_value(f"{at}.{name}", value, "must not be empty")
        if (api_version, kind) == ("v1", "Event"):
            yield invalid_value(at, owner, "/v1, Kind=Event is disallowed from being an owner")
        if owner.get("controller"):
            current = f"{kind}/{owner.get('name') or ''}"
            if controller:
                detail = 'Only one reference can have Controller set to true. Found "true" in references for '
                yield invalid_value(at, owners, f"{detail}{controller} and {current}")
                return  # each error quotes all owners: one of them says enough
            else:
                controller = current


def _validate_finalizers(finalizers: list[str]) -> Iterator[FieldError]:
    at = "metadata.finalizers"
    for finalizer in finalizers:
        for complaint in names.qualified_name(finalizer):
            yield invalid_value(at, finalizer, complaint)
    if ORPHAN in finalizers and FOREGROUND in finalizers:
        yield invalid_value(at, finalizers, f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set")


def validate_managed_fields(entries: list[Object]) -> Iterator[FieldError]:
    for index, entry in enumerate(entries):
        at = f"metadata.managedFields[{index}]"
        if entry.get("operation") not in ("Apply", "Update"):
            yield invalid_value(f"{at}.operation", entry.get("operation") or "", "must be `Apply` or `Update`")
        fields_type = entry.get("fieldsType") or ""
        if fields_type and fields_type != "FieldsV1":
            yield invalid_value(f"{at}.fieldsType", fields_type, "must be `FieldsV1`")
        yield from manager_problems(entry.get("manager") or "", f"{at}.manager")
        if len((entry.get("subresource") or "").encode()) > _SUBRESOURCE_LIMIT:
            yield too_long(f"{at}.subresource", _SUBRESOURCE_LIMIT)


# --- on updates ---------------------------------------------------------------------------------------------------


def inherit_system_fields(metadata: Object, old: Object) -> None:
    """What an update can neither set nor take away comes from the stored object."""
    metadata.pop("selfLink", None)
    if not metadata.get("uid") and old.get("uid"):
        metadata["uid"] = old["uid"]
    if old.get("creationTimestamp"):
        metadata["creationTimestamp"] = old["creationTimestamp"]
    if old.get("deletionTimestamp"):
        metadata["deletionTimestamp"] = old["deletionTimestamp"]
    if old.get("deletionGracePeriodSeconds") is not None and metadata.get("deletionGracePeriodSeconds") is None:
        metadata["deletionGracePeriodSeconds"] = old["deletionGracePeriodSeconds"]


def validate_metadata_update(metadata: Object, old: Object) -> Iterator[FieldError]:
    """What is wrong with a change of metadata; lists that are wrong by themselves are told here once more."""
    if old.get("deletionTimestamp"):
        new = sorted(set(metadata.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if new:
            shown = "[]string{" + ", ".join(f'"{name}"' for name in new) + "}"
            detail = "no new finalizers can be added if the object is being deleted, found new finalizers "
            yield forbidden_field("metadata.finalizers", detail + shown)
    if not metadata.get("resourceVersion"):
        yield invalid_value("metadata.resourceVersion", "", "must be specified for an update")
    for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        value, before = metadata.get(name), old.get(name)
        if value != before and (value or before):
            yield invalid_value(f"metadata.{name}", value if value is not None else "", "field is immutable")
    yield from _validate_lists(metadata)


def count_generation(obj: Object, old: Object | None, *, counts: bool, with_status: bool = False) -> None:
    """`metadata.generation` moves when anything but metadata and status changes; or status too, where that is nothing
    special."""
    metadata = obj["metadata"]
    if old is None:
        if counts:
            metadata["generation"] = 1
        else:
            metadata.pop("generation", None)
        return
    before = old["metadata"].get("generation")
    if before is None:
        metadata.pop("generation", None)
    else:
        metadata["generation"] = before
    ignored = _METADATA if with_status else _BOOKKEEPING
    if counts and _without(obj, ignored) != _without(old, ignored):
        metadata["generation"] = (before or 0) + 1


def _without(obj: Object, names: tuple[str, ...]) -> Object:
    return {key: value for key, value in obj.items() if key not in names}
