"""Logins and changes of passwords wait for each other, and the password or its user can change meanwhile."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn import passwords
from herder.api.identity.authn.tokens import NewToken
from herder.api.identity.names import PASSWORDS_NAMESPACE
from herder.api.management.kinds import TOKEN, USER
from herder.engine.meta.errors import Forbidden, Unauthorized
from herder.engine.wire import Request, Response
from herder.gateway.identity import passwords as password_checks
from herder.gateway.identity.issuer import Issued
from tests.support.canaries import canary
from tests.unit.engine.runtime.envtest import until
from tests.unit.gateway.identity.harness import RANDOM, IdentityHarness, new_request, request_with_token
from tests.unit.gateway.identity.test_logins import PASSWORD, cheap_hashes, content, handle, harness, login

__all__ = ["cheap_hashes", "harness"]


async def store_password(harness: IdentityHarness, password: str) -> str:
    """Store a password as another replica would. Return the hash."""
    name = harness.identity.known.user_of_login("alice")["metadata"]["name"]  # type: ignore[index]
    stored = passwords.hash_password(password, RANDOM.randbytes)
    data = {"hash": base64.b64encode(stored.encode()).decode()}
    await harness.env.outside.patch(SECRET.resource, name, {"data": data}, namespace=PASSWORDS_NAMESPACE)
    return stored


async def queue(harness: IdentityHarness, request: Request) -> asyncio.Future[Response]:
    """Begin a login that waits for others."""
    comparisons = harness.parts.logins._passwords
    for _ in range(password_checks.CONCURRENT_HASHES):
        await comparisons._slots.acquire()
    late = asyncio.ensure_future(handle(harness, request))
    await until(lambda: comparisons._waiting)
    return late


async def test_a_login_that_waits_while_the_password_changes_fails(harness: IdentityHarness) -> None:
    """A change ends the sessions that exist, so the session of the old password would remain."""
    comparisons = harness.parts.logins._passwords
    late = await queue(harness, login())
    await store_password(harness, canary("another password of alice"))
    comparisons._slots.release()
    with pytest.raises(Unauthorized):
        await late


async def test_no_session_of_the_old_password_is_created_after_a_change(
    harness: IdentityHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = harness.parts.issuer.issue

    async def issue_later(wanted: NewToken) -> Issued:
        await store_password(harness, canary("another password of alice"))
        return await issue(wanted)

    monkeypatch.setattr(harness.parts.issuer, "issue", issue_later)
    with pytest.raises(Unauthorized):
        await handle(harness, login())
    assert not (await harness.env.outside.list(TOKEN.resource)).items


@pytest.mark.parametrize("field", [{"enabled": False}, {"mustChangePassword": True}], ids=str)
async def test_a_login_that_waits_while_its_user_is_disabled_fails(harness: IdentityHarness, field: Any) -> None:
    comparisons, known = harness.parts.logins._passwords, harness.identity.known
    late = await queue(harness, login(responseType="kubeconfig"))
    name = known.user_of_login("alice")["metadata"]["name"]  # type: ignore[index]
    await harness.env.outside.patch(USER.resource, name, field)
    await until(lambda: field.items() <= (known.cached_user(name) or {}).items())
    comparisons._slots.release()
    with pytest.raises((Unauthorized, Forbidden)):
        await late


async def test_a_password_change_does_not_replace_another_one(
    harness: IdentityHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows the old password could otherwise undo the change of its user, by having requested one before."""
    user = await harness.identity.authenticate(request_with_token(content(await handle(harness, login()))["token"]))
    to_thread = asyncio.to_thread
    stored: list[str] = []

    async def compute(function: Any, *args: Any) -> Any:
        result = await to_thread(function, *args)
        if function is hash_password:
            stored.append(await store_password(harness, canary("the new password of alice")))
        return result

    hash_password = passwords.hash_password
    monkeypatch.setattr(asyncio, "to_thread", compute)
    spec = {"currentPassword": PASSWORD, "newPassword": canary("the password of a thief")}
    request = new_request("POST", "/apis/ext.cattle.io/v1/passwordchangerequests", {"spec": spec})
    with pytest.raises(Forbidden, match="wrong password"):
        await harness.parts.ext.handle(request, user)
    secret = await harness.env.outside.get(SECRET.resource, user.name, namespace=PASSWORDS_NAMESPACE)
    assert [base64.b64decode(secret["data"]["hash"]).decode()] == stored
