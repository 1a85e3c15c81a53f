"""Name, label and annotation key validation. Each check returns the messages of kube-apiserver, or an empty list."""

from __future__ import annotations

import re
from collections.abc import Callable

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+\Z")


NameCheck = Callable[[str], list[str]]
"""Returns the validation messages for a name."""


def dns1123_label(value: str) -> list[str]:
    return _check(value, 63, _LABEL, (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
        "end with an alphanumeric character", ("my-name", "123-abc"), "[a-z0-9]([-a-z0-9]*[a-z0-9])?"))  # fmt: skip


def dns1035_label(value: str) -> list[str]:
    return _check(value, 63, _LABEL_1035, (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character", ("my-name", "abc-123"),
        "[a-z]([-a-z0-9]*[a-z0-9])?"))  # fmt: skip


def dns1123_subdomain(value: str) -> list[str]:
    return _check(value, 253, _SUBDOMAIN, (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
        "start and end with an alphanumeric character", ("example.com",),
        "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"))  # fmt: skip


def path_segment(value: str) -> list[str]:
    """Validate the name of an RBAC object: anything that fits into one URL path segment."""
    if value in {".", ".."}:
        return [f"may not be '{value}'"]
    return [f"may not contain '{bad}'" for bad in "/%" if bad in value]


def qualified_name(value: str) -> list[str]:
    """Validate a label or annotation key: an optional DNS prefix and a short name."""
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        return [
            "a valid label key "
            + _explain("must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                         "alphanumeric character", ("MyName", "my.name", "123-abc"),
                         "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
            + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]  # fmt: skip
    problems: list[str] = []
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in dns1123_subdomain(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part " + _max(63, "bytes"))
    if not _QUALIFIED.match(name):
        problems.append("name part " + _explain(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
            "character", ("MyName", "my.name", "123-abc"), "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"))  # fmt: skip
    return problems


def label_value(value: str) -> list[str]:
    return _check(value, 63, _LABEL_VALUE, (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
        "and end with an alphanumeric character", ("MyValue", "my_value", "12345"),
        "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"), "bytes")  # fmt: skip


def config_key(value: str) -> list[str]:
    """Validate a key of a ConfigMap or Secret."""
    problems = _check(value, 253, _CONFIG_KEY, (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
        ("key.name", "KEY_NAME", "key-name"), "[-._a-zA-Z0-9]+"))  # fmt: skip
    if value in {".", ".."}:
        problems.append(f"must not be '{value}'")
    elif value.startswith(".."):
        problems.append("must not start with '..'")
    return problems


def _check(
    value: str,
    limit: int,
    pattern: re.Pattern[str],
    explanation: tuple[str, tuple[str, ...], str],
    unit: str = "characters",
) -> list[str]:
    problems = []
    if len(value) > limit:
        problems.append(_max(limit, unit))
    if not pattern.match(value):
        problems.append(_explain(*explanation))
    return problems


def _max(limit: int, unit: str) -> str:
    """Return the length message. kube-apiserver always counts bytes, but says so only for labels and qualified
    names."""
    return f"must be no more than {limit} {unit}"


def _explain(rule: str, examples: tuple[str, ...], pattern: str) -> str:
    listed = "".join((" or " if i else "") + f"'{example}', " for i, example in enumerate(examples))
    return f"{rule} (e.g. {listed}regex used for validation is '{pattern}')"
