"""The embedded API server put together from its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from herder.engine.apiserver import builtin
from herder.engine.apiserver.admission.default import Admission
from herder.engine.apiserver.admission.pods import write_system_priority_classes
from herder.engine.apiserver.apiservices import ApiServices
from herder.engine.apiserver.audit import AuditLog
from herder.engine.apiserver.auth import bootstrap_policy
from herder.engine.apiserver.auth.aggregation import RoleAggregator
from herder.engine.apiserver.auth.authenticate import Authenticator
from herder.engine.apiserver.auth.jwt import SigningKey
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.auth.reviews import Reviews
from herder.engine.apiserver.auth.token_request import TokenRequests
from herder.engine.apiserver.auth.tokens import TokenIssuer, TokenVerifier
from herder.engine.apiserver.bootstrap import bootstrap_objects
from herder.engine.apiserver.builtin.subresources.kubelet import NodeLogs
from herder.engine.apiserver.collectors import Collectors
from herder.engine.apiserver.compute import InlineComputer, shared_computer
from herder.engine.apiserver.crds import CrdController, DefinitionStrategy
from herder.engine.apiserver.entropy import Pool
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pipeline import ApiServer, Background
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.resources import Registry, Resource
from herder.engine.apiserver.scope import ServerDeps
from herder.engine.apiserver.stored import decode, encode, encoder
from herder.engine.client.wire import Request, Response, User
from herder.engine.meta.kinds import GroupResource
from herder.engine.store import Cipher, Store

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
) -> ApiServer:
    """A started server over the store in `data_dir`, or over an empty one in memory (None).

    Time and randomness come from the caller; `inline` commits on the calling thread, so that a simulation is one
    thread and the same each time. `pki` is given by who also serves TLS with it. History older than `retain` seconds
    is forgotten; None leaves that to the caller. One in memory counts its revisions from `start`.
    """
    entropy = Pool(entropy)
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

    logs = NodeLogs(lambda: pki.node_client_context(now=clock()))
    registry = Registry(_resources(Reviews(authorizer, authenticator, verifier), TokenRequests(issuer), logs))
    admission = Admission(store, authorizer, registry, clock=clock, entropy=entropy)
    definitions = CrdController(store, registry, clock=clock, webhooks=admission.client)
    definitions.load()

    async def close() -> None:
        authorizer.close()
        await admission.close()
        await store.close()

    computer = InlineComputer() if inline else shared_computer()
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
        ServerDeps(store, registry, authorizer, admission.chain, clock, entropy, computer),
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
    await asyncio.sleep(0)  # the followers take their places before the first request
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
    """The built-in resources, with what other parts answer for them."""
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
    """What others need to verify our service-account tokens."""

    async def configuration(request: Request, user: User) -> Response:
        host = request.headers.get("host", "kubernetes.default.svc")
        return Response(
            200, {"content-type": "application/json"}, encode(issuer.openid_configuration(f"https://{host}"))
        )

    async def keys(request: Request, user: User) -> Response:
        return Response(200, {"content-type": "application/jwk-set+json"}, encode(issuer.key.jwks()))

    server.add_route("/.well-known/openid-configuration", configuration)
    server.add_route("/openid/v1/jwks", keys)
