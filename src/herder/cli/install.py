"""Brings an API server, embedded or real, to the state that the controllers need: our kinds, our settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

from herder.api.crds import FLOCK_CRD, SETTING_CRD
from herder.api.settings import SETTING, Settings, setting_objects
from herder.cli.parts import Roles
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, Forbidden
from herder.engine.meta.kinds import GroupVersionResource, Object

CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
INSTALLER = "herder-install"


async def install(client: Client, settings: Settings, roles: Roles) -> None:
    await install_kinds(client, _definitions(roles))
    for obj in setting_objects(settings):
        await client.apply(SETTING.resource, obj, field_manager=INSTALLER)
    if roles.machines:
        await _register_drivers(client)
    if roles.gateway:
        await _ship_roles(client)


def _definitions(roles: Roles) -> list[Object]:
    definitions = [SETTING_CRD]
    if roles.core:
        from herder.api.capi.crds import CRDS as CORE_CRDS

        definitions += CORE_CRDS
    if roles.core or roles.in_memory:
        from herder.api.capi.inventory import PROVIDER_CRD

        definitions.append(PROVIDER_CRD)
    if roles.in_memory:
        from herder.api.inmemory.crds import CRDS as IN_MEMORY_CRDS

        definitions += IN_MEMORY_CRDS
    if roles.machines:
        from herder.api.machines.crds import CRDS as MACHINE_CRDS

        definitions += MACHINE_CRDS
    if roles.gateway:
        from herder.api.identity.crds import CRDS as IDENTITY_CRDS
        from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
        from herder.api.rke.crds import CRDS as RKE_CRDS

        definitions += (*IDENTITY_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS)
    if roles.example:
        definitions.append(FLOCK_CRD)
    return definitions


async def _register_drivers(client: Client) -> None:
    """The drivers that are there from the start. Whether one is active is its users' to say: that is set once."""
    from herder.api.machines.kinds import NODE_DRIVER
    from herder.api.machines.registered import registered
    from herder.engine.runner.node import architecture

    for node_driver in registered(architecture()):
        with suppress(AlreadyExists):
            await client.create(NODE_DRIVER.resource, node_driver)
            continue
        kept = {key: node_driver[key] for key in ("apiVersion", "kind", "metadata")}
        await client.apply(NODE_DRIVER.resource, kept, field_manager=INSTALLER)


async def _ship_roles(client: Client) -> None:
    """As they are in this version: what is built in is nobody else's to change."""
    from herder.api.identity.shipped import GLOBAL_ROLES, ROLE_TEMPLATES
    from herder.api.management.kinds import GLOBAL_ROLE, ROLE_TEMPLATE
    from herder.api.management.names import CREDENTIALS_NAMESPACE, DEFAULT_WORKSPACE

    for namespace in (CREDENTIALS_NAMESPACE, DEFAULT_WORKSPACE):  # in which some of them give rights
        await make_namespace(client, namespace)
    for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
        for role in shipped:
            await client.apply(kind.resource, role, field_manager=INSTALLER)


async def guard_roles(client: Client) -> None:
    """On an API server that does not ask us who hands out rights."""
    from herder.api.identity.policies import POLICIES

    await _put_in_force(client, POLICIES)


async def guard_tenancy(client: Client) -> None:
    """On an API server that does not call us about names, labels and tokens that belong to the manager."""
    from herder.api.identity.tenancy_policies import POLICIES

    await _put_in_force(client, POLICIES)


async def guard_plans(client: Client) -> None:
    """On an API server that does not ask us what nodes write."""
    from herder.api.rke.reports import POLICY

    await _put_in_force(client, (POLICY,))


async def _put_in_force(client: Client, policies: Sequence[tuple[Object, Object]]) -> None:
    from herder.api.policies import POLICY, POLICY_BINDING

    for policy, binding in policies:
        await client.apply(POLICY.resource, policy, field_manager=INSTALLER)
        await client.apply(POLICY_BINDING.resource, binding, field_manager=INSTALLER)


async def install_kinds(client: Client, definitions: Sequence[Object]) -> None:
    """Apply definitions and wait, by watching, until all are served."""
    waiting = {definition["metadata"]["name"] for definition in definitions}
    for definition in definitions:
        await client.apply(CRDS, definition, field_manager=INSTALLER)
    async with asyncio.timeout(60):
        while waiting:
            async with aclosing(client.watch(CRDS, initial_events=True)) as events:
                async for event in events:
                    if event.type != "BOOKMARK" and _established(event.object):
                        waiting.discard(event.object["metadata"]["name"])
                    if not waiting:
                        return


def _established(crd: Object) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


async def make_namespace(client: Client, name: str) -> None:
    """Where it may not be made but is there already, all is well; where it is not, the next write there says so."""
    with suppress(AlreadyExists, Forbidden):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await client.create(GroupVersionResource("", "v1", "namespaces"), space)
