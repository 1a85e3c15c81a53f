"""Admission plugins of the embedded server for the rules in `api/identity/tenancy`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.tenancy import clusters, rules, secrets
from herder.api.identity.tenancy.rights import Rights
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.apiserver.admission.chain import CREATE, DELETE, Attributes
from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer
from herder.engine.apiserver.auth.users import SUPERUSERS
from herder.engine.apiserver.build import ApiServer
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, forbidden
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import User

TAKEN = "namespace {} exists and belongs to no cluster of this name; choose another name"


_WITH_SUBRESOURCES = (NAMESPACE, PROVISIONING_CLUSTER, CONTROL_PLANE)
"""Of the other kinds, no subresource can change what the rules are about."""


def install_tenancy_admission(server: ApiServer, client: Client) -> None:
    for kind in rules.KINDS:
        check = _check_of(kind, server.deps.authorizer)
        subresources = None if kind in _WITH_SUBRESOURCES else ("",)
        server.deps.admission.add_validating(
            f"{kind.kind} tenancy", [kind.resource.group_resource], check, subresources=subresources
        )

    for kind in rules.GRANTED_BY_NAME:
        deletion = _deletion_check_of(kind, server.deps.authorizer)
        resources = [kind.resource.group_resource]
        server.deps.admission.add_validating(f"{kind.kind} orphans", resources, deletion, operations=(DELETE,))

    async def name_creator(attributes: Attributes) -> None:
        user, obj = attributes.user, attributes.obj
        if obj is not None and SUPERUSERS not in user.groups:
            may = _rights(server.deps.authorizer, user)
            attributes.obj = secrets.with_creator(obj, attributes.namespace, user.name, may)

    resources = [SECRET.resource.group_resource]
    server.deps.admission.add_mutating("creator of Secrets", resources, name_creator, operations=(CREATE,))

    async def check_namespace(attributes: Attributes) -> None:
        await _check_backing_namespace(client, attributes)

    resources = [MANAGEMENT_CLUSTER.resource.group_resource]
    server.deps.admission.add_validating("backing namespace", resources, check_namespace, operations=(CREATE,))


def _check_of(kind: Kind, authorizer: Authorizer) -> Callable[[Attributes], Awaitable[None]]:
    async def check(attributes: Attributes) -> None:
        user, new = attributes.user, attributes.obj
        if new is None:
            return
        reason = secrets.overwrite_refusal(attributes.old, new, user.name) if kind == SECRET else ""
        if not reason and SUPERUSERS not in user.groups:
            reason = rules.refusal(kind, attributes.old, new, user.name, _rights(authorizer, user))
        if reason:
            raise forbidden(kind.resource.group_resource, attributes.name or clusters.name_of(new), reason)

    return check


def _deletion_check_of(kind: Kind, authorizer: Authorizer) -> Callable[[Attributes], Awaitable[None]]:
    async def check(attributes: Attributes) -> None:
        user, old = attributes.user, attributes.old
        if old is None or SUPERUSERS in user.groups:
            return
        options = attributes.options or {}
        reason = rules.deletion_refusal(kind, old, options, user.name, _rights(authorizer, user))
        if reason:
            raise forbidden(kind.resource.group_resource, attributes.name, reason)

    return check


def _rights(authorizer: Authorizer, user: User) -> Rights:
    def may(verb: str, kind: Kind, *, namespace: str = "", name: str = "", subresource: str = "") -> bool:
        attributes = AccessAttributes(
            verb,
            group=kind.group,
            version=kind.version,
            resource=kind.plural,
            subresource=subresource,
            namespace=namespace,
            name=name,
        )
        return authorizer.authorize(user, attributes).allowed

    return may


async def _check_backing_namespace(client: Client, attributes: Attributes) -> None:
    """Refuse a cluster whose namespace already exists, so that its author sees it.

    Policies on real API servers cannot read other objects; there the condition BackingNamespaceCreated reports it.
    """
    if SUPERUSERS in attributes.user.groups or attributes.obj is None:
        return
    name = attributes.obj["metadata"].get("name") or ""
    try:
        found = await client.get(NAMESPACE.resource, name) if name else None
    except NotFound:
        return
    if found is not None and not _is_of_cluster(found):
        raise forbidden(MANAGEMENT_CLUSTER.resource.group_resource, name, TAKEN.format(name))


def _is_of_cluster(namespace: Object) -> bool:
    """A deleted cluster of the same name may leave its namespace behind for a moment."""
    owners = namespace["metadata"].get("ownerReferences") or ()
    return any(each.get("kind") == MANAGEMENT_CLUSTER.kind for each in owners)
