"""Kubeconfigs for people: each with a token of its own, for clusters that their user may reach."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from herder.api.identity.kubeconfigs import (
    MANAGER_ENTRY,
    Entry,
    Manager,
    asking_user,
    bearer_user,
    cluster_entries,
    config,
    text,
)
from herder.api.identity.names import KUBECONFIG
from herder.api.identity.tokens import NewToken
from herder.api.settings import KUBECONFIG_GENERATE_TOKEN, SERVER_CERTIFICATES, SERVER_URL
from herder.engine.client.wire import Request, Response, User
from herder.engine.meta.errors import BadRequest, NotFound, ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.gateway.identity.answers import answer
from herder.gateway.identity.identity import USERNAME
from herder.gateway.identity.issuing import Issued, Issuer

Reachable = Callable[[User], Awaitable[Mapping[str, str]]]
"""The clusters that a user may `get`: id → the name that people know it by."""

_OUTPUT = "generateKubeconfigOutput"
_CLUSTERS = "/v3/clusters"
_ACTION = re.compile(r"/v3/clusters/([^/]+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    clusters: Mapping[str, str]  # id → name
    manager: bool = False  # whether there is an entry for the manager itself
    current: str = ""  # the id of a cluster, or the name of the manager's entry
    ttl_ms: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    value: str = field(repr=False)
    token: Issued | None


class Kubeconfigs:
    def __init__(self, issuer: Issuer, reachable: Reachable, setting: Callable[[str], str]) -> None:
        self._issuer = issuer
        self._setting = setting
        self.reachable = reachable

    async def handle(self, request: Request, user: User) -> Response | None:
        """The clusters of a user, and the action generateKubeconfig of one; None for anything else."""
        if request.path == _CLUSTERS and request.method == "GET":
            return answer(_collection(await self.reachable(user)))
        path = _ACTION.fullmatch(request.path)
        if path is None or request.method != "POST" or request.query.get("action") != "generateKubeconfig":
            return None
        found = await self.reachable(user)
        if path[1] not in found:
            raise NotFound(f'clusters.management.cattle.io "{path[1]}" not found')
        made = await self.make(Wanted({path[1]: found[path[1]]}), user)
        return answer(
            {"type": "generateKubeconfigOutput", "baseType": "generateKubeconfigOutput", "config": made.value}
        )

    async def make(self, wanted: Wanted, user: User) -> Made:
        """One that leads to a single cluster has a token that is good for that cluster alone."""
        manager = self._manager()
        login = user.extra.get(USERNAME, (user.name,))[0]
        entries = cluster_entries(manager, wanted.clusters, login)
        if wanted.manager:
            entries.insert(0, Entry(MANAGER_ENTRY, manager.url, login))
        current = self._current(wanted, manager, entries)
        token = None
        if self._setting(KUBECONFIG_GENERATE_TOKEN) == "true":
            token = await self._issuer.issue_ext(self._token(wanted, user, login))
        credentials = bearer_user(token.bearer) if token else asking_user(manager, login)
        return Made(text(config(manager, entries, {login: credentials}, current)), token)

    def _token(self, wanted: Wanted, user: User, login: str) -> NewToken:
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

    def _current(self, wanted: Wanted, manager: Manager, entries: list[Entry]) -> str:
        if not wanted.current:
            return ""
        servers = {manager.cluster(wanted.current), *((manager.url,) if wanted.current == MANAGER_ENTRY else ())}
        named = [entry.name for entry in entries if entry.server in servers]
        if not named:
            raise BadRequest(f'spec.currentContext: "{wanted.current}" is none of the clusters')
        return named[0]

    def _manager(self) -> Manager:
        url = self._setting(SERVER_URL)
        if not url:
            raise ServiceUnavailable(f"setting {SERVER_URL} is empty: nobody knows where kubeconfigs are to lead")
        return Manager(url, self._setting(SERVER_CERTIFICATES))


def _collection(clusters: Mapping[str, str]) -> Object:
    """Who may use some clusters need not have the right to list all: by this they know them by name."""
    data = [{"id": cluster, "name": name, "type": "cluster"} for cluster, name in sorted(clusters.items())]
    return {"type": "collection", "resourceType": "cluster", "data": data}
