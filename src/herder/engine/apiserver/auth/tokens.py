"""Issue and verify service account tokens.

A valid signature is verified once and cached. On every use the store is checked for the service account and the Pod,
Secret or Node that the token is bound to, so the token of a deleted account is rejected by the next request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import json

from herder.engine.apiserver.auth.jwt import Claims, SigningKey, TokenError, unverified_claims
from herder.engine.apiserver.auth.policy import quoted
from herder.engine.apiserver.auth.users import SERVICE_ACCOUNT_PREFIX, service_account_user, split_service_account
from herder.engine.meta.kinds import Object
from herder.engine.store import Key, Record, Store
from herder.engine.wire import User

DEFAULT_ISSUER = "https://kubernetes.default.svc.cluster.local"
LEGACY_ISSUER = "kubernetes/serviceaccount"
LEGACY_TOKEN_TYPE = "kubernetes.io/service-account-token"
INVALID_SINCE_LABEL = "kubernetes.io/legacy-token-invalid-since"

_LEGACY = "kubernetes.io/serviceaccount/"
_EXTRA = "authentication.kubernetes.io/"
_LEEWAY = timedelta(minutes=1)  # for clock skew, and between a deletion and the end of the token
_MAX_CACHED_TOKENS = 10_000

_ACCOUNTS, _SECRETS, _PODS, _NODES = "serviceaccounts", "secrets", "pods", "nodes"


class TokenIssuer:
    """Issues tokens. Random identifiers come from `entropy`, keys never do."""

    def __init__(
        self,
        key: SigningKey,
        *,
        entropy: Callable[[int], bytes],
        issuer: str = DEFAULT_ISSUER,
        audiences: Sequence[str] = (),
    ) -> None:
        self.key = key
        self.issuer = issuer
        self.audiences = tuple(audiences) or (issuer,)  # audiences of this server, one of which a token must contain
        self._entropy = entropy

    def bound_token(
        self,
        account: Object,
        *,
        now: datetime,
        seconds: int,
        audiences: Sequence[str] = (),
        pod: Object | None = None,
        secret: Object | None = None,
        node: Object | None = None,
        warn_after: int = 0,
    ) -> str:
        """Issue a token that is valid until it expires, or its account or bound object is deleted."""
        metadata = account["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        issued = int(now.timestamp())
        private: Claims = {"namespace": namespace}
        for kind, bound in (("node", node), ("pod", pod), ("secret", secret)):
            if bound is not None:
                private[kind] = _reference(bound)
        private["serviceaccount"] = _reference(account)
        if warn_after:
            private["warnafter"] = issued + warn_after
        return self.key.sign({
            "aud": list(audiences) or list(self.audiences),
            "exp": issued + seconds,
            "iat": issued,
            "iss": self.issuer,
            "jti": str(uuid.UUID(bytes=self._entropy(16), version=4)),
            "kubernetes.io": private,
            "nbf": issued,
            "sub": f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}",
        })  # fmt: skip

    def legacy_token(self, account: Object, secret_name: str) -> str:
        """Issue the token of a Secret of type kubernetes.io/service-account-token. It is valid as long as the Secret
        exists."""
        metadata = account["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        return self.key.sign({
            "iss": LEGACY_ISSUER,
            _LEGACY + "namespace": namespace,
            _LEGACY + "secret.name": secret_name,
            _LEGACY + "service-account.name": name,
            _LEGACY + "service-account.uid": metadata["uid"],
            "sub": f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}",
        })  # fmt: skip

    def openid_configuration(self, server: str) -> Object:
        """Return the OpenID discovery document for a server at `server` (scheme and host)."""
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{server}/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }


def _reference(obj: Object) -> Object:
    metadata = obj["metadata"]
    return {"name": metadata["name"]} | ({"uid": metadata["uid"]} if metadata.get("uid") else {})


@dataclass(slots=True)
class _VerifiedToken:
    """Verified claims of a token."""

    claims: Claims
    checked: dict[Key, Record] = field(default_factory=dict)  # bound objects, as last checked


class TokenVerifier:
    """Authenticates service account tokens of `issuer` for one server."""

    def __init__(self, issuer: TokenIssuer, store: Store, *, clock: Callable[[], datetime]) -> None:
        self._issuer = issuer
        self._store = store
        self._clock = clock
        self._cache: dict[bytes, _VerifiedToken] = {}

    @property
    def audiences(self) -> tuple[str, ...]:
        """Audiences of this server."""
        return self._issuer.audiences

    async def __call__(self, token: str) -> User | None:
        """Return the user; None if it is not a service account token. Raises TokenError if it is invalid."""
        found = self.verify(token, self._issuer.audiences)
        return found[0] if found else None

    def verify(self, token: str, audiences: Sequence[str]) -> tuple[User, tuple[str, ...]] | None:
        """Return the user, and those of the audiences that the token is valid for."""
        verified = self._verify_signature(token)
        if verified is None:
            return None
        claims = verified.claims
        if claims.get("iss") == LEGACY_ISSUER:
            named = tuple(self._issuer.audiences)  # legacy tokens have no audiences and are valid for this server
            user = self._legacy_user(token, verified)
        else:
            named = _strings(claims.get("aud"))
            user = self._bound_user(verified)
        shared = tuple(audience for audience in audiences if audience in named)
        if not shared:
            raise TokenError(
                f"token audiences {_quote_all(named)} is invalid for the target audiences {_quote_all(audiences)}"
            )
        return user, shared

    def _verify_signature(self, token: str) -> _VerifiedToken | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        verified = self._cache.get(digest)
        if verified is not None:
            return verified
        try:
            issuer = unverified_claims(token).get("iss")
        except TokenError:
            return None
        if issuer not in (self._issuer.issuer, LEGACY_ISSUER):
            return None
        verified = _VerifiedToken(self._issuer.key.verify(token))
        if len(self._cache) >= _MAX_CACHED_TOKENS:
            self._cache.clear()
        self._cache[digest] = verified
        return verified

    def _bound_user(self, verified: _VerifiedToken) -> User:
        claims = verified.claims
        self._check_times(claims)
        private = claims.get("kubernetes.io")
        if not isinstance(private, dict):
            raise TokenError("kubernetes.io claim is missing")
        namespace = str(private.get("namespace"))
        account = _parse_reference(private.get("serviceaccount")) or ("", "")
        self._check_bound_object(verified, Key(_ACCOUNTS, namespace, account[0]), account[1])
        secret, pod, node = (_parse_reference(private.get(kind)) for kind in ("secret", "pod", "node"))
        if secret:
            self._check_bound_object(verified, Key(_SECRETS, namespace, secret[0]), secret[1])
        if pod:
            self._check_bound_object(verified, Key(_PODS, namespace, pod[0]), pod[1])
        elif node:
            self._check_bound_object(verified, Key(_NODES, "", node[0]), node[1])
        extra = {_EXTRA + "credential-id": (f"JTI={claims['jti']}",)} if claims.get("jti") else {}
        for kind, bound in (("node", node), ("pod", pod)):
            if bound:
                extra[f"{_EXTRA}{kind}-name"] = (bound[0],)
                if bound[1]:
                    extra[f"{_EXTRA}{kind}-uid"] = (bound[1],)
        return service_account_user(namespace, account[0], account[1], extra)

    def _legacy_user(self, token: str, verified: _VerifiedToken) -> User:
        claims = verified.claims
        namespace, secret_name, name, uid = (
            str(claims.get(_LEGACY + part, ""))
            for part in ("namespace", "secret.name", "service-account.name", "service-account.uid")
        )
        if not (namespace and secret_name and name and uid):
            raise TokenError("a claim is missing")
        if split_service_account(str(claims.get("sub"))) != (namespace, name):
            raise TokenError("sub claim is invalid")
        secret = self._decoded(Key(_SECRETS, namespace, secret_name))
        if secret is None or secret["metadata"].get("deletionTimestamp"):
            raise TokenError("Token has been invalidated")
        if not _contains_token(secret, token):
            raise TokenError("Token does not match server's copy")
        if (secret["metadata"].get("labels") or {}).get(INVALID_SINCE_LABEL):
            raise TokenError("the token has been marked invalid")
        self._check_bound_object(verified, Key(_ACCOUNTS, namespace, name), uid)
        return service_account_user(namespace, name, uid)

    def _check_times(self, claims: Claims) -> None:
        now = self._clock().timestamp()
        leeway = _LEEWAY.total_seconds()
        expires = claims.get("exp")
        if not isinstance(expires, int | float) or now > expires + leeway:
            raise TokenError("service account token has expired")
        for claim in ("nbf", "iat"):
            begins = claims.get(claim)
            if begins is not None and (not isinstance(begins, int | float) or now < begins - leeway):
                raise TokenError("service account token is not valid yet")

    def _check_bound_object(self, verified: _VerifiedToken, key: Key, uid: str) -> None:
        """Check that the object still is the one that the token was issued for."""
        record = self._store.get(key)
        if record is not None and verified.checked.get(key) is record:
            return
        obj = self._decoded(key)
        if obj is None or obj["metadata"].get("uid") != uid:
            raise TokenError("service account token has been invalidated")
        deleted = obj["metadata"].get("deletionTimestamp")
        if deleted:
            # Not cached: the same object is no longer accepted after the leeway.
            if datetime.fromisoformat(deleted) < self._clock().astimezone(UTC) - _LEEWAY:
                raise TokenError("service account token has been invalidated")
        elif record is not None:
            verified.checked[key] = record

    def _decoded(self, key: Key) -> Any:
        record = self._store.get(key)
        return json.decode(record.value) if record else None


def _parse_reference(reference: Any) -> tuple[str, str] | None:
    if not isinstance(reference, dict):
        return None
    return str(reference.get("name", "")), str(reference.get("uid", ""))


def _contains_token(secret: Object, token: str) -> bool:
    try:
        stored_token = base64.b64decode((secret.get("data") or {}).get("token", ""))
    except ValueError:
        return False
    return hmac.compare_digest(stored_token, token.encode("utf-8", "surrogatepass"))


def _quote_all(values: Sequence[str]) -> str:
    return "[" + " ".join(quoted(value) for value in values) + "]"


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
