"""Whether a cluster has the rights that the manager has granted in it, and no others of the manager.

A snapshot brings back bindings of its time, and a cluster that is imported again still has those of before. Until the
manager has deleted them, members of the cluster could have more rights than their roles. How long that takes is
unknown: the manager may need a while to reach the cluster, and another agent may have been connected in the meantime.
While the agent is disconnected, nothing is deleted either. So the gateway lists the bindings itself, over TLS with the
CA of the cluster, before a member uses the cluster for the first time, after each restore, after each time that the
agent was disconnected, and after rights of the member were revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from herder.api.capi.names import is_deleting, labels_of
from herder.api.identity import roles
from herder.api.identity.builtin_roles import CLUSTER, PROJECT
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, FROM_TEMPLATE, OWNED_BY
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.clusters import connected_since
from herder.api.management.kinds import CLUSTER_BINDING, PROJECT_BINDING, ROLE_TEMPLATE
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.printable import printable
from herder.engine.wire import User
from herder.gateway.agents.clusters import NEVER, Clusters
from herder.gateway.agents.records import registered_for
from herder.gateway.agents.revocations import Revocations
from herder.tunnel.errors import TunnelError

log = get_logger(__name__)

COMPARE_SECONDS = 30.0
RETRY_SECONDS = 1.0
"""Minimum time between two comparisons, however many requests wait for one."""
PAGE_SIZE, MAX_PAGES = 500, 200
YIELD_EVERY = 100
"""Objects that are compared in one turn of the event loop."""
MAX_MESSAGE = 300  # of an API server that nobody trusts

ClientOf = Callable[[str], Awaitable[Client]]
Mark = tuple[str, datetime | None, str, str]
"""UID of the management Cluster, end of its last restore, digest of the API server that answered, and since when its
agent is connected."""
BEING_RESTORED = "it is being restored from a snapshot"
LEFTOVERS = "it has rights that were revoked since, which the manager deletes"
CONNECTING = "its agent is connecting"
NOT_YET = "its rights are compared again in a moment"


class GrantedRights:
    """Compares the rights in clusters with the bindings of the manager: once for each connection and restore, and for
    the users that it concerns, after each revocation.
    """

    def __init__(self, client: Client, clusters: Clusters, client_of: ClientOf) -> None:
        """`client` is the manager's, `client_of` returns one for a cluster with the rights of its agent."""
        self._client = client
        self._clusters = clusters
        self._client_of = client_of
        self._revocations = Revocations(client, lambda cluster: cluster in self._compared or cluster in self._running)
        self._compared: dict[str, tuple[Mark, int]] = {}  # and the last revocation before the comparison
        self._running: dict[str, asyncio.Task[str]] = {}
        self._retry_at: dict[str, float] = {}

    async def run(self) -> None:
        await self._revocations.run()

    async def ready(self) -> None:
        await self._revocations.ready()

    def are_known(self, cluster: str, user: User) -> bool:
        """Whether the member may use the cluster: its rights were compared after the last restore, since its agent is
        connected, and after the last revocation that concerns the member."""
        mark, (compared, revocation) = self._mark(cluster), self._compared.get(cluster, (None, 0))
        is_compared = not _problem(mark) and compared == mark
        return is_compared and self._revocations.last_of(cluster, user) <= revocation

    async def compare(self, cluster: str, user: User) -> str:
        """Return why the member may not use the cluster; empty if it may.

        Requests that arrive meanwhile wait for the same comparison.
        """
        if self.are_known(cluster, user):
            return ""
        started = self.begin(cluster)
        if problem := started if isinstance(started, str) else await asyncio.shield(started):
            return problem
        return "" if self.are_known(cluster, user) else NOT_YET  # it can begin before a revocation, and end after it

    def begin(self, cluster: str) -> asyncio.Task[str] | str:
        """Begin a comparison, unless one runs; or return why it has to wait.

        Owners need not wait for it, but it saves the check that they are owners in further requests.
        """
        task = self._running.get(cluster)
        if problem := _problem(self._mark(cluster)):
            return problem
        if task is None and asyncio.get_running_loop().time() < self._retry_at.get(cluster, 0.0):
            return NOT_YET
        if task is None:
            task = self._running[cluster] = asyncio.ensure_future(self._run(cluster))
        return task

    def close(self) -> None:
        for task in self._running.values():
            task.cancel()

    def forget(self, cluster: str) -> None:
        self._compared.pop(cluster, None)
        self._revocations.forget(cluster, self._revocations.last)
        self._retry_at.pop(cluster, None)

    def _mark(self, cluster: str) -> Mark:
        found = self._clusters.get(cluster) or {"metadata": {}}
        end, server = self._clusters.last_restore(cluster), registered_for(found.get("status") or {})
        return str(found["metadata"].get("uid")), end, server, connected_since(found)

    async def _run(self, cluster: str) -> str:
        revocation = self._revocations.last
        try:
            async with asyncio.timeout(COMPARE_SECONDS):
                found = await _Comparison.of(self._client)
                # Another agent may have registered meanwhile. The mark is of the server that is asked.
                mark, client = self._mark(cluster), await self._client_of(cluster)
                if problem := _problem(mark):
                    return problem
                is_equal = await found.is_equal(client)
        except (StatusError, TunnelError, OSError) as error:  # TimeoutError is an OSError
            return f"its rights cannot be compared: {printable(str(error), MAX_MESSAGE)}"
        except Exception as error:
            # The cluster can send objects of any shape.
            log.warning("cannot compare the rights in a cluster", cluster=cluster, exc_info=error)
            return "its rights cannot be compared: its API server sends invalid objects"
        finally:
            del self._running[cluster]
            self._retry_at[cluster] = asyncio.get_running_loop().time() + RETRY_SECONDS
        if is_equal:
            self._compared[cluster] = mark, revocation
            self._revocations.forget(cluster, revocation)
            return ""
        return LEFTOVERS


def _problem(mark: Mark) -> str:
    """Why a comparison would say nothing yet; empty if it would. Rights that are revoked while no agent is connected
    remain, so a comparison counts for one connection only."""
    _, end, _, since = mark
    if end == NEVER:
        return BEING_RESTORED
    return "" if since else CONNECTING


@dataclass(frozen=True)
class _Comparison:
    """The bindings of the manager by their label in clusters, and its role templates by name."""

    bindings: Mapping[str, tuple[Kind, Object]]
    templates: Mapping[str, Object]

    @staticmethod
    async def of(client: Client) -> _Comparison:
        bindings: dict[str, tuple[Kind, Object]] = {}
        for kind in (CLUSTER_BINDING, PROJECT_BINDING):
            for each in (await client.list_all(kind.resource)).items:
                if not is_deleting(each):
                    bindings[roles.owner_label(each)] = kind, each
        templates = (await client.list_all(ROLE_TEMPLATE.resource)).items
        return _Comparison(bindings, {each["metadata"]["name"]: each for each in templates})

    async def is_equal(self, cluster: Client) -> bool:
        """Whether the cluster has no binding with the manager's label that the manager would not create like that."""
        bound: set[str] = set()
        for kind in (CLUSTER_ROLE_BINDING, ROLE_BINDING):
            async for each in _pages(cluster, kind, OWNED_BY):
                if not self._is_wanted(kind, each):
                    return False
                bound.add(each["roleRef"]["name"])
        wanted = {role["metadata"]["name"]: role["rules"] for role in self._roles()}
        async for each in _pages(cluster, CLUSTER_ROLE, FROM_TEMPLATE):
            name = each["metadata"]["name"]
            if name in bound and (each.get("rules") or []) != wanted.get(name):
                return False
        return True

    def _is_wanted(self, kind: Kind, found: Object) -> bool:
        of, binding = self.bindings.get(labels_of(found).get(OWNED_BY, ""), (None, {}))
        if of is None:
            return False
        if (of == CLUSTER_BINDING) != (kind == CLUSTER_ROLE_BINDING):
            return True  # Whoever wrote this label can write any other binding: it is not the manager's.
        subject, template = roles.subject_of(binding), self.templates.get(binding["roleTemplateName"])
        context = CLUSTER if kind == CLUSTER_ROLE_BINDING else PROJECT
        if isinstance(subject, str) or template is None or roles.unusable(template, self.templates.get, context):
            return False
        _, names = roles.downstream_roles(template, self.templates.get)
        if kind == CLUSTER_ROLE_BINDING:
            wanted = roles.downstream_bindings(binding, subject, names)
        else:
            wanted = roles.project_bindings(binding, subject, names, [found["metadata"]["namespace"]])
        return any(_granted(each) == _granted(found) for each in wanted)

    def _roles(self) -> list[Object]:
        found = (roles.downstream_roles(each, self.templates.get)[0] for each in self.templates.values())
        return [role for role in found if role is not None]


def _granted(binding: Object) -> tuple[str, Object, object]:
    return binding["metadata"]["name"], binding["roleRef"], binding.get("subjects") or []


async def _pages(client: Client, kind: Kind, label: str) -> AsyncIterator[Object]:
    """A cluster may have any number of objects with the label, and send more at once than it is asked for: they are
    not kept, and other tasks run in between."""
    token = ""
    for _ in range(MAX_PAGES):
        page = await client.list(kind.resource, labels=label, limit=PAGE_SIZE, continue_token=token)
        for number, each in enumerate(page.items):
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            yield each
        token = page.continue_token
        if not token:
            return
    raise OSError(f"more than {PAGE_SIZE * MAX_PAGES} objects of kind {kind.kind} with the label {label}")
