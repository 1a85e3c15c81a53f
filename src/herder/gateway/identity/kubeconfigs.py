"""Kubeconfigs for users, each with its own token, for clusters that the user may use."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from herder.api.identity.authn.tokens import NewToken
from herder.api.identity.kubeconfigs import (
    MANAGER_ENTRY,
    Entry,
    Manager,
    bearer_user,
    cluster_entries,
    config,
    exec_user,
    text,
)
from herder.api.identity.names import KUBECONFIG
from herder.api.settings import KUBECONFIG_GENERATE_TOKEN, SERVER_CERTIFICATES, SERVER_URL
from herder.engine.meta.errors import BadRequest, NotFound, ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response, User
from herder.gateway.identity.bodies import answer
from herder.gateway.identity.identity import USERNAME
from herder.gateway.identity.issuer import Issued, Issuer

Reachable = Callable[[User], Awaitable[Mapping[str, str]]]
"""Clusters that a user may `get`: display name by ID."""

_OUTPUT = "generateKubeconfigOutput"
_CLUSTERS = "/v3/clusters"
_ACTION = re.compile(r"/v3/clusters/([^/]+)")


@dataclass(frozen=True, slots=True)
class KubeconfigRequest:
    """What a kubeconfig contains."""

    clusters: Mapping[str, str]  # id → name
    manager: bool = False  # include an entry for the manager itself
    current: str = ""  # a cluster ID, or the name of the manager's entry
    ttl_ms: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class IssuedKubeconfig:
    """A kubeconfig and its token."""

    value: str = field(repr=False)
    token: Issued | None


class Kubeconfigs:
    """Issues kubeconfigs."""

    def __init__(self, issuer: Issuer, reachable: Reachable, setting: Callable[[str], str]) -> None:
        self._issuer = issuer
        self._setting = setting
        self.reachable = reachable

    async def handle(self, request: Request, user: User) -> Response | None:
        """List a user's clusters, or run the action generateKubeconfig; None for anything else."""
        if request.path == _CLUSTERS and request.method == "GET":
            return answer(_collection(await self.reachable(user)))
        path = _ACTION.fullmatch(request.path)
        if path is None or request.method != "POST" or request.query.get("action") != "generateKubeconfig":
            return None
        found = await self.reachable(user)
        if path[1] not in found:
            raise NotFound(f'clusters.management.cattle.io "{path[1]}" not found')
        made = await self.make(KubeconfigRequest({path[1]: found[path[1]]}), user)
        return answer(
            {"type": "generateKubeconfigOutput", "baseType": "generateKubeconfigOutput", "config": made.value}
        )

    async def make(self, wanted: KubeconfigRequest, user: User) -> IssuedKubeconfig:
        """Issue a kubeconfig; the token of a kubeconfig for one cluster is valid for that cluster only."""
        manager = self._manager()
        login = user.extra.get(USERNAME, (user.name,))[0]
        entries = cluster_entries(manager, wanted.clusters, login)
        if wanted.manager:
            entries.insert(0, Entry(MANAGER_ENTRY, manager.url, login))
        current = self._current(wanted, manager, entries)
        token = None
        if self._setting(KUBECONFIG_GENERATE_TOKEN) == "true":
            token = await self._issuer.issue_derived(self._token(wanted, user, login), user)
        credentials = bearer_user(token.bearer) if token else exec_user(manager, login)
        return IssuedKubeconfig(text(config(manager, entries, {login: credentials}, current)), token)

    def _token(self, wanted: KubeconfigRequest, user: User, login: str) -> NewToken:
        alone = next(iter(wanted.clusters)) if len(wanted.clusters) == 1 and not wanted.manager else ""
        return NewToken(
            user=user.name,
            login_name=login,
            kind=KUBECONFIG,
            ttl_ms=self._issuer.lifetime(KUBECONFIG, wanted.ttl_ms),
            cluster=alone,
            description=wanted.description,
            derived=True,
        )

    def _current(self, wanted: KubeconfigRequest, manager: Manager, entries: list[Entry]) -> str:
        if not wanted.current:
            return ""
        servers = {manager.cluster(wanted.current), *((manager.url,) if wanted.current == MANAGER_ENTRY else ())}
        named = [entry.name for entry in entries if entry.server in servers]
        if not named:
            raise BadRequest(f'spec.currentContext: "{wanted.current}" is not one of the clusters')
        return named[0]

    def _manager(self) -> Manager:
        url = self._setting(SERVER_URL)
        if not url:
            raise ServiceUnavailable(f"setting {SERVER_URL} is empty; set it to issue kubeconfigs")
        return Manager(url, self._setting(SERVER_CERTIFICATES))


def _collection(clusters: Mapping[str, str]) -> Object:
    """Clusters that the user may use; the user need not have the right to list all."""
    data = [{"id": cluster, "name": name, "type": "cluster"} for cluster, name in sorted(clusters.items())]
    return {"type": "collection", "resourceType": "cluster", "data": data}
