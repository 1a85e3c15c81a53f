"""Authentication by client certificate or bearer token, or as anonymous."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence

from herder.engine.apiserver.auth.jwt import TokenError
from herder.engine.apiserver.auth.users import ANONYMOUS, authenticated
from herder.engine.meta.errors import Unauthorized
from herder.engine.wire import Request, User

# Returns the user of a token; None if the token is of another issuer; raises TokenError if it is invalid.
TokenAuthenticator = Callable[[str], Awaitable[User | None]]

_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
_WEBSOCKET_BEARER = "base64url.bearer.authorization.k8s.io."
_MAX_CACHED_CERTIFICATES = 4096


class Authenticator:
    """Authenticates requests. `token_authenticators` are tried in order; other packages append their own."""

    def __init__(self, *, tokens: Sequence[TokenAuthenticator] = (), allow_anonymous: bool = True) -> None:
        self.token_authenticators: list[TokenAuthenticator] = list(tokens)
        self._allow_anonymous = allow_anonymous
        self._certificates: dict[bytes, User] = {}

    async def authenticate(self, request: Request) -> User | None:
        """Return the user; None without credentials (`users.ANONYMOUS`). Raises Unauthorized."""
        if request.user is not None:
            return request.user
        if request.client_certificate is not None:
            return self._certificate_user(request.client_certificate)
        token = bearer_token(request.headers)
        if token:
            return await self._token_user(token)
        if not self._allow_anonymous:
            raise Unauthorized("Unauthorized")
        return None

    async def token_user(self, token: str) -> User | None:
        """Return the user of a token; None if no authenticator recognizes it. Raises TokenError if it is invalid."""
        token_error: TokenError | None = None
        for authenticator in self.token_authenticators:
            try:
                user = await authenticator(token)
            except TokenError as error:
                token_error = error
                continue
            if user is not None:
                return authenticated(user)
        if token_error is not None:
            raise token_error
        return None

    async def _token_user(self, token: str) -> User:
        try:
            user = await self.token_user(token)
        except TokenError:
            user = None
        if user is None:
            raise Unauthorized("Unauthorized")
        return user

    def _certificate_user(self, der: bytes) -> User:
        user = self._certificates.get(der)
        if user is None:
            user = certificate_user(der)
            if len(self._certificates) >= _MAX_CACHED_CERTIFICATES:
                self._certificates.clear()
            self._certificates[der] = user
        return user


def bearer_token(headers: Mapping[str, str]) -> str:
    """Return the token of the Authorization header or of a WebSocket subprotocol; empty without one."""
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.split(" ", 1)[0]
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        encoded = protocol.strip()
        if encoded.startswith(_WEBSOCKET_BEARER):
            return _websocket_token(encoded.removeprefix(_WEBSOCKET_BEARER))
    return ""


def _websocket_token(encoded: str) -> str:
    """Decode a token sent as a WebSocket subprotocol, because browsers cannot set headers there."""
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise Unauthorized("Unauthorized") from None


def certificate_user(der: bytes) -> User:
    """Return the user of a verified client certificate: CN is the name, every O a group."""
    from cryptography import x509  # slow to import, and not needed for tokens
    from cryptography.x509.oid import NameOID

    from herder.engine.apiserver.pki import UID_OID

    try:
        subject = x509.load_der_x509_certificate(der).subject
    except ValueError:
        raise Unauthorized("Unauthorized") from None
    names = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    uids = [str(attribute.value) for attribute in subject.get_attributes_for_oid(UID_OID)]
    if not names or not names[-1] or len(uids) > 1 or uids == [""]:
        raise Unauthorized("Unauthorized")
    groups = tuple(str(item.value) for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    extra = {_CREDENTIAL_ID: (f"X509SHA256={hashlib.sha256(der).hexdigest()}",)}
    return authenticated(User(names[-1], uids[0] if uids else "", groups, extra))


class StaticTokens:
    """A fixed set of tokens, stored as hashes. All are compared, so that timing does not reveal which one is close."""

    def __init__(self, tokens: Mapping[str, User]) -> None:
        self._tokens = [(hashlib.sha256(token.encode()).digest(), user) for token, user in tokens.items()]

    async def __call__(self, token: str) -> User | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = None
        for known, user in self._tokens:
            if hmac.compare_digest(known, digest):
                found = user
        return found


__all__ = [
    "ANONYMOUS", "Authenticator", "StaticTokens", "TokenAuthenticator", "TokenError", "bearer_token",
    "certificate_user",
]  # fmt: skip
