"""Parts of CEL expressions in policies: strings, and values of an object before and after a write."""

from __future__ import annotations

CREATED = "request.operation == 'CREATE'"


def text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def strings(values: tuple[str, ...]) -> str:
    return f"[{', '.join(text(each) for each in values)}]"


def new(path: str) -> str:
    return f"object.{path}.orValue('')"


def before(path: str) -> str:
    """Return the old value, "" if there is none."""
    return f"({CREATED} ? '' : oldObject.{path}.orValue(''))"


def changed(path: str) -> str:
    return f"{new(path)} != '' && {new(path)} != {before(path)}"


def marked(path: str) -> str:
    """Whether a write adds, changes or removes a value; an empty one counts."""
    return f"({CREATED} ? object.{path}.hasValue() : object.{path} != oldObject.{path})"


def annotation(name: str) -> str:
    return f"metadata.?annotations[?'{name}']"
