"""Which agent speaks for a cluster: when another one may take the place of the agent that registered before.

A registration token lets an agent register; it does not prove that the agent runs in the same cluster. Whoever holds it
for a moment must not redirect a cluster that is in use: its address and CA decide where requests of users go. So an
agent that presents another credential than the recorded one needs proof:

1. The recorded service account token is proof by itself: only the cluster and the manager know it.
2. While an agent is connected, the cluster vouches for the other one: through the existing session, its API server
   confirms that the new token belongs to the same account as the recorded one, and the CA is still the same.
3. Where the existing session has led for SILENT_FOR to no API server that accepts the recorded credential, it is ended.
   Then, and while no agent is connected, an agent with the same CA is accepted: it was installed again.
4. An agent with another CA, such as that of a rebuilt cluster, is accepted when none has been connected for
   REPLACED_AFTER, and reported.

Everything else is refused and reported in the condition AgentConflict and in the log.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from enum import Enum

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from herder.api.capi.conditions import find
from herder.api.management.clusters import CONNECTED, connected_since
from herder.api.management.parameters import Parameters
from herder.api.moments import moment
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.tunnel.errors import TunnelError

REPLACED_AFTER = timedelta(minutes=10)
"""Longer than a restart of the manager, of an agent or of a node: who is away for a moment keeps their place."""
SILENT_FOR = timedelta(minutes=1)
"""An API server that is slow for a moment does not end the session of its agent."""
ANSWER_SECONDS = 5.0  # agents give up after ten
REVIEWS = GroupVersionResource("authentication.k8s.io", "v1", "tokenreviews")


class Verdict(Enum):
    SAME = "same"  # the agent that is recorded
    ACCEPTED = "accepted"  # another agent of the same cluster
    REPLACED = "replaced"  # an agent of another cluster, in place of one that has been gone for long
    DISPLACED = "displaced"  # an agent with the same CA, in place of one whose session leads nowhere
    REFUSED = "refused"


class Answer(Enum):
    """What a connected cluster says of a service account token."""

    VOUCHES = "vouches"
    DENIES = "denies"
    SILENT = "silent"  # it does not answer, or does not accept the recorded credential


_VERDICTS = {
    Answer.VOUCHES: Verdict.ACCEPTED,
    Answer.DENIES: Verdict.REFUSED,
    Answer.SILENT: Verdict.DISPLACED,
}


async def judge(
    cluster: Object,
    recorded_token: str,
    claimed: Parameters,
    now: datetime,
    *,
    connected: bool,
    ask: Callable[[str], Awaitable[Answer]],
) -> Verdict:
    """`cluster` and `recorded_token` as they are stored; `ask` asks the connected cluster about the new token."""
    status = cluster.get("status") or {}
    if not status.get("apiEndpoint") or not recorded_token:
        return Verdict.ACCEPTED  # the first agent of all
    if hmac.compare_digest(recorded_token.encode(), claimed.token.encode()):
        return Verdict.SAME
    same_ca = _share_certificate(str(status.get("caCert") or ""), claimed.ca)
    if not connected:
        return Verdict.ACCEPTED if same_ca else _after_absence(cluster, now)
    return _VERDICTS[await ask(claimed.token)] if same_ca else Verdict.REFUSED


def _after_absence(cluster: Object, now: datetime) -> Verdict:
    condition = find(cluster, CONNECTED) or {}
    since = moment(condition.get("lastTransitionTime"))
    is_short = since is not None and now - since < REPLACED_AFTER
    if connected_since(cluster) or is_short:
        return Verdict.REFUSED
    return Verdict.REPLACED


def _share_certificate(recorded: str, claimed: str) -> bool:
    """A bundle that is being rotated holds the old certificate beside the new one."""
    try:
        before = x509.load_pem_x509_certificates(base64.b64decode(recorded, validate=True))
        after = x509.load_pem_x509_certificates(claimed.encode())
    except (binascii.Error, ValueError):
        return False
    known = {each.fingerprint(SHA256()) for each in before}
    return any(each.fingerprint(SHA256()) in known for each in after)


class Vouching:
    """Asks a cluster through the session of its connected agent. Silence counts once it has lasted."""

    def __init__(
        self, client_of: Callable[[str], Awaitable[tuple[Client, str]]], clock: Callable[[], datetime]
    ) -> None:
        """`client_of` returns a client of the cluster with the recorded credential, and that credential."""
        self._client_of = client_of
        self._clock = clock
        self._silent: dict[str, tuple[datetime, datetime]] = {}  # cluster → since when, and when it was asked last

    async def __call__(self, cluster: str, token: str) -> Answer:
        answer, now = await self._ask(cluster, token), self._clock()
        if answer is not Answer.SILENT:
            self._silent.pop(cluster, None)
            return answer
        since, asked = self._silent.get(cluster, (now, now))
        since = since if now - asked < SILENT_FOR else now  # what was between is not known
        self._silent[cluster] = (since, now)
        return Answer.SILENT if now - since >= SILENT_FOR else Answer.DENIES

    def forget(self, cluster: str) -> None:
        self._silent.pop(cluster, None)

    async def _ask(self, cluster: str, token: str) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                client, recorded = await self._client_of(cluster)
                own, other = [await _account(client, each) for each in (recorded, token)]
        except Forbidden:
            return Answer.DENIES  # it answers, and the recorded credential may not review tokens
        except (StatusError, TunnelError, OSError, TimeoutError):
            return Answer.SILENT
        if not own:
            return Answer.SILENT
        return Answer.VOUCHES if other == own else Answer.DENIES


async def _account(client: Client, token: str) -> tuple[str, str] | None:
    """Name and UID of the account that the API server finds in a token."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = (await client.create(REVIEWS, review)).get("status") or {}
    user = status.get("user") or {}
    return (user.get("username", ""), user.get("uid", "")) if status.get("authenticated") else None
