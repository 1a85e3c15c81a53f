"""Well-known users and groups."""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.meta.kinds import Object
from herder.engine.wire import User

ALL_AUTHENTICATED = "system:authenticated"
ALL_UNAUTHENTICATED = "system:unauthenticated"
ALL_SERVICE_ACCOUNTS = "system:serviceaccounts"
SUPERUSERS = "system:masters"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"

ANONYMOUS = User("system:anonymous", groups=(ALL_UNAUTHENTICATED,))
SERVER = User("system:apiserver", groups=(SUPERUSERS, ALL_AUTHENTICATED))


def authenticated(user: User) -> User:
    """Return the user with group system:authenticated; anonymous users are returned unchanged."""
    if ALL_AUTHENTICATED in user.groups or ALL_UNAUTHENTICATED in user.groups or user.name == ANONYMOUS.name:
        return user
    return User(user.name, user.uid, (*user.groups, ALL_AUTHENTICATED), user.extra)


def service_account_user(
    namespace: str, name: str, uid: str = "", extra: Mapping[str, tuple[str, ...]] | None = None
) -> User:
    """Return the user of a service account, with its groups."""
    groups = (ALL_SERVICE_ACCOUNTS, f"{ALL_SERVICE_ACCOUNTS}:{namespace}", ALL_AUTHENTICATED)
    return User(f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}", uid, groups, extra or {})


def split_service_account(username: str) -> tuple[str, str] | None:
    """Return namespace and name of the service account of a user name; None if it is not one."""
    if not username.startswith(SERVICE_ACCOUNT_PREFIX):
        return None
    namespace, _, name = username.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    return (namespace, name) if namespace and name and ":" not in name else None


def user_info(user: User) -> Object:
    """Return the user as a UserInfo of authentication.k8s.io."""
    info: Object = {"username": user.name} if user.name else {}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info
