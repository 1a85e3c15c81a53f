"""Identity of a forwarded request: the authenticated user, or one that the user may impersonate; never the manager."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from herder.engine.meta.errors import BadRequest, Forbidden, Unauthorized
from herder.engine.wire import User

EVERYONE = ("system:authenticated", "system:cattle:authenticated")
"""The only built-in groups that mean the same in every cluster."""

EXTRAS = ("principalid", "username", "requesttokenid", "requesthost")
"""User extras that are forwarded, for the cluster's audit log."""

_USER_EXTRAS = ("principalid", "username")  # the others describe the request, and only the manager sets them

_PREFIX = "impersonate-"
_EXTRA = "impersonate-extra-"
_MAX_HEADER_CHARS = 16 << 10  # characters; each group and extra costs an access review
_RESERVED = "system:"
_UNAUTHENTICATED = "system:unauthenticated"


def requested_user(headers: Mapping[str, str]) -> User | None:
    """The user in the caller's impersonation headers; None if there are none."""
    named = {name: value for name, value in headers.items() if name.startswith(_PREFIX)}
    if not named:
        return None
    if sum(len(header) + len(value) for header, value in named.items()) > _MAX_HEADER_CHARS:
        raise BadRequest(f"the headers of impersonation have more than {_MAX_HEADER_CHARS} characters")
    name = named.pop("impersonate-user", "")
    # Repeated headers arrive joined. Each part is authorized separately, so splitting can only require more rights.
    groups = tuple(part for part in named.pop("impersonate-group", "").split(", ") if part)
    extra = {
        unquote(header.removeprefix(_EXTRA)): tuple(named.pop(header).split(", "))
        for header in list(named)
        if header.startswith(_EXTRA)
    }
    if named:
        raise BadRequest(f"{', '.join(sorted(named))}: not supported for managed clusters")
    if not name:
        raise BadRequest("Impersonate-Group and Impersonate-Extra need an Impersonate-User")
    return User(name, groups=groups, extra=extra)


def check_authenticated(user: User) -> None:
    if not user.name or _UNAUTHENTICATED in user.groups:
        raise Unauthorized("must authenticate")


def downstream_user(user: User) -> User:
    """The part of a user that is valid in other clusters.

    `system:` names belong to one cluster: its service accounts, nodes and administrators. In another cluster they would
    be someone else.
    """
    check_authenticated(user)
    if user.name.startswith(_RESERVED):
        raise Forbidden(f'"{user.name}" is a user of one cluster only and has no rights in others')
    groups = [group for group in user.groups if not group.startswith(_RESERVED)]
    extra = {key: tuple(user.extra[key]) for key in EXTRAS if user.extra.get(key)}
    return User(user.name, groups=tuple(dict.fromkeys([*groups, *EVERYONE])), extra=extra)


def check_impersonated(wanted: User) -> None:
    """Refuse explicitly requested groups and extras instead of dropping them."""
    reserved = [group for group in wanted.groups if group.startswith(_RESERVED) and group not in EVERYONE]
    if reserved:
        raise Forbidden(f'"{reserved[0]}" is a group of one cluster only and cannot be impersonated in others')
    unknown = [key for key in wanted.extra if key not in _USER_EXTRAS]
    if unknown:
        raise Forbidden(f'extra "{unknown[0]}" cannot be set for managed clusters')


def impersonation(user: User) -> list[tuple[str, str]]:
    """Impersonation headers for the user; the sender must have the right to impersonate."""
    headers = [("impersonate-user", _header_value(user.name, "user name"))]
    headers += [("impersonate-group", _header_value(group, "group")) for group in user.groups]
    for key, values in user.extra.items():
        name = _EXTRA + quote(key, safe="")
        headers += [(name, _header_value(value, f"extra {key}")) for value in values]
    return headers


def _header_value(value: str, what: str) -> str:
    """HTTP strips surrounding whitespace, which would change the name; such names cannot be forwarded."""
    if not value or value != value.strip() or not value.isprintable():
        raise Forbidden(f"{what} {value!r} cannot be sent to a cluster; it is empty, padded or has control characters")
    return value
