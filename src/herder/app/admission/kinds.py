"""Admission plugins of the embedded server for our kinds: the functions that webhooks serve on a real API server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from herder.api.capi.admission import RULES, Admission, needs_admission
from herder.api.capi.kinds import SECRET
from herder.api.machines.kinds import NODE_DRIVER
from herder.api.management.kinds import (
    MANAGEMENT_CLUSTER,
    PROVISIONING_CLUSTER,
)
from herder.api.management.secret_sync import has_sync_annotation
from herder.api.references.catalogue import DRIVER_GROUPS, KINDS, Target
from herder.engine.apiserver.admission.chain import CREATE, DELETE, UPDATE, Attributes
from herder.engine.apiserver.admission.matching import in_version
from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.auth.users import SUPERUSERS
from herder.engine.apiserver.build import ApiServer
from herder.engine.client.client import Client
from herder.engine.meta.errors import forbidden, invalid
from herder.engine.meta.kinds import GroupKind, Kind, Object
from herder.engine.wire import User
from herder.gateway.admission.references import ReferenceAdmission, Write, changes_own_secret, is_recorded
from herder.gateway.admission.restores import RestoreAdmission


def install_admission(server: ApiServer, in_force: Callable[[], bool] = lambda: True) -> None:
    """Install before serving. Kinds that are not defined (yet) cost nothing."""
    _install_rules(server, RULES, in_force)


def install_cluster_admission(server: ApiServer) -> None:
    """Rules for provisioning Clusters, regardless of which Cluster API core runs."""
    from herder.api.rke.admission import RULES as CLUSTER_RULES

    _install_rules(server, CLUSTER_RULES, lambda: True)


def _install_rules(server: ApiServer, all_rules: Mapping[Kind, Admission], in_force: Callable[[], bool]) -> None:
    chain = server.deps.admission
    for kind, rules in all_rules.items():
        plugin = _AdmissionPlugin(kind, rules, in_force)
        resources = [kind.resource.group_resource]
        if rules.default is not None:
            chain.add_mutating(f"{kind.kind} defaults", resources, plugin.default)
        chain.add_validating(f"{kind.kind} rules", resources, plugin.validate)


def install_driver_admission(server: ApiServer, client: Client) -> None:
    """Refuse to remove a NodeDriver in use; queries objects with a client of the server itself."""

    async def check(attributes: Attributes) -> None:
        from herder.gateway.admission.node_drivers import (
            refusal,  # imported on first use, to keep startup fast
        )

        error = await refusal(client, attributes.old or {}, attributes.obj)
        if error is not None:
            raise error

    resources = [NODE_DRIVER.resource.group_resource]
    server.deps.admission.add_validating("NodeDriver in use", resources, check, operations=(UPDATE, DELETE))


def install_plan_admission(server: ApiServer) -> None:
    """Nodes may only report on their plan Secret, not change the plan."""
    from herder.api.rke.node.reports import NOT_A_STATUS_UPDATE, is_refused

    async def check(attributes: Attributes) -> None:
        old, new = attributes.old, attributes.obj
        if old is not None and new is not None and is_refused(attributes.user.name, old, new):
            raise forbidden(SECRET.resource.group_resource, attributes.name, NOT_A_STATUS_UPDATE)

    resources = [SECRET.resource.group_resource]
    server.deps.admission.add_validating("reports of nodes", resources, check, operations=(UPDATE,))


def install_role_admission(server: ApiServer, client: Client) -> None:
    """Prevent privilege escalation through our own kinds of roles and bindings."""
    from herder.api.identity.escalation import KINDS as ROLE_KINDS

    authorizer = server.deps.authorizer
    assert isinstance(authorizer, RbacAuthorizer)
    policy = authorizer.policy

    async def rules_of(user: User, namespace: str) -> list[Object]:
        return policy.grants(user, namespace).rules

    def check_of(kind: Kind) -> Callable[[Attributes], Awaitable[None]]:
        async def check(attributes: Attributes) -> None:
            from herder.gateway.identity.grants import refusal  # loaded with the first such request

            new = None if attributes.operation == DELETE else attributes.obj
            error = await refusal(client, rules_of, attributes.user, kind, attributes.old, new)
            if error is not None:
                raise error

        return check

    _install_creators(server)
    for kind in ROLE_KINDS:
        resources = [kind.resource.group_resource]
        operations = (CREATE, UPDATE, DELETE)
        server.deps.admission.add_validating(f"{kind.kind} rights", resources, check_of(kind), operations=operations)


def install_restore_admission(server: ApiServer, client: Client) -> None:
    """Apply what a request for a restore takes from its snapshot, without a check of its references."""
    restore_admission = RestoreAdmission(client)

    async def admit(attributes: Attributes) -> None:
        if attributes.obj is not None:
            attributes.obj = (await _restored(restore_admission, attributes, attributes.obj)).obj

    resources = [PROVISIONING_CLUSTER.resource.group_resource]
    server.deps.admission.add_mutating("restored specs", resources, admit, operations=(UPDATE,))


async def _restored(restore_admission: RestoreAdmission, attributes: Attributes, obj: Object) -> Write:
    """The write with what a request for a restore takes from its snapshot."""
    write = _write(attributes, obj)
    restored = await restore_admission.admit(write)
    return write if restored is write else replace(restored, obj=attributes.normalized(restored.obj))


def _write(attributes: Attributes, obj: Object) -> Write:
    resource = attributes.resource
    return Write(
        GroupKind(resource.group, resource.kind),
        resource.group_resource,
        attributes.namespace,
        attributes.name,
        obj,
        attributes.old,
        attributes.user,
        attributes.dry_run,
    )


def install_reference_admission(server: ApiServer, client: Client, manager: User) -> None:
    """The author of a reference must be allowed to use its target, also if a restore writes it for the author.

    `manager` is the user of the controllers.
    """
    authorizer = server.deps.authorizer

    async def may(user: User, verb: str, target: Target) -> bool:
        attempt = AccessAttributes(
            verb,
            target.group,
            resource=target.resource,
            namespace=target.namespace,
            name=target.name,
        )
        return authorizer.authorize(user, attempt).allowed

    restore_admission, reference_admission = RestoreAdmission(client), ReferenceAdmission(client, may, manager)

    async def admit(attributes: Attributes) -> None:
        if attributes.obj is None:
            return
        write = await _restored(restore_admission, attributes, attributes.obj)
        attributes.obj = await reference_admission.admit(write)

    async def admit_secret(attributes: Attributes) -> None:
        # Nearly all Secrets lack these annotations and must not pay for the few that have them.
        is_synced = has_sync_annotation(attributes.obj) or is_recorded((attributes.obj, attributes.old))
        if is_synced or _changes_own_secret(attributes):
            await admit(attributes)

    resources = [kind.resource.group_resource for kind in KINDS]
    server.deps.admission.add_mutating("references", resources, admit, groups=DRIVER_GROUPS)
    server.deps.admission.add_mutating("synced Secrets", [SECRET.resource.group_resource], admit_secret)


def _changes_own_secret(attributes: Attributes) -> bool:
    obj, kind = attributes.obj or {}, SECRET.group_kind
    return changes_own_secret(kind, attributes.old, obj, attributes.user.name)


def _install_creators(server: ApiServer) -> None:
    """Record the authenticated user as the creator of a cluster, not what the client sent."""

    async def set_creator(attributes: Attributes) -> None:
        from herder.api.identity.creators import with_protected_annotations

        if attributes.obj is not None and SUPERUSERS not in attributes.user.groups:
            attributes.obj = with_protected_annotations(attributes.obj, attributes.old, attributes.user.name)

    resources = [kind.resource.group_resource for kind in (MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER)]
    server.deps.admission.add_mutating("creator of clusters", resources, set_creator)


class _AdmissionPlugin:
    """Rules of one kind as admission plugins; objects in other versions are converted for them."""

    def __init__(self, kind: Kind, rules: Admission, in_force: Callable[[], bool]) -> None:
        self._kind = kind
        self._rules = rules
        self._in_force = in_force

    async def default(self, attributes: Attributes) -> None:
        converted = await self._converted(attributes)
        if converted is None or self._rules.default is None:
            return
        obj, old = converted
        changed = self._rules.default(obj, old)
        if changed is not obj:
            returned = await in_version(attributes, changed, attributes.version)
            attributes.obj = attributes.normalized(returned or {})

    async def validate(self, attributes: Attributes) -> None:
        converted = await self._converted(attributes)
        problems = self._rules.validate(*converted) if converted is not None else []
        if problems:
            raise invalid(self._kind.group_kind, attributes.name, problems)

    async def _converted(self, attributes: Attributes) -> tuple[Object, Object | None] | None:
        """The object and the one it replaces, or None if no rule is concerned."""
        version = attributes.resource.versions.get(self._kind.version)
        if version is None or not version.served or not self._in_force():
            return None
        obj = await in_version(attributes, attributes.obj, self._kind.version)
        old = await in_version(attributes, attributes.old, self._kind.version)
        return (obj, old) if obj is not None and needs_admission(obj, old) else None
