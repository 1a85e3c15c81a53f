"""Admission of Nodes and Leases that depends on other objects, which the policy in node_policy.py cannot express.

A machine may register one Node and renew that Node's Lease, so that it cannot reserve names of future Nodes or flood
the cluster.

Workers of version 0.1 shared one token, which maintains a Node until its machine has its own token. The Lease carries
the machine's label once the machine has renewed it with its own token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from herder.api.rke.names import MACHINE_UID
from herder.embedded.node import LEASE_NAMESPACE, LEASES, NODES
from herder.embedded.node_policy import MACHINE_PREFIX, NODE_USER
from herder.engine.apiserver.admission.chain import CREATE, Attributes, Chain
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, forbidden
from herder.engine.meta.kinds import GroupVersionResource, Object

REGISTERING_SECONDS = 60.0
"""Seconds for which a Node name is reserved during registration, so that only one of several concurrent requests is
admitted.
"""
SHARED = "the token that workers shared maintains no Node or Lease of a machine that has a token of its own"
ONE_NODE = "the machine has registered as Node {}; delete that Node first"
NO_NODE = "it is not the Lease of a Node of this machine"


def install_node_admission(chain: Chain, client: Client) -> None:
    admission = NodeAdmission(client, asyncio.get_running_loop().time)
    resources = [NODES.group_resource, LEASES.group_resource]
    chain.add_validating("Nodes of machines", resources, admission.validate, subresources=None)


class NodeAdmission:
    def __init__(self, client: Client, now: Callable[[], float]) -> None:
        """`client` reads with the server's permissions."""
        self._client = client
        self._now = now
        # machine → name of its Node, and until when it is reserved
        self._registering: dict[str, tuple[str, float]] = {}

    async def validate(self, attributes: Attributes) -> None:
        user = attributes.user.name
        if user == NODE_USER.name:
            reason = await self._shared(attributes)
        elif user.startswith(MACHINE_PREFIX):
            reason = await self._own(user.removeprefix(MACHINE_PREFIX), attributes)
        else:
            return
        if reason:
            raise forbidden(attributes.resource.group_resource, attributes.name, reason)

    async def _shared(self, attributes: Attributes) -> str:
        lease = await self._find(LEASES, attributes.name, LEASE_NAMESPACE)
        claimed = _is_lease(attributes) and (machine_label(attributes.obj) or attributes.namespace != LEASE_NAMESPACE)
        return SHARED if attributes.operation == CREATE or machine_label(lease) or claimed else ""

    async def _own(self, machine: str, attributes: Attributes) -> str:
        name = attributes.name or str(attributes.object["metadata"].get("name") or "")
        if _is_lease(attributes):
            # While its Node is gone, a machine renews the Lease until it has registered again.
            node = await self._find(NODES, name)
            return "" if machine_label(attributes.old if node is None else node) == machine else NO_NODE
        if attributes.operation != CREATE:
            return ""
        known = await self._registered(machine)
        if not known:  # no other request of the machine is processed between this and the next line
            known, until = self._registering.get(machine, ("", 0.0))
            known = known if self._now() < until else ""
        if known and known != name:
            return ONE_NODE.format(known)
        self._registering[machine] = name, self._now() + REGISTERING_SECONDS
        return ""

    async def _registered(self, machine: str) -> str:
        found = (await self._client.list_all(NODES, labels=f"{MACHINE_UID}={machine}")).items
        return str(found[0]["metadata"]["name"]) if found else ""

    async def _find(self, resource: GroupVersionResource, name: str, namespace: str = "") -> Object | None:
        try:
            return await self._client.get(resource, name, namespace=namespace) if name else None
        except NotFound:
            return None


def _is_lease(attributes: Attributes) -> bool:
    return attributes.resource.group_resource == LEASES.group_resource


def machine_label(obj: Object | None) -> str:
    return str(((obj or {"metadata": {}})["metadata"].get("labels") or {}).get(MACHINE_UID) or "")
