"""Wiring of the identity services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from herder.api.identity.authn.hashes import Entropy
from herder.engine.client.client import Client
from herder.gateway.identity.ext import ExtApi, discovery
from herder.gateway.identity.ext.kubeconfigs import StoredKubeconfigs
from herder.gateway.identity.ext.self_service import PasswordChanges, self_user
from herder.gateway.identity.ext.tokens import Tokens
from herder.gateway.identity.identity import Identity
from herder.gateway.identity.issuer import Issuer
from herder.gateway.identity.kubeconfigs import Kubeconfigs, Reachable
from herder.gateway.identity.logins import Logins
from herder.gateway.identity.passwords import Passwords
from herder.gateway.identity.throttle import LoginThrottle
from herder.gateway.identity.users import Users


@dataclass(frozen=True, slots=True)
class IdentityServices:
    """`logins.handle(request)` runs before authentication, `kubeconfigs.handle` and `ext.handle` after it."""

    identity: Identity
    logins: Logins
    kubeconfigs: Kubeconfigs
    ext: ExtApi
    users: Users
    issuer: Issuer


def assemble(
    client: Client,
    *,
    clock: Callable[[], datetime],
    entropy: Entropy,
    setting: Callable[[str], str],
    reachable: Reachable,
) -> IdentityServices:
    """Create all identity services."""
    identity = Identity(client, clock=clock, entropy=entropy, setting=setting)
    known = identity.known
    issuer = Issuer(client, identity, clock=clock, entropy=entropy, setting=setting)
    passwords = Passwords(client, entropy)
    users = Users(client, entropy, passwords)
    throttle = LoginThrottle(lambda: asyncio.get_running_loop().time())
    kubeconfigs = Kubeconfigs(issuer, reachable, setting)
    ext = ExtApi(
        stored={
            discovery.TOKENS: Tokens(client, known, issuer),
            discovery.KUBECONFIGS: StoredKubeconfigs(client, known, kubeconfigs, entropy),
        },
        ephemeral={
            discovery.SELF_USERS: self_user,
            discovery.PASSWORD_CHANGES: PasswordChanges(known, users, passwords, throttle).create,
        },
    )
    return IdentityServices(
        identity, Logins(client, identity, issuer, passwords, throttle, setting), kubeconfigs, ext, users, issuer
    )
