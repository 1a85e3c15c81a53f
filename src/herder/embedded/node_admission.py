"""What the policy of node_policy.py cannot decide, because it depends on other objects.

A machine registers one Node, whatever it is called, and renews the Lease of that Node. So it cannot take the names of
Nodes that are still to come, nor fill the cluster with Nodes.

Workers of version 0.1 shared one token. Until its machine has a token of its own, a Node is maintained with that one.
The Lease shows which: it carries the machine's label as soon as its machine renews it with a token of its own.
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
"""How long a name is kept for a machine that is registering, so that of several requests at once one is admitted."""
SHARED = "the token that workers shared maintains no Node or Lease of a machine that has a token of its own"
ONE_NODE = "the machine has registered as Node {}; delete that Node first"
NO_NODE = "it is not the Lease of a Node of this machine"


def install_node_admission(chain: Chain, client: Client) -> None:
    admission = NodeAdmission(client, asyncio.get_running_loop().time)
    resources = [NODES.group_resource, LEASES.group_resource]
    chain.add_validating("Nodes of machines", resources, admission.validate, subresources=None)


class NodeAdmission:
    def __init__(self, client: Client, now: Callable[[], float]) -> None:
        """`client` reads with the rights of the server."""
        self._client = client
        self._now = now
        self._registering: dict[str, tuple[str, float]] = {}  # machine → name of its Node, and until when it is kept

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
        claimed = _is_lease(attributes) and (_machine(attributes.obj) or attributes.namespace != LEASE_NAMESPACE)
        return SHARED if attributes.operation == CREATE or _machine(lease) or claimed else ""

    async def _own(self, machine: str, attributes: Attributes) -> str:
        name = attributes.name or str(attributes.object["metadata"].get("name") or "")
        if _is_lease(attributes):
            if _machine(attributes.old) == machine:
                return ""
            return "" if _machine(await self._find(NODES, name)) == machine else NO_NODE
        if attributes.operation != CREATE:
            return ""
        known = await self._registered(machine)
        if not known:  # no other request of the machine is looked at between this and the next line
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


def _machine(obj: Object | None) -> str:
    return str(((obj or {"metadata": {}})["metadata"].get("labels") or {}).get(MACHINE_UID) or "")
