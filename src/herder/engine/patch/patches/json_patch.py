"""JSON Patch (RFC 6902) with the behavior, limits and messages of the library that kube-apiserver uses.

Clients rely on that library's deviations from the RFC: `replace` of an absent object key adds it, negative indices
count from the end, `test` of an absent key against null passes, and a path is split at slashes even if it does not
start with one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from herder.engine.meta.errors import BadRequest, Invalid, RequestEntityTooLarge
from herder.engine.patch.depth import refuse_too_deep

MAX_OPERATIONS = 10_000
MAX_COPIED_BYTES = 3 * 1024 * 1024

_REJECTED = "the server rejected our request due to an error in our request"


class JsonPatchError(Invalid):
    """An operation that does not apply. The message is kube-apiserver's, which is generic; `why` has the details."""

    def __init__(self, why: str, path: str = "") -> None:
        cause = {"reason": "FieldValueInvalid", "message": why, "field": path}
        super().__init__(_REJECTED, details={"causes": [cause]})
        self.why = why


class JsonPatchTestFailed(JsonPatchError):
    """A `test` operation found a different value."""


class JsonPatchUndecodable(BadRequest):
    """The patch is not a list of operations."""


class JsonPatchTooLarge(RequestEntityTooLarge):
    """The patch has more operations than kube-apiserver allows."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
        )


class _Missing(Exception):
    """Error inside an operation; its text ends the message."""


_ABSENT: Any = object()
_INTEGER = re.compile(r"[+-]?[0-9]+")


@refuse_too_deep
def apply_json_patch(doc: Any, ops: Any) -> Any:
    """Apply all operations, or raise the error of the first that fails. `doc` and `ops` are not modified, so that a
    patch can be retried on a newer object."""
    check_operations(ops)
    state = _PatchState(copy_json(doc))
    for op in ops or ():
        state.apply(op)
    return state.doc


def check_operations(ops: Any) -> None:
    """Reject what does not decode into operations, before any of them runs."""
    if ops is None:
        return
    if not isinstance(ops, list):
        raise _undecodable(ops, "Go value of type []handlers.jsonPatchOp")
    for op in ops:
        if op is None:
            continue
        if not isinstance(op, dict):
            raise _undecodable(op, "Go value of type handlers.jsonPatchOp")
        for name in ("op", "path", "from"):
            if not isinstance(op.get(name, ""), str | None):
                raise _undecodable(op[name], f"Go struct field jsonPatchOp.{name} of type string")
    if len(ops) > MAX_OPERATIONS:
        raise JsonPatchTooLarge(len(ops))


def _undecodable(value: Any, target: str) -> JsonPatchUndecodable:
    return JsonPatchUndecodable(f"error decoding patch: json: cannot unmarshal {json_kind(value)} into {target}")


def json_kind(value: Any) -> str:
    """Return the kind of a decoded value as Go's decoder names it in errors."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "number"


def copy_json(value: Any) -> Any:
    """Deep-copy decoded JSON. Encoding and decoding is several times faster than walking it."""
    return msgspec.json.decode(msgspec.json.encode(value)) if isinstance(value, dict | list) else value


class _PatchState:
    """A document during the application of operations."""

    def __init__(self, doc: Any) -> None:
        self.doc = doc
        self._copied_bytes = 0

    def apply(self, op: dict[str, Any] | None) -> None:
        op = op or {}
        kind = op.get("op")
        run = _OPERATIONS.get(kind or "")
        if run is None:
            raise JsonPatchError(f"Unexpected kind: {'unknown' if kind is None else kind}")
        try:
            run(self, op)
        except _Missing as error:
            raise JsonPatchError(str(error), op.get("path") or "") from None

    def _add(self, op: dict[str, Any]) -> None:
        path = _path(op, "add operation failed to decode path: missing value")
        container, key = self._find(path)
        if container is None:
            raise _Missing(f'add operation does not apply: doc is missing path: "{path}": missing value')
        _insert(container, key, copy_json(op.get("value")), f"error in add for path: '{path}'")

    def _remove(self, op: dict[str, Any]) -> None:
        path = _path(op, "remove operation failed to decode path: missing value")
        container, key = self._find(path)
        if container is None:
            raise _Missing(f'remove operation does not apply: doc is missing path: "{path}": missing value')
        _delete(container, key, f"error in remove for path: '{path}'")

    def _replace(self, op: dict[str, Any]) -> None:
        path = _path(op, "replace operation failed to decode path: operation missing path field: missing value")
        value = copy_json(op.get("value"))
        if path == "":
            if not isinstance(value, dict | list):
                raise _Missing("replace operation value must be object or array: %!w(<nil>)")
            self.doc = value
            return
        container, key = self._find(path)
        if container is None:
            raise _Missing(f"replace operation does not apply: doc is missing path: {path}: missing value")
        if isinstance(container, dict):
            container[key] = value
            return
        try:
            position = _index(container, key)
        except _Missing:
            raise _Missing(f"replace operation does not apply: doc is missing key: {path}: missing value") from None
        container[position] = value

    def _move(self, op: dict[str, Any]) -> None:
        _, container, key = self._source(op, "move")
        where = f"error in move for path: '{key}'"
        value = _read(container, key, where)
        _delete(container, key, where)
        path = _path(op, "move operation failed to decode path: operation missing path field: missing value")
        container, key = self._find(path)
        if container is None:
            raise _Missing(f"move operation does not apply: doc is missing destination path: {path}: missing value")
        _insert(container, key, value, f"error in move for path: '{path}'")

    def _copy(self, op: dict[str, Any]) -> None:
        source, container, key = self._source(op, "copy")
        value = _read(container, key, f"error in copy for from: '{source}'")
        path = _path(op, "copy operation failed to decode path: missing value")
        container, key = self._find(path)
        if container is None:
            raise _Missing(f"copy operation does not apply: doc is missing destination path: {path}: missing value")
        if value is not _ABSENT:
            self._count_copied(value)
        _insert(container, key, copy_json(value), "error while adding value during copy")

    def _count_copied(self, value: Any) -> None:
        """Limit copied bytes: a short patch must not create a huge document by copying a part into itself
        repeatedly."""
        self._copied_bytes += len(msgspec.json.encode(value))
        if self._copied_bytes > MAX_COPIED_BYTES:
            raise _Missing(
                "Unable to complete the copy, the accumulated size increase of copy is "
                f"{self._copied_bytes}, exceeding the limit {MAX_COPIED_BYTES}"
            )

    def _test(self, op: dict[str, Any]) -> None:
        path = _path(op, "test operation failed to decode path: operation missing path field: missing value")
        if path == "":
            found = self.doc
        else:
            container, key = self._find(path)
            if container is None:
                raise _Missing(f"test operation does not apply: is missing path: {path}: missing value")
            found = _read(container, key, f"error in test for path: '{path}'")
        if not same_json(None if found is _ABSENT else found, op.get("value")):
            raise JsonPatchTestFailed(f"testing value {path} failed: test failed", path)

    def _source(self, op: dict[str, Any], kind: str) -> tuple[str, Any, str]:
        source = op.get("from")
        if source is None:
            raise _Missing(f"{kind} operation failed to decode from: operation, missing from field: missing value")
        container, key = self._find(source)
        if container is None:
            raise _Missing(f"{kind} operation does not apply: doc is missing from path: {source}: missing value")
        return source, container, key

    def _find(self, path: str) -> tuple[Any, str]:
        """Return the container of the last path element and that element; (None, "") if it does not exist."""
        steps = path.split("/")
        if len(steps) < 2:
            return None, ""
        container = self.doc
        for step in steps[1:-1]:
            try:
                container = _read(container, _unescape(step), "")
            except _Missing:
                return None, ""
            if not isinstance(container, dict | list):
                return None, ""
        return container, _unescape(steps[-1])


_OPERATIONS: dict[str, Callable[[_PatchState, dict[str, Any]], None]] = {
    "add": _PatchState._add,
    "remove": _PatchState._remove,
    "replace": _PatchState._replace,
    "move": _PatchState._move,
    "test": _PatchState._test,
    "copy": _PatchState._copy,
}


def same_json(left: Any, right: Any) -> bool:
    """Compare JSON strictly: true is not 1, and 1 is not 1.0.

    Python considers those equal, so equal values are compared again, as bytes or else item by item.
    """
    if left is right:
        return True
    if left != right:
        return False
    if isinstance(left, dict | list) and msgspec.json.encode(left) == msgspec.json.encode(right):
        return True
    return _same_types(left, right)


def _same_types(left: Any, right: Any) -> bool:
    """Compare the types of two values that are equal by `==`."""
    if isinstance(left, dict):
        return all(_same_types(item, right[key]) for key, item in left.items())
    if isinstance(left, list):
        return all(map(_same_types, left, right))
    return type(left) is type(right)


def _path(op: dict[str, Any], error: str) -> str:
    path = op.get("path")
    if path is None:
        raise _Missing(error)
    return str(path)


def _unescape(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~") if "~" in step else step


def _read(container: Any, key: str, where: str) -> Any:
    """Return the value at a key, `_ABSENT` if an object does not have it; raise for an index out of range."""
    if isinstance(container, dict):
        return container.get(key, _ABSENT)
    try:
        return container[_index(container, key)]
    except _Missing as error:
        raise _Missing(f"{where}: {error}") from None


def _insert(container: Any, key: str, value: Any, where: str) -> None:
    value = None if value is _ABSENT else value
    if isinstance(container, dict):
        container[key] = value
    elif key == "-":
        container.append(value)
    else:
        try:
            number = _number(key)
        except _Missing as error:
            raise _Missing(f"{where}: value was not a proper array index: '{key}': {error}") from None
        size = len(container) + 1
        if not -size <= number < size:
            raise _Missing(f"{where}: {_out_of_range(number)}")
        container.insert(number if number >= 0 else number + size, value)


def _delete(container: Any, key: str, where: str) -> None:
    if isinstance(container, dict):
        if key not in container:
            raise _Missing(f"{where}: Unable to remove nonexistent key: {key}: missing value")
        del container[key]
        return
    try:
        del container[_index(container, key)]
    except _Missing as error:
        raise _Missing(f"{where}: {error}") from None


def _index(container: list[Any], key: str) -> int:
    number = _number(key)
    if not -len(container) <= number < len(container):
        raise _Missing(_out_of_range(number))
    return number


def _number(key: str) -> int:
    if not _INTEGER.fullmatch(key):
        raise _Missing(f'strconv.Atoi: parsing "{key}": invalid syntax')
    if len(key) > 20 or not -(2**63) <= int(key) < 2**63:
        raise _Missing(f'strconv.Atoi: parsing "{key}": value out of range')
    return int(key)


def _out_of_range(number: int) -> str:
    return f"Unable to access invalid index: {number}: invalid index referenced"
