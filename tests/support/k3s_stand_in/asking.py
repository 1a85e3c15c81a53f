"""Requests to servers: the first ones trust anybody, as those of k3s do with a token that pins nobody."""

from __future__ import annotations

import asyncio
import logging
import ssl
import urllib.error
import urllib.request

from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig

from .told import Told

PAUSE_SECONDS = 1.0


async def fetched(url: str, token: str = "") -> str:
    """A server that does not answer is waited for."""
    while True:
        try:
            return await asyncio.to_thread(_fetch, url, token)
        except urllib.error.HTTPError as problem:
            raise SystemExit(f"{url}: {problem}") from None
        except OSError as problem:
            logging.getLogger().warning("%s: %s", url, problem)
            await asyncio.sleep(PAUSE_SECONDS)


def _fetch(url: str, token: str) -> str:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, context=trusting, timeout=10) as answer:
        return str(answer.read().decode())


def client_of(told: Told, authority: str) -> Client:
    """The certificate is the first server's, whoever passes it on."""
    token = told.configuration.token
    return Client(HttpTransport(RestConfig(told.joins, authority.encode(), token=token, tls_server_name="kubernetes")))
