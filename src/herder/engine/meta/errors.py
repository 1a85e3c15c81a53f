"""Kubernetes API errors: exceptions that correspond to `Status` objects.

Server code raises a `StatusError` to reject a request; the client raises the same classes for responses, so a caller
need not know whether the server is in this process. Messages are those of apimachinery's `errors` and `field` packages,
because users and programs match on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.meta.kinds import GroupKind, GroupResource, Object
from herder.engine.meta.printable import printable

_MAX_MESSAGE_LENGTH, _MAX_REASON_LENGTH = 8192, 256  # limits for a Status from a server


class StatusError(Exception):
    """A failed API call. Subclasses set `code` and `reason`; `details` are the details of the Status or None."""

    code = 500
    reason = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        details: Object | None = None,
        code: int | None = None,
        reason: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.headers = headers or {}
        if code is not None:
            self.code = code
        if reason is not None:
            self.reason = reason

    def to_status(self) -> Object:
        status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status

    @staticmethod
    def from_status(status: Object, http_code: int) -> StatusError:
        """Return the exception for a Status by its reason, or by the HTTP code if it has none.

        The server may be a compromised workload cluster: the body can be any JSON, and its message ends up in
        conditions and logs.
        """
        code, reason, message, details = (status.get(part) for part in ("code", "reason", "message", "details"))
        code = code if type(code) is int and 400 <= code < 600 else http_code
        reason = printable(reason, _MAX_REASON_LENGTH) if isinstance(reason, str) else ""
        message = printable(message, _MAX_MESSAGE_LENGTH) if isinstance(message, str) else ""
        kind = _BY_REASON.get(reason) or (_BY_CODE.get(code, StatusError) if not reason else StatusError)
        return kind(message, details=details if isinstance(details, dict) else None, code=code, reason=reason)


class BadRequest(StatusError):
    code, reason = 400, "BadRequest"


class Unauthorized(StatusError):
    code, reason = 401, "Unauthorized"


class Forbidden(StatusError):
    code, reason = 403, "Forbidden"


class NotFound(StatusError):
    code, reason = 404, "NotFound"


class MethodNotAllowed(StatusError):
    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(StatusError):
    code, reason = 406, "NotAcceptable"


class AlreadyExists(StatusError):
    code, reason = 409, "AlreadyExists"


class Conflict(StatusError):
    code, reason = 409, "Conflict"


class Expired(StatusError):
    code, reason = 410, "Expired"


class RequestEntityTooLarge(StatusError):
    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(StatusError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(StatusError):
    code, reason = 422, "Invalid"


class TooManyRequests(StatusError):
    code, reason = 429, "TooManyRequests"


class InternalError(StatusError):
    code, reason = 500, "InternalError"


class ServiceUnavailable(StatusError):
    code, reason = 503, "ServiceUnavailable"


class ServerTimeout(StatusError):
    code, reason = 500, "ServerTimeout"


class Timeout(StatusError):
    code, reason = 504, "Timeout"


_KINDS: tuple[type[StatusError], ...] = (
    BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, NotAcceptable, AlreadyExists, Conflict, Expired,
    RequestEntityTooLarge, UnsupportedMediaType, Invalid, TooManyRequests, InternalError, ServiceUnavailable,
    ServerTimeout, Timeout,
)  # fmt: skip
_BY_REASON = {kind.reason: kind for kind in _KINDS} | {"Gone": Expired}
_BY_CODE = {kind.code: kind for kind in reversed(_KINDS)}


def resource_details(resource: GroupResource, name: str = "") -> Object:
    details: Object = {}
    if name:
        details["name"] = name
    if resource.group:
        details["group"] = resource.group
    if resource.resource:
        details["kind"] = resource.resource
    return details


def not_found(resource: GroupResource, name: str) -> NotFound:
    return NotFound(f'{resource} "{name}" not found', details=resource_details(resource, name))


def already_exists(resource: GroupResource, name: str) -> AlreadyExists:
    return AlreadyExists(f'{resource} "{name}" already exists', details=resource_details(resource, name))


def conflict(resource: GroupResource, name: str, why: str) -> Conflict:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Conflict(message, details=resource_details(resource, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def forbidden(resource: GroupResource, name: str, why: str) -> Forbidden:
    subject = f'{resource} "{name}"' if name else str(resource)
    return Forbidden(f"{subject} is forbidden: {why}", details=resource_details(resource, name))


# --- field errors -----------------------------------------------------------------------------------------------


ERROR_BYTES = 256 << 10
"""Maximum size of all errors listed in one response."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """Validation error of one field. `kind` is a FieldValue* cause reason."""

    kind: str
    field: str
    body: str  # the message after "<field>: "

    def __str__(self) -> str:
        return f"{self.field}: {self.body}" if self.field else self.body

    def cause(self) -> Object:
        return {"reason": self.kind, "message": self.body, "field": self.field}


def required(field: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", field, _with("Required value", detail))


def invalid_value(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, _with(f"Invalid value: {show(value)}", detail))


def not_supported(field: str, value: Any, supported: Sequence[Any]) -> FieldError:
    choices = ", ".join(f'"{item}"' if isinstance(item, str) else str(item) for item in supported)
    detail = f"supported values: {choices}" if supported else ""
    return FieldError("FieldValueNotSupported", field, _with(f"Unsupported value: {show(value)}", detail))


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {show(value)}")


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", field, _with("Forbidden", detail))


def too_long(field: str, limit: int) -> FieldError:
    unit = "byte" if limit == 1 else "bytes"
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} {unit}")


def too_many(field: str, actual: int, limit: int) -> FieldError:
    unit = "item" if limit == 1 else "items"
    return FieldError("FieldValueTooMany", field, f"Too many: {actual}: must have at most {limit} {unit}")


def not_found_value(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueNotFound", field, f"Not found: {show(value)}")


def show(value: Any) -> str:
    """Format a value as Go's field errors do: strings and objects as JSON, None as `null`."""
    if value is None:
        return "null"
    if isinstance(value, (str, bool, int, float, dict, list)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return str(value)


def _with(head: str, detail: str) -> str:
    return f"{head}: {detail}" if detail else head


def invalid(kind: GroupKind, name: str, errors: Iterable[FieldError]) -> Invalid:
    """Return an Invalid error. The list is limited: every key of a 3 MiB request can be invalid, and each error
    appears twice."""
    all_errors = list(errors)
    listed = _first_bytes(all_errors)
    distinct = list(dict.fromkeys(str(error) for error in listed))
    if len(listed) < len(all_errors):
        distinct.append(f"{len(all_errors) - len(listed)} more errors")
    message = distinct[0] if len(distinct) == 1 else "[" + ", ".join(distinct) + "]"
    details: Object = {"name": name} if name else {}
    if kind.group:
        details["group"] = kind.group
    if kind.kind:
        details["kind"] = kind.kind
    details["causes"] = [error.cause() for error in listed]
    return Invalid(f'{kind} "{name}" is invalid: {message}', details=details)


def _first_bytes(errors: list[FieldError]) -> list[FieldError]:
    """Return the first error and as many of the following as fit into the limit."""
    size = 0
    for position, error in enumerate(errors):
        size += len(error.field) + len(error.body)
        if position and size > ERROR_BYTES:
            return errors[:position]
    return errors
