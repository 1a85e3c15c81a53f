"""Named formats: `format.dns1123Label().validate(name)` returns the validation errors, if any."""

from __future__ import annotations

import re
from collections.abc import Callable

from herder.engine.meta import names
from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.library import urls
from herder.engine.schema.cel.times import parse_date, parse_timestamp
from herder.engine.schema.cel.types import FORMAT, STRING, list_of, optional_of
from herder.engine.schema.cel.values import NONE, Optional

library = Library()
Check = Callable[[str], list[str]]
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\Z", re.IGNORECASE | re.ASCII)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})\Z", re.ASCII)


class FormatValue:
    """A named format (kubernetes.NamedFormat)."""

    __slots__ = ("check", "name")
    cel_type = "kubernetes.NamedFormat"

    def __init__(self, name: str, check: Check) -> None:
        self.name = name
        self.check = check


def _prefix(check: Check) -> Check:
    """Return the check for a name prefix, which may end in a dash."""
    return lambda text: check(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)


def _uri(text: str) -> list[str]:
    try:
        urls.parse(text)
    except ValueError as error:
        return [str(error)]
    return []


def _readable(read: Callable[[str], object], complaint: str) -> Check:
    def check(text: str) -> list[str]:
        try:
            read(text)
        except ValueError:
            return [complaint]
        return []

    return check


def _matching(pattern: re.Pattern[str], complaint: str) -> Check:
    return lambda text: [] if pattern.match(text) else [complaint]


_FORMATS = {
    name: FormatValue(name, check)
    for name, check in {
        "dns1123Label": names.dns1123_label,
        "dns1123Subdomain": names.dns1123_subdomain,
        "dns1035Label": names.dns1035_label,
        "qualifiedName": names.qualified_name,
        "dns1123LabelPrefix": _prefix(names.dns1123_label),
        "dns1123SubdomainPrefix": _prefix(names.dns1123_subdomain),
        "dns1035LabelPrefix": _prefix(names.dns1035_label),
        "labelValue": names.label_value,
        "uri": _uri,
        "uuid": _matching(_UUID, "does not match the UUID format"),
        "byte": _matching(_BASE64, "invalid base64"),
        "date": _readable(parse_date, "invalid date"),
        "datetime": _readable(parse_timestamp, "invalid datetime"),
    }.items()
}


def _constant(format: FormatValue) -> Callable[[], FormatValue]:
    return lambda: format


for _name, _format in _FORMATS.items():
    library.function(f"format.{_name}", returns=FORMAT)(_constant(_format))


@library.function("format.named", STRING, returns=optional_of(FORMAT))
def named(name: str) -> Optional:
    return Optional(_FORMATS[name]) if name in _FORMATS else NONE


@library.method("validate", FORMAT, STRING, returns=optional_of(list_of(STRING)), linear=True)
def validate(format: FormatValue, text: str) -> Optional:
    complaints = format.check(text)
    return Optional(complaints) if complaints else NONE
