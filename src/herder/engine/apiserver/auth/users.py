"""Names and groups that the server itself gives to callers."""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.client.wire import User
from herder.engine.meta.kinds import Object

ALL_AUTHENTICATED = "system:authenticated"
ALL_UNAUTHENTICATED = "system:unauthenticated"
ALL_SERVICE_ACCOUNTS = "system:serviceaccounts"
SUPERUSERS = "system:masters"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"

ANONYMOUS = User("system:anonymous", groups=(ALL_UNAUTHENTICATED,))
SERVER = User("system:apiserver", groups=(SUPERUSERS, ALL_AUTHENTICATED))


def authenticated(user: User) -> User:
    """The user as a member of everyone who proved who they are; anonymous callers stay what they are."""
    if ALL_AUTHENTICATED in user.groups or ALL_UNAUTHENTICATED in user.groups or user.name == ANONYMOUS.name:
        return user
    return User(user.name, user.uid, (*user.groups, ALL_AUTHENTICATED), user.extra)


def service_account_user(
    namespace: str, name: str, uid: str = "", extra: Mapping[str, tuple[str, ...]] | None = None
) -> User:
    groups = (ALL_SERVICE_ACCOUNTS, f"{ALL_SERVICE_ACCOUNTS}:{namespace}", ALL_AUTHENTICATED)
    return User(f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}", uid, groups, extra or {})


def split_service_account(username: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that a user name stands for."""
    if not username.startswith(SERVICE_ACCOUNT_PREFIX):
        return None
    namespace, _, name = username.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    return (namespace, name) if namespace and name and ":" not in name else None


def user_info(user: User) -> Object:
    """A user as authentication.k8s.io and admission reviews show one."""
    info: Object = {"username": user.name} if user.name else {}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info
