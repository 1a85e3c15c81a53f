"""Parse and validate CreateOptions, UpdateOptions, PatchOptions, ListOptions and DeleteOptions.

Options come from the query or, for deletes, from the body. Error messages are those of kube-apiserver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from herder.engine.apiserver.request.body import read_body
from herder.engine.meta.errors import (
    BadRequest,
    FieldError,
    RequestEntityTooLarge,
    StatusError,
    forbidden_field,
    invalid,
    invalid_value,
    not_supported,
    required,
    show,
    too_long,
)
from herder.engine.meta.kinds import GroupKind, GroupVersionKind, Object
from herder.engine.meta.selectors import (
    EVERYTHING,
    FieldSelector,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)
from herder.engine.wire import Query, Request

META = "meta.k8s.io"
_FIELD_VALIDATION = ("", "Ignore", "Strict", "Warn")
_POLICIES = ("Foreground", "Background", "Orphan")
_MAX_MANAGER = 128
_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of create, update and patch."""

    kind: str
    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool | None = None

    def as_kind(self, kind: str) -> Object:
        """Return the options as an AdmissionReview contains them."""
        shown: Object = {"kind": kind, "apiVersion": f"{META}/v1"}
        if self.dry_run:
            shown["dryRun"] = ["All"]
        if self.field_manager:
            shown["fieldManager"] = self.field_manager
        if self.field_validation:
            shown["fieldValidation"] = self.field_validation
        return shown


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of list and watch."""

    labels: LabelSelector
    fields: FieldSelector
    limit: int
    continue_token: str
    resource_version: str
    match: str
    watch: bool
    allow_bookmarks: bool
    timeout: int | None
    send_initial: bool | None


@dataclass(slots=True)
class DeleteOptions:
    """Options of delete and deletecollection."""

    grace_period: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: str | None = None
    orphan_dependents: bool | None = None
    dry_run: bool = False

    def as_object(self) -> Object:
        """Return the options as an AdmissionReview contains them."""
        shown: Object = {"kind": "DeleteOptions", "apiVersion": f"{META}/v1"}
        if self.grace_period is not None:
            shown["gracePeriodSeconds"] = self.grace_period
        preconditions = {"uid": self.uid, "resourceVersion": self.resource_version}
        if any(value is not None for value in preconditions.values()):
            shown["preconditions"] = {name: value for name, value in preconditions.items() if value is not None}
        if self.orphan_dependents is not None:
            shown["orphanDependents"] = self.orphan_dependents
        if self.propagation is not None:
            shown["propagationPolicy"] = self.propagation
        if self.dry_run:
            shown["dryRun"] = ["All"]
        return shown


# --- create, update, patch ----------------------------------------------------------------------------------------

_PLAIN = {kind: WriteOptions(kind) for kind in ("CreateOptions", "UpdateOptions", "PatchOptions")}


def write_options(query: Query, kind: str, *, applies: bool = False) -> WriteOptions:
    """Parse and validate the options of a create, update or patch; `applies` is server-side apply."""
    if not query.items and not applies:
        return _PLAIN[kind]
    manager, validation = query.get("fieldManager"), query.get("fieldValidation")
    force = _boolean(query.get("force")) if "force" in query else None
    problems: list[FieldError] = []
    if kind == "PatchOptions":
        if applies and not manager:
            problems.append(required("fieldManager", "is required for apply patch"))
        if not applies and force is not None:
            problems.append(forbidden_field("force", "may not be specified for non-apply patch"))
    problems += manager_problems(manager, "fieldManager")
    dry_run = query.all("dryRun")
    problems += _dry_run_problems(dry_run)
    if validation not in _FIELD_VALIDATION:
        problems.append(not_supported("fieldValidation", validation, _FIELD_VALIDATION))
    if problems:
        raise invalid(GroupKind(META, kind), "", problems)
    return WriteOptions(kind, bool(dry_run), manager, validation or "Warn", force)


def manager_problems(manager: str, path: str) -> list[FieldError]:
    """Validate a field manager."""
    if manager.isprintable() and len(manager) * 4 <= _MAX_MANAGER:
        return []
    problems = []
    if len(manager.encode()) > _MAX_MANAGER:
        problems.append(too_long(path, _MAX_MANAGER))
    position = 0
    for character in manager:
        if not character.isprintable():
            detail = f"invalid character U+{ord(character):04X} (at position {position})"
            problems.append(invalid_value(path, manager, detail))
        position += len(character.encode())
    return problems


def _dry_run_problems(values: list[str]) -> list[FieldError]:
    if all(value == "All" for value in values):
        return []
    return [not_supported("dryRun", values, ("All",))]


# --- list and watch -----------------------------------------------------------------------------------------------


def list_options(query: Query, *, watch: bool = False) -> ListOptions:
    """Parse and validate the options of a list or watch."""
    try:
        labels = parse_label_selector(query.get("labelSelector")) if "labelSelector" in query else EVERYTHING
        fields = parse_field_selector(query.get("fieldSelector"))
    except SelectorError as error:
        raise BadRequest(str(error)) from None
    limit = _integer(query.get("limit")) if "limit" in query else 0
    timeout = _integer(query.get("timeoutSeconds")) if "timeoutSeconds" in query else None
    initial = _boolean(query.get("sendInitialEvents")) if "sendInitialEvents" in query else None
    options = ListOptions(
        labels=labels,
        fields=fields,
        limit=max(limit, 0),
        continue_token=query.get("continue"),
        resource_version=query.get("resourceVersion"),
        match=query.get("resourceVersionMatch"),
        watch=watch,
        allow_bookmarks=_boolean(query.get("allowWatchBookmarks")),
        timeout=timeout,
        send_initial=initial,
    )
    problems = _watch_problems(options) if watch else _list_problems(options)
    if problems:
        raise invalid(GroupKind(META, "ListOptions"), "", problems)
    return options


def _list_problems(options: ListOptions) -> list[FieldError]:
    at, match = "resourceVersionMatch", options.match
    problems = []
    if match:
        if not options.resource_version:
            problems.append(forbidden_field(at, f"{at} is forbidden unless resourceVersion is provided"))
        if options.continue_token:
            problems.append(forbidden_field(at, f"{at} is forbidden when continue is provided"))
        if match not in ("Exact", "NotOlderThan"):
            problems.append(not_supported(at, match, ("Exact", "NotOlderThan", "")))
        if match == "Exact" and options.resource_version == "0":
            problems.append(forbidden_field(at, f'{at} "exact" is forbidden for resourceVersion "0"'))
    if options.send_initial is not None:
        problems.append(forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    return problems


def _watch_problems(options: ListOptions) -> list[FieldError]:
    at, match = "resourceVersionMatch", options.match
    problems = []
    if options.send_initial is not None and match != "NotOlderThan":
        problems.append(forbidden_field(at, f"sendInitialEvents requires setting {at} to NotOlderThan"))
    if not match and options.send_initial is None and options.resource_version in ("", "0"):
        # Such a watch starts with the current state, as if sendInitialEvents had been set.
        if options.continue_token:
            problems.append(forbidden_field(at, f"{at} is forbidden when continue is provided"))
    elif match:
        if options.send_initial is None:
            problems.append(forbidden_field(at, f"{at} is forbidden for watch unless sendInitialEvents is provided"))
        if match != "NotOlderThan":
            problems.append(not_supported(at, match, ("NotOlderThan",)))
        if options.continue_token:
            problems.append(forbidden_field(at, f"{at} is forbidden when continue is provided"))
    return problems


# --- delete -------------------------------------------------------------------------------------------------------


_DELETE_BYTES = 64 << 10


def delete_options(request: Request) -> DeleteOptions:
    """Parse and validate DeleteOptions, from the body or the query."""
    if request.body:
        if len(request.body) > _DELETE_BYTES:
            raise RequestEntityTooLarge(f"Request entity too large: limit of DeleteOptions is {_DELETE_BYTES}")
        try:
            given = read_body(request, "DeleteOptions", GroupVersionKind(META, "v1", "DeleteOptions")).value
        except BadRequest as error:
            message = error.message.removeprefix(
                "the object provided is unrecognized (must be of type DeleteOptions): "
            )
            raise BadRequest(message.rpartition(" (")[0] or message) from None
        return delete_options_from(given)
    query = request.query
    if not query.items:
        return DeleteOptions()
    return _validated_delete_options(
        DeleteOptions(
            grace_period=_integer(query.get("gracePeriodSeconds")) if "gracePeriodSeconds" in query else None,
            uid=query.get("uid") or None,
            resource_version=query.get("resourceVersion") or None,
            propagation=query.get("propagationPolicy") if "propagationPolicy" in query else None,
            orphan_dependents=_boolean(query.get("orphanDependents")) if query.get("orphanDependents") else None,
        ),
        query.all("dryRun"),
    )


def delete_options_from(given: Any) -> DeleteOptions:
    """Parse DeleteOptions of a body or an Eviction: first the types, as Go's decoder does, then the values."""
    if given is None:
        return DeleteOptions()
    if not isinstance(given, dict):
        raise BadRequest("decoded object cannot be converted to DeleteOptions")
    if given.get("kind") not in (None, "", "DeleteOptions"):
        raise BadRequest(
            f'no kind "{given["kind"]}" is registered for version "{given.get("apiVersion") or META + "/v1"}" '
            'in scheme "meta"'
        )
    preconditions = _typed(given, "preconditions", dict, "v1.Preconditions") or {}
    options = DeleteOptions(
        grace_period=_typed(given, "gracePeriodSeconds", int, "int64"),
        uid=_typed(preconditions, "uid", str, "types.UID"),
        resource_version=_typed(preconditions, "resourceVersion", str, "string"),
        propagation=_typed(given, "propagationPolicy", str, "v1.DeletionPropagation"),
        orphan_dependents=_typed(given, "orphanDependents", bool, "bool"),
    )
    dry_run = _typed(given, "dryRun", list, "[]string") or []
    for value in dry_run:
        if not isinstance(value, str):
            raise _wrong_type(value, "dryRun", "string")
    return _validated_delete_options(options, dry_run)


def _typed(given: Object, name: str, wanted: type, go_type: str) -> Any:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise _wrong_type(value, name, go_type)
    return value


def _wrong_type(value: Any, name: str, go_type: str) -> BadRequest:
    kinds = {str: "string", int: "number", float: "number", bool: "bool", list: "array", dict: "object"}
    kind = kinds.get(type(value), "null")
    return BadRequest(f"json: cannot unmarshal {kind} into Go struct field DeleteOptions.{name} of type {go_type}")


def _validated_delete_options(options: DeleteOptions, dry_run: list[str]) -> DeleteOptions:
    problems = []
    policy = options.propagation
    if options.orphan_dependents is not None and policy is not None:
        problems.append(
            invalid_value("propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set")
        )
    if policy is not None and policy not in _POLICIES:
        problems.append(not_supported("propagationPolicy", policy, (*_POLICIES, "nil")))
    problems += _dry_run_problems(dry_run)
    if problems:
        raise invalid(GroupKind(META, "DeleteOptions"), "", problems)
    options.dry_run = bool(dry_run)
    return options


# --- values -------------------------------------------------------------------------------------------------------


def check_timeout(query: Query) -> None:
    """Validate the timeout parameter. It has no effect here: no request takes that long."""
    if "timeout" not in query or not query.get("timeout"):
        return
    from herder.engine.schema.cel.times import parse_duration

    try:
        parse_duration(query.get("timeout"))
    except ValueError:
        shown = show(query.get("timeout"))
        raise BadRequest(f"invalid timeout specified in the request URL - time: invalid duration {shown}") from None


def _integer(text: str) -> int:
    try:
        if text.strip() != text or "_" in text or not text.isascii():
            raise ValueError
        value = int(text)
    except ValueError:
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None
    if not -_MAX_INT64 - 1 <= value <= _MAX_INT64:
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": value out of range')
    return value


def _boolean(text: str) -> bool:
    """Anything but these values is true, like in Go's conversion of query parameters."""
    return text not in ("", "false", "0")


def parse_revision(text: str) -> int | None:
    """Parse a resourceVersion; None if it is empty. Raises ValueError with Go's message if it is not a number."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise ValueError(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    value = int(text)
    if value >= 2**64:
        raise ValueError(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": value out of range'
        )
    return value


def invalid_revision(error: ValueError) -> StatusError:
    return BadRequest(str(error))
