"""Acting as someone else, for those who may.

Two ways, as in the real server. Constrained: the caller may act as that kind of user (`impersonate:<mode>` on what is
named) *and* do this very thing while acting so (`impersonate-on:<mode>:<verb>` on what the request is about). Plain:
the caller may `impersonate` each of the user, uid, groups and extras named. Nothing named goes unchecked; where no way
allows all of it, the first refusal is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from msgspec.structs import replace

from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer, forbidden
from herder.engine.apiserver.auth.policy import quoted
from herder.engine.apiserver.auth.users import (
    ALL_AUTHENTICATED,
    ALL_SERVICE_ACCOUNTS,
    ALL_UNAUTHENTICATED,
    ANONYMOUS,
    SUPERUSERS,
    split_service_account,
)
from herder.engine.client.wire import Request, User
from herder.engine.meta import names
from herder.engine.meta.errors import BadRequest, Forbidden

_PREFIX = "impersonate-"
_EXTRA = "impersonate-extra-"
_NODE_PREFIX = "system:node:"
_NODES_GROUP = "system:nodes"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_AUTHENTICATION = "authentication.k8s.io"
_LONGEST = 16 << 10  # characters: each group and extra is authorized on its own, before anybody knows who is asking


def wants_impersonation(headers: Mapping[str, str]) -> bool:
    return any(name.startswith(_PREFIX) for name in headers)


def impersonated(request: Request, user: User, authorizer: Authorizer, attributes: AccessAttributes) -> User:
    """The user to act as: `user` where the request names no other. Raises Forbidden or BadRequest.

    `attributes` are those of the request itself. The headers are taken off the request, so that nothing behind this
    can be made to believe them again.
    """
    if not wants_impersonation(request.headers):
        return user
    wanted = _wanted(request.headers)
    request.headers = {name: value for name, value in request.headers.items() if not _is_ours(name)}
    if wanted is None:
        return user
    refusals: list[Forbidden] = []
    for mode in _modes(wanted, user):
        try:
            return _act_as(wanted, user, authorizer, attributes, mode)
        except Forbidden as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _is_ours(name: str) -> bool:
    return name in ("impersonate-user", "impersonate-uid", "impersonate-group") or name.startswith(_EXTRA)


def _wanted(headers: Mapping[str, str]) -> User | None:
    # Repeated headers arrive joined; each part is checked on its own, so splitting can only ask for more checks.
    if sum(len(name) + len(value) for name, value in headers.items() if _is_ours(name)) > _LONGEST:
        raise BadRequest(f"the headers of impersonation have more than {_LONGEST} characters")
    groups = tuple(headers["impersonate-group"].split(", ")) if "impersonate-group" in headers else ()
    extra: dict[str, tuple[str, ...]] = {}
    for name, value in headers.items():
        if name.startswith(_EXTRA):
            key = unquote(name.removeprefix(_EXTRA).lower())
            extra[key] = (*extra.get(key, ()), *value.split(", "))
    wanted = User(headers.get("impersonate-user", ""), headers.get("impersonate-uid", ""), groups, extra)
    if wanted.name:
        return wanted
    if wanted.uid or groups or extra:
        raise BadRequest(f"requested {_shown(wanted)} without impersonating a user name")
    return None


def _shown(user: User) -> str:
    groups = "[]string{" + ", ".join(map(quoted, user.groups)) + "}" if user.groups else "[]string(nil)"
    extras = [f"{quoted(key)}:[]string{{{', '.join(map(quoted, user.extra[key]))}}}" for key in sorted(user.extra)]
    extra = "map[string][]string{" + ", ".join(extras) + "}" if extras else "map[string][]string(nil)"
    return f"&user.DefaultInfo{{Name:{quoted(user.name)}, UID:{quoted(user.uid)}, Groups:{groups}, Extra:{extra}}}"


_PLAIN = ""


def _modes(wanted: User, requester: User) -> list[str]:
    """The ways that fit who is wanted, narrowest first."""
    only_name = not (wanted.uid or wanted.groups or wanted.extra)
    node, account = _node_name(wanted.name), split_service_account(wanted.name)
    modes = []
    if only_name and node and _runs_on(requester, node):
        modes.append("associated-node")
    if only_name and node:
        modes.append("arbitrary-node")
    if only_name and account:
        modes.append("serviceaccount")
    if not node and not account:
        modes.append("user-info")
    return [*modes, _PLAIN]


def _node_name(username: str) -> str:
    name = username.removeprefix(_NODE_PREFIX)
    return name if name != username and not names.dns1123_subdomain(name) else ""


def _runs_on(requester: User, node: str) -> bool:
    return split_service_account(requester.name) is not None and requester.extra.get(_NODE_NAME) == (node,)


def _act_as(wanted: User, requester: User, authorizer: Authorizer, attributes: AccessAttributes, mode: str) -> User:
    verb = f"impersonate:{mode}" if mode else "impersonate"
    if mode:
        on_request = replace(attributes, verb=f"impersonate-on:{mode}:{attributes.verb}")
        _demand(authorizer, requester, on_request)
    group = _AUTHENTICATION if mode else ""
    groups = wanted.groups
    name = AccessAttributes(verb, group, "v1", "users", name=wanted.name)
    if mode and (node := _node_name(wanted.name)):
        name = replace(name, resource="nodes", name="*" if mode == "associated-node" else node)
        groups = (_NODES_GROUP,)
    elif account := split_service_account(wanted.name):
        name = replace(name, resource="serviceaccounts", namespace=account[0], name=account[1])
        groups = groups or (ALL_SERVICE_ACCOUNTS, f"{ALL_SERVICE_ACCOUNTS}:{account[0]}")
    _demand(authorizer, requester, name)
    if wanted.uid:
        _demand(authorizer, requester, AccessAttributes(verb, _AUTHENTICATION, "v1", "uids", name=wanted.uid))
    _check_groups(wanted.groups, authorizer, requester, AccessAttributes(verb, group, "v1", "groups"), mode)
    _check_extra(wanted.extra, authorizer, requester, AccessAttributes(verb, _AUTHENTICATION, "v1", "userextras"), mode)
    return User(wanted.name, wanted.uid, _with_everyone(wanted.name, groups), wanted.extra)


def _check_groups(
    groups: tuple[str, ...], authorizer: Authorizer, requester: User, base: AccessAttributes, mode: str
) -> None:
    if mode and "" in groups:
        raise forbidden(requester, base, "impersonating the empty string group is not allowed")
    if mode and SUPERUSERS in groups:
        named = replace(base, name=SUPERUSERS)
        raise forbidden(requester, named, "impersonating the system:masters group is not allowed")
    for group in groups:
        _demand(authorizer, requester, replace(base, name=group))


def _check_extra(
    extra: Mapping[str, tuple[str, ...]], authorizer: Authorizer, requester: User, base: AccessAttributes, mode: str
) -> None:
    if mode and "" in extra:
        raise forbidden(requester, base, "impersonating the empty string key in extra is not allowed")
    if mode and any("" in values for values in extra.values()):
        raise forbidden(requester, base, "impersonating the empty string value in extra is not allowed")
    for key, values in extra.items():
        for value in values:
            _demand(authorizer, requester, replace(base, subresource=key, name=value))


def _demand(authorizer: Authorizer, user: User, attributes: AccessAttributes) -> None:
    decision = authorizer.authorize(user, attributes)
    if not decision.allowed:
        raise forbidden(user, attributes, decision.reason)


def _with_everyone(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    if name == ANONYMOUS.name:
        return groups if ALL_UNAUTHENTICATED in groups else (*groups, ALL_UNAUTHENTICATED)
    if ALL_UNAUTHENTICATED in groups or ALL_AUTHENTICATED in groups:
        return groups
    return (*groups, ALL_AUTHENTICATED)
