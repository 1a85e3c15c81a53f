"""Validation functions that many kinds share, with kube-apiserver's messages. Each yields the errors it finds."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Any

from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object
from herder.engine.meta.names import NameCheck
from herder.engine.meta.selectors import label_selector_from_object, validate_label_selector

Errors = Iterator[FieldError]

MAX_INT32 = (1 << 31) - 1
IMMUTABLE = "field is immutable"
NOT_NEGATIVE = "must be greater than or equal to 0"
PORT_RANGE = "must be between 1 and 65535, inclusive"


def checked(value: str, path: str, check: NameCheck) -> Errors:
    for problem in check(value):
        yield invalid_value(path, value, problem)


def label_name(value: str) -> list[str]:
    """Validate an object name that must be a DNS label."""
    return ["must not contain dots"] if "." in value else names.dns1123_label(value)


def as_go(value: Object, *names: str) -> Object:
    """Return a value as Go prints its internal type: all fields, by their Go names."""
    return {name: value.get(name[0].lower() + name[1:]) for name in names}


def not_negative(value: int | None, path: str) -> Errors:
    if value is not None and value < 0:
        yield invalid_value(path, value, NOT_NEGATIVE)


def unchanged(new: Any, old: Any, path: str) -> Errors:
    if new != old:
        yield invalid_value(path, new, IMMUTABLE)


def one_of(value: str | None, path: str, choices: Sequence[str]) -> Errors:
    """Validate a value of a fixed set; an empty value is reported as missing."""
    if not value:
        yield required(path)
    elif value not in choices:
        yield not_supported(path, value, choices)


def port_number(value: int | None, path: str) -> Errors:
    if not 1 <= (value or 0) <= 65535:
        yield invalid_value(path, value or 0, PORT_RANGE)


_PORT_NAME = re.compile(r"[-a-z0-9]+\Z")


def port_name(value: str) -> list[str]:
    """Validate the name of a container port (an IANA service name)."""
    problems = []
    if len(value) > 15:
        problems.append("must be no more than 15 characters")
    if not _PORT_NAME.match(value):
        problems.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", value):
        problems.append("must contain at least one letter (a-z)")
    if "--" in value:
        problems.append("must not contain consecutive hyphens")
    if value and (value[0] == "-" or value[-1] == "-"):
        problems.append("must not begin or end with a hyphen")
    return problems


def port_number_or_name(value: int | str | None, path: str) -> Errors:
    if isinstance(value, str):
        yield from checked(value, path, port_name)
    else:
        yield from port_number(value, path)


def labels(values: dict[str, str] | None, path: str) -> Errors:
    for key, value in (values or {}).items():
        yield from checked(key, path, names.qualified_name)
        yield from checked(value, path, names.label_value)


def annotation_keys(values: dict[str, str] | None, path: str) -> Errors:
    for key in values or {}:
        for problem in names.qualified_name(key.lower()):
            yield invalid_value(path, key, problem)


def selector(value: dict[str, Any] | None, path: str, kind: str = "") -> Errors:
    """Validate a label selector. With `kind`, the workload of that kind requires one that is not empty."""
    if value is None:
        if kind:
            yield required(path)
        return
    yield from validate_label_selector(value, path)
    if kind and not value.get("matchLabels") and not value.get("matchExpressions"):
        yield invalid_value(path, value, f"empty selector is invalid for {kind}")
    if kind and any(validate_label_selector(value, path)):
        yield invalid_value(path, value, "invalid label selector" if kind != "statefulset" else "")


def selects(value: dict[str, Any] | None, template_labels: dict[str, str] | None, path: str) -> Errors:
    """Check that a workload's selector matches its template's labels. Invalid selectors are reported by `selector`."""
    if value is not None and any(validate_label_selector(value, "")):
        return
    matcher = label_selector_from_object(value)
    if matcher is None or not matcher.matches(template_labels or {}):
        shown = dict(sorted(template_labels.items())) if template_labels else None
        yield invalid_value(path, shown, "`selector` does not match template `labels`")


_PERCENT = re.compile(r"[0-9]+%\Z")


def int_or_percent(value: int | str | None, path: str) -> Errors:
    if isinstance(value, str):
        if not _PERCENT.match(value):
            explained = "a valid percent string must be a numeric string followed by an ending '%'"
            yield invalid_value(
                path, value, f"{explained} (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
            )
    else:
        yield from not_negative(value, path)


def not_over_hundred_percent(value: int | str | None, path: str) -> Errors:
    if isinstance(value, str) and _PERCENT.match(value) and int(value[:-1]) > 100:
        yield invalid_value(path, value, "must not be greater than 100%")


def amount(value: int | str | None) -> int:
    """Return the number of an int or percentage, to compare it with zero."""
    if isinstance(value, str):
        return int(value[:-1]) if _PERCENT.match(value) else 0
    return value or 0


def ip_address(value: str, path: str) -> Errors:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        yield invalid_value(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")


def cidr(value: str, path: str) -> Errors:
    try:
        if "/" not in value:
            raise ValueError
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        yield invalid_value(path, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
