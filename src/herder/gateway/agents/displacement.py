"""Which agent represents a cluster: when another agent may replace the one that registered before.

A registration token lets an agent register, but does not prove that it runs in the same cluster. Whoever obtains it
must not redirect a cluster in use, because its address and CA decide where user requests go. An agent with another
credential than the recorded one therefore needs proof:

1. The recorded service account token is proof by itself: only the cluster and the manager know it.

2. While an agent is connected, the cluster's API server confirms through the existing session that the new token
belongs to the same service account.

3. If the existing session has not reached an API server that accepts the recorded credential for UNRESPONSIVE_AFTER, it
is closed. Then, and while no agent is connected, an agent is accepted if it brings no unrecorded certificate: it was
reinstalled.

4. An agent of another cluster, such as a rebuilt one, is accepted if none has been connected for REPLACEABLE_AFTER, and
reported.

An agent belongs to the same cluster only if host and CA of its API server are the recorded ones. The CA alone is
public, and on k3s it signs the serving certificates of all nodes.

An attacker who replaced the agent may terminate TLS with a CA of their own. A new token is therefore only sent to a
server with a certificate of the CA that both agents named.

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
from cryptography.hazmat.primitives.serialization import Encoding

from herder.api.capi.conditions import find
from herder.api.capi.typed import mapping, texts
from herder.api.management.clusters import CONNECTED, connected_since
from herder.api.management.parameters import Parameters
from herder.api.times import parse_time
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.tunnel.errors import TunnelError

REPLACEABLE_AFTER = timedelta(minutes=10)
"""Longer than a restart of the manager, an agent or a node, so that a short absence replaces nobody."""
UNRESPONSIVE_AFTER = timedelta(minutes=1)
"""A briefly slow API server does not end the session of its agent."""
ANSWER_SECONDS = 5.0  # agents time out after ten
REVIEWS = GroupVersionResource("authentication.k8s.io", "v1", "tokenreviews")


class Verdict(Enum):
    """Decision about a registering agent."""

    SAME = "same"  # the recorded agent
    ACCEPTED = "accepted"  # another agent of the same cluster
    REPLACED = "replaced"  # an agent of another cluster replaces one that has been disconnected for long
    DISPLACED = "displaced"  # an agent with the same CA replaces one whose session is unresponsive
    REFUSED = "refused"


class Answer(Enum):
    """A connected cluster's answer about a service account token."""

    VOUCHES = "vouches"
    DENIES = "denies"
    SILENT = "silent"  # no answer, or the recorded credential is rejected


_VERDICTS = {
    Answer.VOUCHES: Verdict.ACCEPTED,
    Answer.DENIES: Verdict.REFUSED,
    Answer.SILENT: Verdict.DISPLACED,
}


async def decide_agent(
    cluster: Object,
    recorded_token: str,
    claimed: Parameters,
    now: datetime,
    *,
    connected: bool,
    ask: Callable[[str, str], Awaitable[Answer]],
) -> Verdict:
    """Decide about an agent. `cluster` and `recorded_token` are as stored; `ask` queries the connected cluster about
    the new token."""
    status = cluster.get("status") or {}
    endpoint = str(status.get("apiEndpoint") or "")
    if not endpoint or not recorded_token:
        return Verdict.ACCEPTED  # the first agent of this cluster
    if hmac.compare_digest(recorded_token.encode(), claimed.token.encode()):
        return Verdict.SAME
    before, after = _recorded_certificates(status), _certificates(claimed.ca.encode())
    shared = before & after if _host(endpoint.removeprefix("https://")) == _host(claimed.address) else set()
    is_known = bool(shared) and after <= before
    if not connected:
        return Verdict.ACCEPTED if is_known else _after_disconnect(cluster, now)
    if not shared:
        return Verdict.REFUSED
    answer = await ask(claimed.token, "".join(sorted(shared)))
    return Verdict.REFUSED if answer is Answer.SILENT and not is_known else _VERDICTS[answer]


def _after_disconnect(cluster: Object, now: datetime) -> Verdict:
    condition = find(cluster, CONNECTED) or {}
    since = parse_time(condition.get("lastTransitionTime"))
    is_short = since is not None and now - since < REPLACEABLE_AFTER
    # A controller updates the condition after the agent disconnected. Until then its time is that of the connection.
    if connected_since(cluster) or condition.get("status") == "True" or is_short:
        return Verdict.REFUSED
    return Verdict.REPLACED


def _host(address: str) -> str:
    """Host of `host:port`; certificates are for hosts."""
    return address.rpartition(":")[0].lower()


def _recorded_certificates(status: Object) -> set[str]:
    try:
        return _certificates(base64.b64decode(str(status.get("caCert") or ""), validate=True))
    except binascii.Error:
        return set()


def _certificates(bundle: bytes) -> set[str]:
    """Normalized PEM certificates of a bundle; during rotation it contains the old and the new one."""
    try:
        return {each.public_bytes(Encoding.PEM).decode() for each in x509.load_pem_x509_certificates(bundle)}
    except ValueError:
        return set()


ClientOf = Callable[[str, str], Awaitable[tuple[Callable[[str], Client], str]]]
"""For a cluster and the CA certificates that its API server must present: a client factory by token, and the
recorded token."""


class AgentTokenReview:
    """Reviews a token through the session of the connected agent; silence counts only after UNRESPONSIVE_AFTER."""

    def __init__(self, client_of: ClientOf, clock: Callable[[], datetime]) -> None:
        """`client_of` returns a client factory for the cluster, and the recorded credential."""
        self._client_of = client_of
        self._clock = clock
        # By cluster and token: unresponsive since, and last query. The connected agent could answer some tokens and
        # ignore others.
        self._unresponsive: dict[tuple[str, str], tuple[datetime, datetime]] = {}

    async def __call__(self, cluster: str, token: str, ca: str) -> Answer:
        answer, now = await self._ask(cluster, token, ca), self._clock()
        self._unresponsive = {
            key: known for key, known in self._unresponsive.items() if now - known[1] < UNRESPONSIVE_AFTER
        }
        key = cluster, token
        if answer is not Answer.SILENT:
            self._unresponsive.pop(key, None)
            return answer
        since, _ = self._unresponsive.get(key, (now, now))
        self._unresponsive[key] = since, now
        return Answer.SILENT if now - since >= UNRESPONSIVE_AFTER else Answer.DENIES

    def forget(self, cluster: str) -> None:
        self._unresponsive = {key: known for key, known in self._unresponsive.items() if key[0] != cluster}

    async def _ask(self, cluster: str, token: str, ca: str) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                client, recorded = await self._client_of(cluster, ca)
                return await _compare(client, recorded, token)
        except Forbidden:
            return Answer.DENIES  # The cluster answers, but neither credential may review tokens.
        except (StatusError, TunnelError, OSError, TimeoutError):
            return Answer.SILENT


async def _compare(client: Callable[[str], Client], recorded: str, token: str) -> Answer:
    try:
        own = await _account(client(recorded), recorded)
        if not own:
            return Answer.SILENT
        return Answer.VOUCHES if await _account(client(recorded), token) == own else Answer.DENIES
    except Forbidden:
        # Every agent may review tokens, so the recorded credential may be that of any pod, presented by an attacker. A
        # token that may review tokens is more credible.
        return Answer.VOUCHES if await _account(client(token), token) else Answer.DENIES


async def _account(client: Client, token: str) -> tuple[str, str] | None:
    """Name and UID of the service account that the API server finds in a token."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = mapping((await client.create(REVIEWS, review)).get("status"))
    user = texts(("username", "uid"), mapping(status.get("user")))
    name = user.get("username", "")
    return (name, user.get("uid", "")) if status.get("authenticated") is True and name else None
