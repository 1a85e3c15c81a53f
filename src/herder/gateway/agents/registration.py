"""Registration of cluster agents: import manifest, CA discovery, and authorization of tunnels.

A registration token is valid for one cluster only, and nothing but the token identifies the cluster.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from herder.api import settings
from herder.api.capi.kinds import SECRET
from herder.api.capi.names import is_deleting
from herder.api.management import names, registration
from herder.api.management.clusters import AGENT_CUSTOMIZATION, is_internal, owns_namespace
from herder.api.management.commands import ca_checksum
from herder.api.management.kinds import MANAGEMENT_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.manifest import Agent, as_yaml, manifest
from herder.api.management.parameters import BadParameters, Parameters, decode
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response
from herder.gateway.agents.displacement import Answer, Verdict, decide_agent
from herder.gateway.agents.records import AgentRecords

log = get_logger(__name__)

BY_DIGEST = "digest"
WRONG_TOKEN = "cluster not found or invalid token"
FAILED = "failed authentication"
SECOND_AGENT = (
    "another agent of this cluster is or was just connected, and this one has neither its service "
    "account token nor its CA; remove the other agent, wait ten minutes, and retry"
)
_MAX_TOKEN = 256
_IMPORTS = "/v3/import/"
_IMPORT = re.compile(r"/v3/import/([a-z0-9]{1,256})_([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)\.yaml")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The session is accepted."""

    key: str  # session key: the cluster, with a prefix for the second tunnel


@dataclass(frozen=True, slots=True)
class Refused:
    """The session is refused."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """An agent with the registration token of a cluster, and the parameters it reports."""

    cluster: Object
    claimed: Parameters


class Registration:
    """Serves agents before and while they connect."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], datetime],
        setting: Callable[[str], str],
        on_cluster_deleted: Callable[[str], None] = lambda _cluster: None,
        connected: Callable[[str], bool] = lambda _cluster: False,
        vouch: Callable[[str, str, str], Awaitable[Answer]] | None = None,
        displace: Callable[[str], None] = lambda _cluster: None,
    ) -> None:
        """Callbacks:

        - `on_cluster_deleted` ends the sessions of a deleted cluster.
        - `connected` says whether an agent of the cluster has a session with any replica.
        - `vouch` asks a connected cluster about another token; without it no second agent is accepted.
        - `displace` ends unresponsive sessions of a cluster.
        """
        self._clock = clock
        self._setting = setting
        self._on_cluster_deleted = on_cluster_deleted
        self._connected = connected
        self._vouch = vouch
        self._displace = displace
        self._client = client
        self._secrets = Cache(SECRET, {BY_DIGEST: _digests})
        self._clusters = Cache(MANAGEMENT_CLUSTER)
        self._registrations = Cache(REGISTRATION_TOKEN)
        self._records = AgentRecords(client, clock)
        self._refused: dict[str, Refused] = {}  # reason of the last refusal by cluster
        self._registering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._informers = (
            Informer(client, self._secrets, lambda _change: None, labels=names.TOKEN_LABEL),
            Informer(client, self._registrations, lambda _change: None),
            Informer(client, self._clusters, self._cluster_changed),
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())

    async def ready(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()

    # --- anonymous requests -----------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Response | None:
        """Return None if the path is not served here."""
        is_manifest = request.path.startswith(_IMPORTS)
        if request.method not in {"GET", "HEAD"}:
            # The path contains a token, so it must not be forwarded.
            return _text(405, "only GET is allowed") if is_manifest else None
        if request.path == "/ping":
            return _text(200, "pong")
        if request.path == "/cacerts":
            return self._certificates(request.headers)
        if request.path == "/v3/settings/cacerts":
            return self._certificates_setting()
        if is_manifest:
            return self._manifest(request.path)
        return None

    def _certificates(self, headers: Mapping[str, str]) -> Response:
        """CA certificates with one trailing newline, as agents hash them.

        A client that sends the digest of a token gets an HMAC which proves that this manager knows the token.
        """
        known = self._setting(settings.SERVER_CERTIFICATES).strip()
        answer = _text(200, f"{known}\n" if known else "")
        nonce, presented = headers.get("x-cattle-nonce", ""), headers.get("authorization", "").removeprefix("Bearer ")
        token = self._token_of(presented) if nonce and presented else ""
        if token:
            proof = hmac.digest(token.encode(), b"\0".join((nonce.encode(), answer.content(), b"")), hashlib.sha512)
            answer.headers["x-cattle-hash"] = base64.b64encode(proof).decode()
        return answer

    def _token_of(self, presented: str) -> str:
        """The token with this base64 SHA-256, or ""."""
        try:
            digest = base64.b64decode(presented, validate=True).hex()
        except ValueError:  # not base64, or not ASCII
            return ""
        for secret in self._secrets.select(index=(BY_DIGEST, digest)):
            tokens = registration.read_tokens(secret) if self._is_issued(secret) else None
            for token in (tokens.token, tokens.previous) if tokens else ():
                if token and hmac.compare_digest(_digest(token), digest):
                    return token
        return ""

    def _certificates_setting(self) -> Response:
        """Agents add the newline themselves before they hash the value."""
        value = self._setting(settings.SERVER_CERTIFICATES).strip()
        status = {"id": "cacerts", "type": "setting", "name": "cacerts", "value": value}
        return Response(200, {"content-type": "application/json"}, json.dumps(status).encode())

    def _manifest(self, path: str) -> Response:
        found = _IMPORT.fullmatch(path)
        cluster = self._clusters.get(Key("", found[2])) if found else None
        if found is None or cluster is None or not self._is_token_of(found[2], found[1]):
            return _text(400, WRONG_TOKEN)
        agent = Agent(
            server_url=self._setting(settings.SERVER_URL).rstrip("/"),
            token=found[1],
            ca_checksum=ca_checksum(self._setting(settings.SERVER_CERTIFICATES)),
            image=self._setting(settings.AGENT_IMAGE),
            strict=self._setting(settings.AGENT_TLS_MODE) == "strict",
            environment=(cluster.get("spec") or {}).get("agentEnvVars") or (),
            customization=(cluster.get("spec") or {}).get(AGENT_CUSTOMIZATION) or {},
        )
        if not agent.server_url:
            return _text(503, "setting server-url: not set; the agent needs it to connect")
        return _text(200, as_yaml(manifest(agent)))

    # --- tunnels ----------------------------------------------------------------------------------------------------

    async def authorize(self, headers: Mapping[str, str]) -> Admitted | Refused:
        """Authorize a session by the headers (lower-case names) of `/v3/connect` or `/v3/connect/register`."""
        claim = self._claim(headers)
        if not isinstance(claim, Claim):
            return claim
        name = _name(claim.cluster)
        try:
            verdict = await self._register(claim.cluster, claim.claimed)
        except (StatusError, OSError) as error:
            log.warning("cannot store what an agent reported", cluster=name, error=str(error))
            verdict = Refused(503, "cannot store what the agent reported; try again")
        if isinstance(verdict, Refused):
            self._refused[name] = verdict
        return verdict

    def refusal(self, headers: Mapping[str, str]) -> Refused | None:
        """Why `authorize` refused these headers; registers nothing."""
        claim = self._claim(headers)
        if isinstance(claim, Claim):
            return self._refused.get(_name(claim.cluster))
        return claim if isinstance(claim, Refused) else None

    def _claim(self, headers: Mapping[str, str]) -> Claim | Admitted | Refused:
        """Admitted for the second tunnel of an agent, which registers nothing."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and bearer.startswith(names.AGENT_PREFIX):
            cluster = self.cluster_of(bearer.removeprefix(names.AGENT_PREFIX))
            return Refused(401, FAILED) if cluster is None else Admitted(names.AGENT_PREFIX + _name(cluster))
        cluster = self.cluster_of(headers.get(names.TUNNEL_TOKEN, ""))
        if cluster is None:
            return Refused(401, FAILED)
        try:
            return Claim(cluster, decode(headers.get(names.TUNNEL_PARAMETERS, "")))
        except BadParameters as problem:
            return Refused(400, str(problem))

    async def _register(self, cluster: Object, claimed: Parameters) -> Admitted | Refused:
        """Register one agent of a cluster at a time, against the stored state: of two concurrent agents, one is
        first."""
        name = _name(cluster)
        if self._records.is_stored(cluster, claimed):
            return Admitted(name)
        async with self._registering[name]:
            stored = await self._client.get(MANAGEMENT_CLUSTER.resource, name)
            recorded = await self._records.credential(stored)
            verdict = await decide_agent(
                stored, recorded, claimed, self._clock(), connected=self._connected(name), ask=partial(self._ask, name)
            )
            if verdict in (Verdict.REFUSED, Verdict.REPLACED, Verdict.DISPLACED):
                log.warning("another agent registers for a cluster", cluster=name, outcome=verdict.value)
                await self._records.report_conflict(name, verdict.value)
            if verdict is Verdict.REFUSED:
                return Refused(409, SECOND_AGENT)
            if verdict is Verdict.DISPLACED:
                self._displace(name)
            await self._records.store(stored, claimed)
        return Admitted(name)

    async def _ask(self, cluster: str, token: str, ca: str) -> Answer:
        return Answer.DENIES if self._vouch is None else await self._vouch(cluster, token, ca)

    def cluster_of(self, token: str) -> Object | None:
        """The cluster of a registration token.

        It is found by digest, so timing reveals nothing about tokens. A recreated cluster does not accept tokens of its
        deleted namesake.
        """
        if not token or len(token) > _MAX_TOKEN:
            return None
        for secret in self._secrets.select(index=(BY_DIGEST, _digest(token))):
            cluster = self._clusters.get(Key("", secret["metadata"]["namespace"]))
            if cluster is None or is_deleting(cluster) or not owns_namespace(cluster):
                continue
            if is_internal(cluster):  # The local cluster has no tunnel.
                continue
            if self._is_issued(secret) and self._accepts(secret, token):
                return cluster
        return None

    def _is_issued(self, secret: Object) -> bool:
        """Whether the manager issued the Secret: its owning ClusterRegistrationToken proves it, a label does not."""
        meta = secret["metadata"]
        for reference in meta.get("ownerReferences") or ():
            registration_token = self._registrations.get(Key(meta["namespace"], reference["name"]))
            if registration_token is None or registration_token["metadata"]["uid"] != reference["uid"]:
                continue
            is_its_name: bool = meta["name"] == names.token_secret(reference["name"])
            return is_its_name and bool(reference["kind"] == REGISTRATION_TOKEN.kind)
        return False

    def _is_token_of(self, cluster: str, token: str) -> bool:
        found = self.cluster_of(token)
        return found is not None and _name(found) == cluster

    def _accepts(self, secret: Object, token: str) -> bool:
        tokens = registration.read_tokens(secret)
        return tokens is not None and tokens.accepts(token, self._clock())

    def _cluster_changed(self, change: Change) -> None:
        if change.new is None or is_deleting(change.new) or _is_another(change.old, change.new):
            name = change.key.name
            self._records.forget(name)
            self._registering.pop(name, None)
            self._refused.pop(name, None)
            self._on_cluster_deleted(name)


def _is_another(old: Object | None, new: Object) -> bool:
    """After a gap in the watch, deletion and recreation of a cluster appear as one change."""
    return old is not None and bool(old["metadata"]["uid"] != new["metadata"]["uid"])


def _name(cluster: Object) -> str:
    return str(cluster["metadata"]["name"])


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _digests(secret: Object) -> Iterable[str]:
    """Indexer: digests of the tokens in a Secret."""
    tokens = registration.read_tokens(secret)
    return {_digest(each) for each in (tokens.token, tokens.previous) if each} if tokens else ()


def _text(status: int, text: str) -> Response:
    return Response(status, {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}, text.encode())
