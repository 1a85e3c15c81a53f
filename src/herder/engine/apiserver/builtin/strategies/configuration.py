"""Strategies of Secrets and ConfigMaps."""

from __future__ import annotations

import base64
from collections.abc import Callable

import msgspec

from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked, unchanged
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value, required, too_long
from herder.engine.meta.kinds import Object

_MAX_SIZE = 1 << 20
_FROZEN = "field is immutable when `immutable` is set"
_ACCOUNT = "kubernetes.io/service-account.name"


class SecretStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        data: dict[str, str] = obj.get("data") or {}
        for key in data:
            yield from checked(key, f"data[{key}]", names.config_key)
        if sum(_decoded_size(value) for value in data.values()) > _MAX_SIZE:
            yield too_long("data", _MAX_SIZE)
        demands = _BY_TYPE.get(obj.get("type", ""))
        if demands is not None:
            yield from demands(obj, data)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        yield from unchanged(obj.get("type", ""), old.get("type", ""), "type")
        yield from frozen(obj, old, ("data",))

    def fields(self, obj: Object) -> dict[str, str]:
        return {"type": obj.get("type", "")}


def _decoded_size(encoded: str) -> int:
    return len(encoded) // 4 * 3 - encoded[-2:].count("=")


def frozen(obj: Object, old: Object, keys: tuple[str, ...]) -> Errors:
    """Return errors for changes of an object with `immutable`, which cannot be unset either."""
    if not old.get("immutable"):
        return
    if not obj.get("immutable"):
        yield forbidden_field("immutable", _FROZEN)
    for key in keys:
        if (obj.get(key) or {}) != (old.get(key) or {}):
            yield forbidden_field(key, _FROZEN)


# --- required keys by Secret type -------------------------------------------------------------------------------


def _service_account_token(obj: Object, data: dict[str, str]) -> Errors:
    if not (obj["metadata"].get("annotations") or {}).get(_ACCOUNT):
        yield required(f"metadata.annotations[{_ACCOUNT}]")


def _json_document(key: str) -> Callable[[Object, dict[str, str]], Errors]:
    def check(obj: Object, data: dict[str, str]) -> Errors:
        if key not in data:
            yield required(f"data[{key}]")
            return
        problem = _json_error(base64.b64decode(data[key]))
        if problem:
            yield invalid_value(f"data[{key}]", "<secret contents redacted>", problem)

    return check


def _json_error(document: bytes) -> str:
    try:
        value = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _syntax_error(document)
    if value is None or isinstance(value, dict):
        return ""
    kind = {bool: "bool", str: "string", list: "array"}.get(type(value), "number")
    return f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"


def _syntax_error(document: bytes) -> str:
    """Return Go's message for the most common error. It quotes at most one character, so that it reveals no secret."""
    text = document.decode("utf-8", "replace").lstrip()
    if not text:
        return "unexpected end of JSON input"
    first = text[0]
    if first not in '{["tfn-0123456789':
        return f"invalid character '{first}' looking for beginning of value"
    return "unexpected end of JSON input"


def _basic_auth(obj: Object, data: dict[str, str]) -> Errors:
    if "username" not in data and "password" not in data:
        yield required("data[username]")
        yield required("data[password]")


def _ssh_auth(obj: Object, data: dict[str, str]) -> Errors:
    if not data.get("ssh-privatekey"):
        yield required("data[ssh-privatekey]")


def _tls(obj: Object, data: dict[str, str]) -> Errors:
    for key in ("tls.crt", "tls.key"):
        if key not in data:
            yield required(f"data[{key}]")


_BY_TYPE: dict[str, Callable[[Object, dict[str, str]], Errors]] = {
    "kubernetes.io/service-account-token": _service_account_token,
    "kubernetes.io/dockercfg": _json_document(".dockercfg"),
    "kubernetes.io/dockerconfigjson": _json_document(".dockerconfigjson"),
    "kubernetes.io/basic-auth": _basic_auth,
    "kubernetes.io/ssh-auth": _ssh_auth,
    "kubernetes.io/tls": _tls,
}


class ConfigMapStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        data: dict[str, str] = obj.get("data") or {}
        binary: dict[str, str] = obj.get("binaryData") or {}
        for key in data:
            yield from checked(key, f"data[{key}]", names.config_key)
            if key in binary:
                yield invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData")
        for key in binary:
            yield from checked(key, f"binaryData[{key}]", names.config_key)
        size = sum(len(value.encode()) for value in data.values()) + sum(map(_decoded_size, binary.values()))
        if size > _MAX_SIZE:
            yield FieldError("FieldValueTooLong", "[]", too_long("", _MAX_SIZE).body)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        yield from frozen(obj, old, ("data", "binaryData"))
