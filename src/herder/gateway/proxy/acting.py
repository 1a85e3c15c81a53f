"""As whom a request goes to a cluster: the authenticated user, or someone the user may act as. Never the manager."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from herder.engine.client.wire import User
from herder.engine.meta.errors import BadRequest, Forbidden, Unauthorized

EVERYONE = ("system:authenticated", "system:cattle:authenticated")
"""The only groups of Kubernetes' own that mean the same in every cluster."""

EXTRAS = ("principalid", "username", "requesttokenid", "requesthost")
"""What a cluster is told of a user besides name and groups, for its audit log."""

_OF_A_USER = ("principalid", "username")  # the others are of a request, and the manager alone knows those

_PREFIX = "impersonate-"
_EXTRA = "impersonate-extra-"
_LONGEST = 16 << 10  # characters: the right to each group and extra is looked up
_RESERVED = "system:"
_UNAUTHENTICATED = "system:unauthenticated"


def wanted_user(headers: Mapping[str, str]) -> User | None:
    """Whom the caller asks to act as, by headers of its own; None where it asks for nobody."""
    named = {name: value for name, value in headers.items() if name.startswith(_PREFIX)}
    if not named:
        return None
    if sum(len(header) + len(value) for header, value in named.items()) > _LONGEST:
        raise BadRequest(f"the headers of impersonation have more than {_LONGEST} characters")
    name = named.pop("impersonate-user", "")
    # Repeated headers arrive joined. Each part is asked for on its own, so splitting can only ask for more.
    groups = tuple(part for part in named.pop("impersonate-group", "").split(", ") if part)
    extra = {
        unquote(header.removeprefix(_EXTRA)): tuple(named.pop(header).split(", "))
        for header in list(named)
        if header.startswith(_EXTRA)
    }
    if named:
        raise BadRequest(f"{', '.join(sorted(named))}: not supported for a cluster that is reached through here")
    if not name:
        raise BadRequest("Impersonate-Group and Impersonate-Extra need an Impersonate-User")
    return User(name, groups=groups, extra=extra)


def check_authenticated(user: User) -> None:
    if not user.name or _UNAUTHENTICATED in user.groups:
        raise Unauthorized("must authenticate")


def crossing(user: User) -> User:
    """The part of a user that has a meaning in another cluster than the one it was authenticated in.

    `system:` names belong to one cluster: its own service accounts, nodes and administrators. Carried over they would
    be somebody else's.
    """
    check_authenticated(user)
    if user.name.startswith(_RESERVED):
        raise Forbidden(f'"{user.name}" is a user of one cluster and has no rights in another')
    groups = [group for group in user.groups if not group.startswith(_RESERVED)]
    extra = {key: tuple(user.extra[key]) for key in EXTRAS if user.extra.get(key)}
    return User(user.name, groups=tuple(dict.fromkeys([*groups, *EVERYONE])), extra=extra)


def check_wanted(wanted: User) -> None:
    """What was asked for in so many words is refused, not left out."""
    reserved = [group for group in wanted.groups if group.startswith(_RESERVED) and group not in EVERYONE]
    if reserved:
        raise Forbidden(f'"{reserved[0]}" is a group of one cluster and cannot be acted as in another')
    unknown = [key for key in wanted.extra if key not in _OF_A_USER]
    if unknown:
        raise Forbidden(f'extra "{unknown[0]}" cannot be set for a cluster that is reached through here')


def impersonation(user: User) -> list[tuple[str, str]]:
    """The headers that make a request the user's. Whoever sends them must be allowed to."""
    headers = [("impersonate-user", _header_value(user.name, "user name"))]
    headers += [("impersonate-group", _header_value(group, "group")) for group in user.groups]
    for key, values in user.extra.items():
        name = _EXTRA + quote(key, safe="")
        headers += [(name, _header_value(value, f"extra {key}")) for value in values]
    return headers


def _header_value(value: str, what: str) -> str:
    """HTTP drops blanks at both ends, which would make one name another: such a name cannot be told to a cluster."""
    if not value or value != value.strip() or not value.isprintable():
        raise Forbidden(f"{what} {value!r} cannot be told to a cluster: it is empty, or has blanks or controls in it")
    return value
