"""Impersonation, in the two modes of kube-apiserver.

Constrained: the user needs `impersonate:<mode>` on the impersonated identity, and `impersonate-on:<mode>:<verb>` on the
request itself. Legacy: the user needs `impersonate` on each user, uid, group and extra. Every header is checked. If no
mode allows the request, the first error is returned.
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
from herder.engine.meta import names
from herder.engine.meta.errors import BadRequest, Forbidden
from herder.engine.wire import Request, User

_PREFIX = "impersonate-"
_EXTRA = "impersonate-extra-"
_NODE_PREFIX = "system:node:"
_NODES_GROUP = "system:nodes"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_AUTHENTICATION = "authentication.k8s.io"
_MAX_CHARACTERS = 16 << 10  # characters: every group and extra is authorized separately, before the user is limited


def wants_impersonation(headers: Mapping[str, str]) -> bool:
    return any(name.startswith(_PREFIX) for name in headers)


def impersonated(request: Request, user: User, authorizer: Authorizer, attributes: AccessAttributes) -> User:
    """Return the user to act as; `user` itself without impersonation headers. Raises Forbidden or BadRequest.

    `attributes` are those of the request. The headers are removed from the request, so that no later handler evaluates
    them again.
    """
    if not wants_impersonation(request.headers):
        return user
    target = _requested_user(request.headers)
    request.headers = {name: value for name, value in request.headers.items() if not _is_impersonation_header(name)}
    if target is None:
        return user
    errors: list[Forbidden] = []
    for mode in _modes(target, user):
        try:
            return _impersonate_as(target, user, authorizer, attributes, mode)
        except Forbidden as error:
            errors.append(error)
    raise errors[0]


def _is_impersonation_header(name: str) -> bool:
    return name in ("impersonate-user", "impersonate-uid", "impersonate-group") or name.startswith(_EXTRA)


def _requested_user(headers: Mapping[str, str]) -> User | None:
    # Repeated headers are joined. Every part is checked separately, so splitting can only add checks.
    if (
        sum(len(name) + len(value) for name, value in headers.items() if _is_impersonation_header(name))
        > _MAX_CHARACTERS
    ):
        raise BadRequest(f"impersonation headers: more than {_MAX_CHARACTERS} characters")
    groups = tuple(headers["impersonate-group"].split(", ")) if "impersonate-group" in headers else ()
    extra: dict[str, tuple[str, ...]] = {}
    for name, value in headers.items():
        if name.startswith(_EXTRA):
            key = unquote(name.removeprefix(_EXTRA).lower())
            extra[key] = (*extra.get(key, ()), *value.split(", "))
    target = User(headers.get("impersonate-user", ""), headers.get("impersonate-uid", ""), groups, extra)
    if target.name:
        return target
    if target.uid or groups or extra:
        raise BadRequest(f"requested {_format_user(target)} without impersonating a user name")
    return None


def _format_user(user: User) -> str:
    groups = "[]string{" + ", ".join(map(quoted, user.groups)) + "}" if user.groups else "[]string(nil)"
    extras = [f"{quoted(key)}:[]string{{{', '.join(map(quoted, user.extra[key]))}}}" for key in sorted(user.extra)]
    extra = "map[string][]string{" + ", ".join(extras) + "}" if extras else "map[string][]string(nil)"
    return f"&user.DefaultInfo{{Name:{quoted(user.name)}, UID:{quoted(user.uid)}, Groups:{groups}, Extra:{extra}}}"


_LEGACY = ""


def _modes(target: User, requester: User) -> list[str]:
    """Return the modes that fit the impersonated user, most restricted first."""
    only_name = not (target.uid or target.groups or target.extra)
    node, account = _node_name(target.name), split_service_account(target.name)
    modes = []
    if only_name and node and _is_bound_to_node(requester, node):
        modes.append("associated-node")
    if only_name and node:
        modes.append("arbitrary-node")
    if only_name and account:
        modes.append("serviceaccount")
    if not node and not account:
        modes.append("user-info")
    return [*modes, _LEGACY]


def _node_name(username: str) -> str:
    name = username.removeprefix(_NODE_PREFIX)
    return name if name != username and not names.dns1123_subdomain(name) else ""


def _is_bound_to_node(requester: User, node: str) -> bool:
    return split_service_account(requester.name) is not None and requester.extra.get(_NODE_NAME) == (node,)


def _impersonate_as(
    target: User, requester: User, authorizer: Authorizer, attributes: AccessAttributes, mode: str
) -> User:
    verb = f"impersonate:{mode}" if mode else "impersonate"
    if mode:
        on_request = replace(attributes, verb=f"impersonate-on:{mode}:{attributes.verb}")
        _require(authorizer, requester, on_request)
    group = _AUTHENTICATION if mode else ""
    groups = target.groups
    name = AccessAttributes(verb, group, "v1", "users", name=target.name)
    if mode and (node := _node_name(target.name)):
        name = replace(name, resource="nodes", name="*" if mode == "associated-node" else node)
        groups = (_NODES_GROUP,)
    elif account := split_service_account(target.name):
        name = replace(name, resource="serviceaccounts", namespace=account[0], name=account[1])
        groups = groups or (ALL_SERVICE_ACCOUNTS, f"{ALL_SERVICE_ACCOUNTS}:{account[0]}")
    _require(authorizer, requester, name)
    if target.uid:
        _require(authorizer, requester, AccessAttributes(verb, _AUTHENTICATION, "v1", "uids", name=target.uid))
    _check_groups(target.groups, authorizer, requester, AccessAttributes(verb, group, "v1", "groups"), mode)
    _check_extra(target.extra, authorizer, requester, AccessAttributes(verb, _AUTHENTICATION, "v1", "userextras"), mode)
    return User(target.name, target.uid, _with_system_groups(target.name, groups), target.extra)


def _check_groups(
    groups: tuple[str, ...], authorizer: Authorizer, requester: User, base: AccessAttributes, mode: str
) -> None:
    if mode and "" in groups:
        raise forbidden(requester, base, "impersonating the empty string group is not allowed")
    if mode and SUPERUSERS in groups:
        named = replace(base, name=SUPERUSERS)
        raise forbidden(requester, named, "impersonating the system:masters group is not allowed")
    for group in groups:
        _require(authorizer, requester, replace(base, name=group))


def _check_extra(
    extra: Mapping[str, tuple[str, ...]], authorizer: Authorizer, requester: User, base: AccessAttributes, mode: str
) -> None:
    if mode and "" in extra:
        raise forbidden(requester, base, "impersonating the empty string key in extra is not allowed")
    if mode and any("" in values for values in extra.values()):
        raise forbidden(requester, base, "impersonating the empty string value in extra is not allowed")
    for key, values in extra.items():
        for value in values:
            _require(authorizer, requester, replace(base, subresource=key, name=value))


def _require(authorizer: Authorizer, user: User, attributes: AccessAttributes) -> None:
    decision = authorizer.authorize(user, attributes)
    if not decision.allowed:
        raise forbidden(user, attributes, decision.reason)


def _with_system_groups(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    if name == ANONYMOUS.name:
        return groups if ALL_UNAUTHENTICATED in groups else (*groups, ALL_UNAUTHENTICATED)
    if ALL_UNAUTHENTICATED in groups or ALL_AUTHENTICATED in groups:
        return groups
    return (*groups, ALL_AUTHENTICATED)
