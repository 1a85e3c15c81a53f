"""The agent's own cluster: its API server, and the credential that the manager uses there."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from herder.api.capi.kinds import SECRET
from herder.api.management.names import (
    AGENT_ACCOUNT,
    AGENT_REGISTRATION_SECRET,
    AGENT_TOKEN_SECRET,
    SYSTEM_NAMESPACE,
)
from herder.api.management.parameters import Parameters
from herder.clusteragent.configuration import ConfigurationError
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import KubeconfigError, RestConfig, in_cluster, load
from herder.engine.meta.errors import Forbidden, NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
ASKED_SECONDS = 365 * 24 * 3600


@dataclass(frozen=True)
class Credential:
    parameters: Parameters
    good_for: float | None = None  # seconds until it should be renewed; None: never


def connection(kubeconfig: Path | None) -> RestConfig:
    try:
        found = load(kubeconfig) if kubeconfig else in_cluster()
    except KubeconfigError as error:
        hint = "" if kubeconfig else "; outside of a pod, pass --kubeconfig"
        raise ConfigurationError(f"{error}{hint}") from None
    if not found.server.startswith("https://"):
        raise ConfigurationError(f"kubeconfig: server {found.server} must be an https URL")
    if not found.ca:
        raise ConfigurationError(
            "kubeconfig: certificate-authority is required; the manager verifies the API server with it"
        )
    return found


def address(found: RestConfig) -> str:
    parts = urlsplit(found.server)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or 443}"


async def credential(found: RestConfig) -> Credential:
    """Return the credential for the manager: the token of the agent's ServiceAccount.

    It comes from a token Secret if the cluster fills it, else from the TokenRequest API, else it is the agent's own
    token.
    """
    client = Client(HttpTransport(found), field_manager="cluster-agent")
    try:
        token = await _kept(client)
        good_for = None
        if not token:
            token, good_for = await _requested(client)
    finally:
        await client.close()
    if not token:
        token = found.token or (Path(found.token_file).read_text().strip() if found.token_file else "")
        good_for = 1800.0 if found.token_file else None
    if not token:
        raise ConfigurationError(
            f"ServiceAccount {SYSTEM_NAMESPACE}/{AGENT_ACCOUNT} does not exist, or the user of the kubeconfig cannot "
            "create tokens for it; apply the manifest of the cluster first"
        )
    return Credential(Parameters(address(found), token, (found.ca or b"").decode()), good_for)


async def _kept(client: Client) -> str:
    try:
        return _token_in(await client.get(SECRET.resource, AGENT_TOKEN_SECRET, namespace=SYSTEM_NAMESPACE))
    except (NotFound, Forbidden):
        return ""


async def _requested(client: Client) -> tuple[str, float | None]:
    wish = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": ASKED_SECONDS},
    }
    try:
        made = await client.create(
            SERVICE_ACCOUNT.resource, wish, namespace=SYSTEM_NAMESPACE, name=AGENT_ACCOUNT, subresource="token"
        )
    except (NotFound, Forbidden):
        return "", None
    ends = datetime.fromisoformat(made["status"]["expirationTimestamp"])
    remaining = (ends - datetime.now(UTC)).total_seconds()
    return str(made["status"]["token"]), max(remaining / 2, 60.0)


async def follow_registration(found: RestConfig, replaced: Callable[[str], None], pause: float) -> None:
    """Report the registration token that the manager stores in the cluster, on every change, until cancelled."""
    client = Client(HttpTransport(found), field_manager="cluster-agent")
    try:
        while True:
            try:
                await _follow(client, replaced)
            except StatusError as problem:
                log.warning("cannot watch the registration token in the cluster: %s", problem.message)
            await asyncio.sleep(pause)
    finally:
        await client.close()


async def _follow(client: Client, replaced: Callable[[str], None]) -> None:
    events = client.watch(
        SECRET.resource,
        namespace=SYSTEM_NAMESPACE,
        fields=f"metadata.name={AGENT_REGISTRATION_SECRET}",
        initial_events=True,
    )
    async with aclosing(events):
        async for event in events:
            if event.type in {"ADDED", "MODIFIED"}:
                replaced(_token_in(event.object))


def _token_in(secret: Object) -> str:
    try:
        return base64.b64decode((secret.get("data") or {}).get("token") or "").decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
