"""Requests to servers. The first ones do not verify certificates, as k3s with a token that pins no CA."""

from __future__ import annotations

import asyncio
import logging
import ssl
import urllib.error
import urllib.request

from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig

from .config import K3sConfig

PAUSE_SECONDS = 1.0


async def fetch_with_retry(url: str, token: str = "") -> str:
    """Fetch a URL; retry until the server responds."""
    while True:
        try:
            return await asyncio.to_thread(_fetch_once, url, token)
        except urllib.error.HTTPError as problem:
            raise SystemExit(f"{url}: {problem}") from None
        except OSError as problem:
            logging.getLogger().warning("%s: %s", url, problem)
            await asyncio.sleep(PAUSE_SECONDS)


def _fetch_once(url: str, token: str) -> str:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, context=unverified, timeout=10) as answer:
        return str(answer.read().decode())


def client_of(config: K3sConfig, authority: str) -> Client:
    """A client of the first server, whose certificate every server presents."""
    token = config.configuration.token
    return Client(
        HttpTransport(RestConfig(config.server_url, authority.encode(), token=token, tls_server_name="kubernetes"))
    )
