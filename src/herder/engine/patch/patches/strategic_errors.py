"""Errors of strategic merge patches and their status codes."""

from __future__ import annotations

from typing import Any

from herder.engine.meta.errors import StatusError
from herder.engine.patch.goformat import type_name

BAD_PRIMITIVE_LIST = "invalid patch format of primitive list"
BAD_RETAIN_KEYS = "invalid patch format of retainKeys"
BAD_SET_ELEMENT_ORDER = "invalid patch format of setElementOrder list"
NO_LIST_OF_LISTS = "lists of lists are not supported"


class StrategicPatchError(StatusError):
    """A malformed directive: 400, or 422 for unsupported operations."""

    code, reason = 400, "BadRequest"

    @classmethod
    def list_of_lists(cls) -> StrategicPatchError:
        message = "the server rejected our request due to an error in our request"
        cause = {"reason": "FieldValueInvalid", "message": NO_LIST_OF_LISTS, "field": "patch"}
        return cls(message, code=422, reason="Invalid", details={"causes": [cause]})


def failed(why: str) -> StrategicPatchError:
    """Return an error that kube-apiserver reports with code 500. The message is the same, but the code is 400, since
    bad input is the client's fault."""
    return StrategicPatchError(why)


def go_kind(value: Any) -> str:
    return "%!s(<nil>)" if value is None else type_name(value)
