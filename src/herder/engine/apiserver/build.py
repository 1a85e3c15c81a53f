"""Composition root of the embedded API server: store, PKI, authentication, authorization, admission, CRDs and
controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from herder.engine.apiserver import builtin
from herder.engine.apiserver.admission.default import Admission
from herder.engine.apiserver.admission.pods import write_system_priority_classes
from herder.engine.apiserver.audit import AuditLog
from herder.engine.apiserver.auth import bootstrap_policy
from herder.engine.apiserver.auth.aggregation import RoleAggregator
from herder.engine.apiserver.auth.authenticate import Authenticator
from herder.engine.apiserver.auth.jwt import SigningKey
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.auth.reviews import Reviews
from herder.engine.apiserver.auth.token_request import TokenRequests
from herder.engine.apiserver.auth.tokens import TokenIssuer, TokenVerifier
from herder.engine.apiserver.builtin.subresources.kubelet import NodeLogs
from herder.engine.apiserver.collectors import Collectors
from herder.engine.apiserver.compute import InlineExecutor, shared_executor
from herder.engine.apiserver.context import ServerDeps
from herder.engine.apiserver.crds import CrdController, DefinitionStrategy
from herder.engine.apiserver.endpoints.apiservices import ApiServices
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.registry.bootstrap import bootstrap_objects
from herder.engine.apiserver.registry.entropy import EntropyPool
from herder.engine.apiserver.registry.resources import Registry, Resource
from herder.engine.apiserver.registry.storage_codec import decode, encode, encoder
from herder.engine.apiserver.server import ApiServer, Background
from herder.engine.meta.kinds import GroupResource
from herder.engine.store import Cipher, Store
from herder.engine.wire import Request, Response, User

__all__ = ["ApiServer", "assemble"]

_ENCRYPTED = frozenset({"secrets"})
_DEFINITIONS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
_SERVICE_ACCOUNTS = GroupResource("", "serviceaccounts")
_PODS = GroupResource("", "pods")
_HISTORY_SECONDS = 24 * 3600.0


async def assemble(
    data_dir: Path | None,
    *,
    clock: Callable[[], datetime],
    entropy: Callable[[int], bytes],
    inline: bool = False,
    pki: Pki | None = None,
    retain: float | None = _HISTORY_SECONDS,
    start: int = 0,
    may_dial: Callable[[str], bool] | None = None,
) -> ApiServer:
    """Start an API server on the store in `data_dir`, or on an empty in-memory store (None).

    `clock` and `entropy` supply time and randomness. `inline` commits and computes on the calling thread, which makes a
    simulation single-threaded and deterministic. `pki` is passed by a caller that also serves TLS with it. Revisions
    older than `retain` seconds are compacted; None leaves compaction to the caller. An in-memory store counts revisions
    from `start`. Webhooks and nodes are called only at addresses that `may_dial` allows; None allows all.
    """
    entropy = EntropyPool(entropy)
    store = _open_store(data_dir, clock, inline, start)
    await store.renew(lambda record: encoder(decode(record)))
    await bootstrap_policy.reconcile(store, now=clock(), entropy=entropy)
    await bootstrap_objects(store, now=clock(), entropy=entropy)
    await write_system_priority_classes(store, now=clock(), entropy=entropy)

    pki = pki or Pki.load_or_create(data_dir / "pki" if data_dir else None, now=clock())
    issuer = TokenIssuer(SigningKey(pki.service_accounts), entropy=entropy)
    verifier = TokenVerifier(issuer, store, clock=clock)
    authenticator = Authenticator(tokens=[verifier])
    authorizer = RbacAuthorizer(store)

    logs = NodeLogs(lambda: pki.node_client_context(now=clock()), may_dial)
    registry = Registry(_resources(Reviews(authorizer, authenticator, verifier), TokenRequests(issuer), logs))
    executor = InlineExecutor() if inline else shared_executor()
    admission = Admission(
        store, authorizer, registry, clock=clock, entropy=entropy, may_dial=may_dial, executor=executor
    )
    definitions = CrdController(store, registry, clock=clock, webhooks=admission.client)
    definitions.load()

    async def close() -> None:
        authorizer.close()
        await admission.close()
        await store.close()

    services = ApiServices(store, registry, clock=clock, entropy=entropy)
    background: list[Background] = [
        RoleAggregator(store).run,
        definitions.run,
        admission.quota_status.run,
        services.run,
    ]
    if data_dir is not None and retain is not None:
        background.append(lambda: store.compact_by_age(retain))
    server = ApiServer(
        ServerDeps(store, registry, authorizer, admission.chain, clock, entropy, executor),
        authenticator=authenticator,
        audit=AuditLog(data_dir / "audit.log") if data_dir is not None else None,
        background=background,
        close=close,
    )
    _serve_issuer(server, issuer)
    collectors = Collectors(
        store,
        registry,
        lambda user: InProcess(server, user),
        clock=clock,
        ca=pki.authority.certificate_pem,
        issue=issuer.legacy_token,
    )
    server.background.append(collectors.run)
    await server.start()
    await asyncio.sleep(0)  # let the informers start before the first request
    return server


def _open_store(data_dir: Path | None, clock: Callable[[], datetime], inline: bool, start: int) -> Store:
    def seconds() -> float:
        return clock().timestamp()

    if data_dir is None:
        return Store.open(None, clock=seconds, inline=inline, start=start)
    data_dir.mkdir(parents=True, exist_ok=True)
    cipher = Cipher.load_or_create(data_dir / "encryption.key")
    return Store.open(
        data_dir / "store", clock=seconds, cipher=cipher, encrypted=_ENCRYPTED.__contains__, inline=inline
    )


def _resources(reviews: Reviews, token_requests: TokenRequests, logs: NodeLogs) -> list[Resource]:
    """Return the built-in resources, wired to the handlers that other packages provide for them."""
    virtual = reviews.handlers()
    token = token_requests.subresource()
    found = []
    for resource in builtin.resources():
        name = resource.group_resource
        if name in virtual:
            resource = replace(resource, virtual=virtual[name])
        elif name == _DEFINITIONS:
            resource = resource.with_strategy(DefinitionStrategy())
        elif name == _SERVICE_ACCOUNTS:
            resource = replace(resource, subresources={**resource.subresources, token.name: token})
        elif name == _PODS:
            log = replace(resource.subresources["log"], call=logs.log)
            resource = replace(resource, subresources={**resource.subresources, "log": log})
        found.append(resource)
    return found


def _serve_issuer(server: ApiServer, issuer: TokenIssuer) -> None:
    """Serve OpenID Connect discovery, so that others can verify service account tokens."""

    async def configuration(request: Request, user: User) -> Response:
        host = request.headers.get("host", "kubernetes.default.svc")
        return Response(
            200, {"content-type": "application/json"}, encode(issuer.openid_configuration(f"https://{host}"))
        )

    async def keys(request: Request, user: User) -> Response:
        return Response(200, {"content-type": "application/jwk-set+json"}, encode(issuer.key.jwks()))

    server.add_route("/.well-known/openid-configuration", configuration)
    server.add_route("/openid/v1/jwks", keys)
