"""Issue tokens. Only the hash of the key is stored; the key itself is only in the result."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn import hashes
from herder.api.identity.authn.hashes import Entropy
from herder.api.identity.authn.lifetimes import granted_ttl
from herder.api.identity.authn.tokens import (
    NewToken,
    TokenRecord,
    from_secret,
    from_token,
    token_id,
    token_object,
    token_secret,
    user_reference,
)
from herder.api.identity.names import KUBECONFIG, SESSION
from herder.api.management.kinds import TOKEN
from herder.api.management.names import TOKENS_NAMESPACE
from herder.api.settings import (
    KUBECONFIG_DEFAULT_TTL,
    KUBECONFIG_MAX_TTL,
    SESSION_TTL,
    TOKEN_DEFAULT_TTL,
    TOKEN_MAX_TTL,
)
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError, Unauthorized
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from herder.gateway.identity.identity import MUST_AUTHENTICATE, Identity

_SUFFIX_LENGTH = 10  # Characters from an alphabet of 27, so that collisions are negligible.


@dataclass(frozen=True, slots=True)
class Issued:
    """A new token with its key."""

    record: TokenRecord
    obj: Object = field(repr=False)
    key: str = field(repr=False)

    @property
    def bearer(self) -> str:
        return f"{token_id(self.record.name, ext=self.record.ext)}:{self.key}"


class Issuer:
    """Creates tokens."""

    def __init__(
        self,
        client: Client,
        identity: Identity,
        *,
        clock: Callable[[], datetime],
        entropy: Entropy,
        setting: Callable[[str], str],
    ) -> None:
        self._client = client
        self._identity = identity
        self._known = identity.known
        self._clock = clock
        self._entropy = entropy
        self._setting = setting

    def lifetime(self, kind: str, requested_ms: int) -> int:
        """TTL granted for a token of this kind under the current settings."""
        default, most = {
            SESSION: (SESSION_TTL, SESSION_TTL),
            KUBECONFIG: (KUBECONFIG_DEFAULT_TTL, KUBECONFIG_MAX_TTL),
        }.get(kind, (TOKEN_DEFAULT_TTL, TOKEN_MAX_TTL))
        minutes = [int(self._setting(name)) for name in (default, most)]
        return granted_ttl(requested_ms, default_minutes=minutes[0], max_minutes=minutes[1])

    async def issue(self, wanted: NewToken) -> Issued:
        """Create a Token of management.cattle.io."""
        wanted = await self._with_owner(wanted)
        key = hashes.new_key(self._entropy)
        prefix = f"kubeconfig-{wanted.user}" if wanted.kind == KUBECONFIG else "token"
        obj = token_object(wanted, self._named(prefix), hashes.hash_key(key, self._entropy))
        made = await self._client.create(TOKEN.resource, obj)
        self._known.wrote(made)
        return Issued(from_token(made), made, key)

    async def issue_ext(self, wanted: NewToken) -> Issued:
        """Create a Token of ext.cattle.io, stored as a Secret."""
        wanted = await self._with_owner(wanted)
        key = hashes.new_key(self._entropy)
        uid = str(uuid.UUID(bytes=self._entropy(16), version=4))
        secret = token_secret(wanted, self._named("token"), hashes.hash_key(key, self._entropy), uid, self._clock())
        made = await self._client.create(SECRET.resource, secret, namespace=TOKENS_NAMESPACE)
        self._known.wrote(made)
        return Issued(from_secret(made), made, key)

    async def issue_derived(self, wanted: NewToken, caller: User) -> Issued:
        """Create a token for the user of a request, unless the token of the request ended meanwhile.

        A request can take seconds, for example to check which of many clusters its user may use.
        """
        issued = await self.issue_ext(wanted)
        try:
            self._identity.check_again(caller)
        except StatusError:
            await self._client.delete(SECRET.resource, issued.record.name, namespace=TOKENS_NAMESPACE)
            self._known.removed(issued.record)
            raise
        return issued

    async def _with_owner(self, wanted: NewToken) -> NewToken:
        """Own the token by its user, so that it is deleted with the user and not inherited by a namesake."""
        user = await self._known.user(wanted.user)
        if user is None:
            raise Unauthorized(MUST_AUTHENTICATE)
        return replace(wanted, owners=(user_reference(user),))

    def _named(self, prefix: str) -> str:
        return f"{prefix}-{hashes.new_key(self._entropy)[:_SUFFIX_LENGTH]}"
