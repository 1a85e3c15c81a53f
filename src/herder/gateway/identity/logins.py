"""Login with a password, and logout.

A wrong password and an unknown user give the same response in the same time; the reason is only logged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn import passwords as rules
from herder.api.identity.authn.credentials import Credential
from herder.api.identity.authn.tokens import NewToken, TokenRecord, timestamp
from herder.api.identity.names import KUBECONFIG, LOCAL_PROVIDER, SESSION, SESSION_COOKIE
from herder.api.management.kinds import TOKEN
from herder.api.management.names import TOKENS_NAMESPACE
from herder.api.settings import TRUSTED_PROXIES
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import BadRequest, Forbidden, MethodNotAllowed, NotFound, TooManyRequests, Unauthorized
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response
from herder.gateway.identity.bodies import answer, body_of, number_of, text_of
from herder.gateway.identity.client_address import source_of
from herder.gateway.identity.identity import MUST_CHANGE, Identity
from herder.gateway.identity.issuer import Issued, Issuer
from herder.gateway.identity.passwords import Passwords
from herder.gateway.identity.throttle import LoginThrottle

log = get_logger(__name__)

FAILED = "authentication failed"
_LOGINS = frozenset({"/v1-public/login", "/v3-public/localProviders/local", "/v3-public/localproviders/local"})
_PROVIDERS = frozenset({"/v1-public/authproviders", "/v3-public/authProviders", "/v3-public/authproviders"})
PUBLIC_PATHS = _LOGINS | _PROVIDERS
_LOGOUTS = frozenset({"/v1/logout"})
_LONGEST_NAME = 253
_PROVIDER = {"id": LOCAL_PROVIDER, "type": "localProvider", "baseType": "authProvider", "enabled": True}
_COOKIE = "{}={}; Path=/; Secure; HttpOnly; SameSite=Strict"


class Logins:
    """Login and logout endpoints."""

    def __init__(
        self,
        client: Client,
        identity: Identity,
        issuer: Issuer,
        passwords: Passwords,
        throttle: LoginThrottle,
        setting: Callable[[str], str],
    ) -> None:
        self._client = client
        self._identity = identity
        self._issuer = issuer
        self._passwords = passwords
        self._throttle = throttle
        self._setting = setting

    async def handle(self, request: Request) -> Response | None:
        """Return None for other paths. These endpoints need no authenticated user."""
        if request.path in _LOGINS:
            _require_method(request, "POST")
            return await self._log_in(request)
        if request.path in _PROVIDERS:
            _require_method(request, "GET")
            return answer({"type": "collection", "resourceType": "authProvider", "data": [_PROVIDER]})
        if request.path in _LOGOUTS or _is_legacy_logout(request):
            _require_method(request, "POST")
            return await self._log_out(request)
        return None

    # --- login ------------------------------------------------------------------------------------------------------

    async def _log_in(self, request: Request) -> Response:
        await request.admit(None)
        body = await body_of(request)
        if text_of(body, "type", "localProvider") not in {"localProvider", "basicLogin", ""}:
            raise BadRequest('type: must be "localProvider", the only provider that is enabled')
        user, verified = await self._authenticated(request, text_of(body, "username"), text_of(body, "password"))
        response_type = text_of(body, "responseType")
        wanted = self._wanted(user, response_type, body)
        if wanted.kind != SESSION and user.get("mustChangePassword"):
            raise Forbidden(MUST_CHANGE)  # Only sessions are restricted until the password is changed.
        issued = await self._issuer.issue(wanted)
        if not await self._passwords.is_current(wanted.user, verified):
            await self._delete(issued.record)  # A change of the password ended only the sessions before it.
            raise Unauthorized(FAILED)
        log.info("login", user=user["metadata"]["name"], token=issued.record.id, address=request.remote)
        if response_type == "cookie":
            cookie = _COOKIE.format(SESSION_COOKIE, issued.bearer)
            return answer(_rendered(issued, with_key=False), 201, set_cookie=cookie)
        return answer(_rendered(issued, with_key=True), 201)

    async def _authenticated(self, request: Request, username: str, password: str) -> tuple[Object, str]:
        """Return the user, and the hash of the password."""
        if not username or not password:
            raise BadRequest("username and password: required")
        if len(username) > _LONGEST_NAME or len(password) > rules.MAX_LENGTH:
            raise Unauthorized(FAILED)
        source = source_of(request, self._setting(TRUSTED_PROXIES))
        wait = self._throttle.attempt(username, source)
        if wait:
            seconds = str(int(wait) + 1)
            raise TooManyRequests(
                f"too many failed logins; retry in {seconds} seconds", headers={"retry-after": seconds}
            )
        user = self._identity.known.user_of_login(username)
        name = user["metadata"]["name"] if user else None
        known = self._throttle.has_succeeded(username, source)
        verified = await self._passwords.verify(name, username, password, known=known)
        user = self._identity.known.cached_user(name) if name else None  # It may have been disabled meanwhile.
        if user is None or not verified or user.get("enabled") is False or user["metadata"].get("deletionTimestamp"):
            self._log_attempt(source, user, bool(verified))
            raise Unauthorized(FAILED)
        self._throttle.succeeded(username, source)
        return user, verified

    def _log_attempt(self, source: str, user: Object | None, fits: bool) -> None:
        """Do not log an unknown user name: users type passwords there."""
        if user is None:
            why = "unknown user"
        elif fits:
            why = "the user is disabled"
        elif rules.is_bcrypt(user.get("password") or ""):
            why = "the password in the User object is a bcrypt hash, which is not accepted; set a new password"
        else:
            why = "the password is wrong"
        name = user["metadata"]["name"] if user else ""
        log.warning("login refused", user=name, address=source, why=why)

    def _wanted(self, user: Object, response_type: str, body: Object) -> NewToken:
        kind, _, cluster = response_type.partition("_")
        kind = KUBECONFIG if kind == KUBECONFIG else SESSION
        return NewToken(
            user=user["metadata"]["name"],
            login_name=user.get("username") or "",
            display_name=user.get("displayName") or "",
            kind=kind,
            ttl_ms=self._issuer.lifetime(kind, max(0, number_of(body, "ttl"))),
            cluster=cluster if kind == KUBECONFIG else "",
            description=text_of(body, "description"),
        )

    # --- logout -----------------------------------------------------------------------------------------------------

    async def _log_out(self, request: Request) -> Response:
        """Delete the token of this request only."""
        await self._delete((await self._identity.identify(request)).token)
        return answer({}, set_cookie=_COOKIE.format(SESSION_COOKIE, "") + "; Max-Age=0")

    async def _delete(self, token: TokenRecord) -> None:
        resource, namespace = (SECRET.resource, TOKENS_NAMESPACE) if token.ext else (TOKEN.resource, "")
        with suppress(NotFound):
            await self._client.delete(resource, token.name, namespace=namespace, uid=token.uid)
        self._identity.known.removed(token)


def _require_method(request: Request, method: str) -> None:
    if request.method != method:
        raise MethodNotAllowed(f"{request.path}: only {method} is allowed")


def _is_legacy_logout(request: Request) -> bool:
    return request.path == "/v3/tokens" and request.query.get("action") == "logout"


def _rendered(issued: Issued, *, with_key: bool) -> Object:
    record = issued.record
    expires = record.expires()
    shown: Object = {
        "id": record.name,
        "name": record.name,
        "type": "token",
        "baseType": "token",
        "userId": record.user,
        "authProvider": record.provider,
        "description": record.description,
        "ttl": record.ttl_ms,
        "expired": False,
        "expiresAt": timestamp(expires) if expires else "",
        "enabled": True,
        "clusterId": record.cluster or None,
    }
    return shown | {"token": Credential(record.name, issued.key).bearer} if with_key else shown
