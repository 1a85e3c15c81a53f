"""Install CRDs, settings, drivers and roles on an API server, embedded or real."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

from herder.api.crds import FLOCK_CRD, SETTING_CRD
from herder.api.settings import SETTING, Settings, setting_objects
from herder.app.manager import Roles
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, Forbidden
from herder.engine.meta.kinds import GroupVersionResource, Object

CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
INSTALLER = "herder-install"


async def install(client: Client, settings: Settings, roles: Roles) -> None:
    await install_kinds(client, definitions_of(roles))
    for obj in setting_objects(settings):
        await client.apply(SETTING.resource, obj, field_manager=INSTALLER)
    if roles.machines:
        await _register_drivers(client)
    if roles.gateway:
        await _install_roles(client)


def definitions_of(roles: Roles) -> list[Object]:
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
    """Create the built-in NodeDrivers. `spec.active` is set only once, as users may change it."""
    from herder.api.machines.drivers.registered import default_node_drivers
    from herder.api.machines.kinds import NODE_DRIVER
    from herder.engine.runner.node import architecture

    for node_driver in default_node_drivers(architecture()):
        with suppress(AlreadyExists):
            await client.create(NODE_DRIVER.resource, node_driver)
            continue
        kept = {key: node_driver[key] for key in ("apiVersion", "kind", "metadata")}
        await client.apply(NODE_DRIVER.resource, kept, field_manager=INSTALLER)


async def _install_roles(client: Client) -> None:
    """Apply the built-in roles of this version; users cannot change them."""
    from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
    from herder.api.management.kinds import GLOBAL_ROLE, ROLE_TEMPLATE
    from herder.api.management.names import CREDENTIALS_NAMESPACE, DEFAULT_WORKSPACE

    for namespace in (CREDENTIALS_NAMESPACE, DEFAULT_WORKSPACE):  # some roles grant rights in these namespaces
        await ensure_namespace(client, namespace)
    for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
        for role in shipped:
            await client.apply(kind.resource, role, field_manager=INSTALLER)


async def install_role_policies(client: Client) -> None:
    """Policies against privilege escalation, for an API server that does not call our admission."""
    from herder.api.identity.policies import POLICIES

    await _apply_policies(client, POLICIES)


async def install_tenancy_policies(client: Client) -> None:
    """Policies for names, labels and tokens of the manager, for an API server that does not call our admission."""
    from herder.api.identity.tenancy_policies import POLICIES

    await _apply_policies(client, POLICIES)


async def install_plan_policy(client: Client) -> None:
    """Policy for the plan reports of nodes, for an API server that does not call our admission."""
    from herder.api.rke.node.reports import POLICY

    await _apply_policies(client, (POLICY,))


async def _apply_policies(client: Client, policies: Sequence[tuple[Object, Object]]) -> None:
    from herder.api.policies import POLICY, POLICY_BINDING

    for policy, binding in policies:
        await client.apply(POLICY.resource, policy, field_manager=INSTALLER)
        await client.apply(POLICY_BINDING.resource, binding, field_manager=INSTALLER)


async def install_kinds(client: Client, definitions: Sequence[Object]) -> None:
    """Apply CRDs and wait, with a watch, until all are established."""
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


async def ensure_namespace(client: Client, name: str) -> None:
    """Create a namespace. Ignores Forbidden: if it does not exist, the next write in it fails with the reason."""
    with suppress(AlreadyExists, Forbidden):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await client.create(GroupVersionResource("", "v1", "namespaces"), space)
