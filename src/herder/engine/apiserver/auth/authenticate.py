"""Who is calling: a client certificate, a token, or nobody in particular."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence

from herder.engine.apiserver.auth.jwt import TokenError
from herder.engine.apiserver.auth.users import ANONYMOUS, authenticated
from herder.engine.client.wire import Request, User
from herder.engine.meta.errors import Unauthorized

# Says whose token it is; None: none of mine; TokenError: mine, and not to be believed.
TokenAuthenticator = Callable[[str], Awaitable[User | None]]

_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
_WEBSOCKET_BEARER = "base64url.bearer.authorization.k8s.io."
_REMEMBERED_CERTIFICATES = 4096


class Authenticator:
    """`token_authenticators` are asked in order; parts outside this package append their own."""

    def __init__(self, *, tokens: Sequence[TokenAuthenticator] = (), allow_anonymous: bool = True) -> None:
        self.token_authenticators: list[TokenAuthenticator] = list(tokens)
        self._allow_anonymous = allow_anonymous
        self._certificates: dict[bytes, User] = {}

    async def authenticate(self, request: Request) -> User | None:
        """None for a caller who brings nothing (who is then `users.ANONYMOUS`). Raises Unauthorized."""
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
        """Whose token this is; None where nobody vouches for it. TokenError says why not."""
        refused: TokenError | None = None
        for authenticator in self.token_authenticators:
            try:
                user = await authenticator(token)
            except TokenError as error:
                refused = error
                continue
            if user is not None:
                return authenticated(user)
        if refused is not None:
            raise refused
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
            if len(self._certificates) >= _REMEMBERED_CERTIFICATES:
                self._certificates.clear()
            self._certificates[der] = user
        return user


def bearer_token(headers: Mapping[str, str]) -> str:
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.split(" ", 1)[0]
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        encoded = protocol.strip()
        if encoded.startswith(_WEBSOCKET_BEARER):
            return _websocket_token(encoded.removeprefix(_WEBSOCKET_BEARER))
    return ""


def _websocket_token(encoded: str) -> str:
    """Browsers cannot set headers on a WebSocket, so the token may come as the name of a protocol."""
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise Unauthorized("Unauthorized") from None


def certificate_user(der: bytes) -> User:
    """The user that a (verified) client certificate stands for: CN is the name, each O a group."""
    from cryptography import x509  # heavy, and callers with tokens never need it
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
    """Tokens known beforehand. Kept as hashes; each is compared, so that time tells nothing about which are close."""

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
