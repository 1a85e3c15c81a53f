"""Verify the manager by its pinned CA.

The CA certificates are fetched from the server itself, unverified, and used only if their digest matches the configured
checksum. Without a checksum the system's CAs are used. Verification cannot be disabled.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import ssl

import aiohttp

log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20
_TIMEOUT = aiohttp.ClientTimeout(total=30)


class Untrusted(Exception):
    """The server is not the agent's manager; a retry does not help."""


async def trusted(server: str, checksum: str) -> ssl.SSLContext:
    """Return the TLS context for all further connections to the server."""
    if not checksum:
        return ssl.create_default_context()
    certificates = await _fetched(server)
    digest = hashlib.sha256(f"{certificates}\n".encode()).hexdigest()
    if not hmac.compare_digest(digest, checksum):
        raise Untrusted(
            f"the CA certificates of {server} have the checksum {digest}, but CATTLE_CA_CHECKSUM is {checksum}; "
            "the connection may be intercepted, or the certificates were replaced. No data was sent"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError):
        raise Untrusted(f"{server}: its CA certificates are not valid PEM") from None
    return context


async def _fetched(server: str) -> str:
    """Fetch without verification: nothing confidential is sent, and the digest of the response is checked."""
    async with (
        aiohttp.ClientSession(timeout=_TIMEOUT) as session,
        session.get(f"{server}/v3/settings/cacerts", ssl=False, allow_redirects=False) as answer,
    ):
        if answer.status != 200:
            raise OSError(f"{server}/v3/settings/cacerts answers {answer.status}")
        body = await answer.content.read(_MOST_BYTES)
    try:
        value = json.loads(body)["value"]
    except (ValueError, KeyError, TypeError):
        raise OSError(f"{server}/v3/settings/cacerts: not a setting") from None
    return str(value)


async def check(server: str, context: ssl.SSLContext) -> None:
    """Raise `Untrusted` if another server responds, OSError if none does."""
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(f"{server}/ping", ssl=context, allow_redirects=False) as answer,
        ):
            await answer.content.read(_MOST_BYTES)
    except aiohttp.ClientConnectorCertificateError as error:
        reason = error.certificate_error
        why = getattr(reason, "verify_message", "") or str(reason)
        raise Untrusted(f"{server}: its certificate is not signed by a trusted CA: {why}") from None
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from None
    if answer.status >= 500:
        raise OSError(f"{server}/ping answers {answer.status}")


async def until_trusted(server: str, checksum: str, *, strict: bool, pause: float) -> ssl.SSLContext:
    """Wait for an unreachable server. An untrusted one is fatal, unless `strict` is off and it may still become
    trusted.
    """
    while True:
        try:
            context = await trusted(server, checksum)
            await check(server, context)
            return context
        except Untrusted as problem:
            if strict or checksum:
                raise
            log.error("%s", problem)
        except (OSError, aiohttp.ClientError, TimeoutError) as problem:
            log.warning("cannot reach %s: %s", server, problem or "no answer in time")
        await asyncio.sleep(pause)
