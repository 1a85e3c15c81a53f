"""`herder grant` and `herder revoke`: roles of users in the manager, in a cluster or in a project."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from herder.api.identity.projects import project_key
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, OWNED_BY, global_binding_name, owner_label
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    PROJECT,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.app.host.paths import kubeconfig_option
from herder.cli.auth.user_lookup import BINDINGS, is_of_user, user_named
from herder.cli.client import ask
from herder.cli.cluster.lookup import cluster_named
from herder.cli.examples import examples
from herder.cli.table import print_table
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Kind, Object

Command = TypeVar("Command", bound=Callable[..., Any])
EFFECTIVE_SECONDS = 10.0
SHORT_ROLES = ("owner", "member")  # of a cluster or of a project

GRANT_EXAMPLES = examples(
    "herder grant dolly --cluster meadow --role member",
    "herder grant dolly --cluster meadow --project Default --role read-only",
    "herder grant dolly --global-role clusters-create",
    "herder grant dolly --list",
)
REVOKE_EXAMPLES = examples(
    "herder revoke dolly --cluster meadow --role member",
    "herder revoke dolly --cluster meadow --project Default --role read-only",
    "herder revoke dolly --global-role clusters-create",
)


@dataclass(frozen=True, slots=True)
class RoleBinding:
    """A role of one user, as an object that need not exist yet."""

    kind: Kind
    namespace: str
    fields: Object  # of the binding, except its metadata
    role: str
    place: str  # where the role applies, as shown to users; empty in the manager

    @property
    def text(self) -> str:
        return f"role {self.role} in {self.place}" if self.place else f"global role {self.role}"


def role_options(command: Command) -> Command:
    options = (
        click.argument("user"),
        click.option("--cluster", metavar="CLUSTER", default="", help="Cluster of the role (name or ID)."),
        click.option(
            "--project", metavar="PROJECT", default="", help="Project of the role, with --cluster (name or ID)."
        ),
        click.option(
            "--role",
            metavar="ROLE",
            default="",
            help="Role in the cluster or project: owner, member, or the name of a RoleTemplate.",
        ),
        click.option("--global-role", metavar="ROLE", default="", help="GlobalRole: a role in the manager itself."),
        kubeconfig_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog=GRANT_EXAMPLES)
@role_options
@click.option("--list", "lists", is_flag=True, help="List the roles of the user.")
def grant(
    user: str, cluster: str, project: str, role: str, global_role: str, kubeconfig: str | None, lists: bool
) -> None:
    """Grant a role to the user USER (name or ID), or list the roles of the user.

    You can grant only permissions that you have.
    """
    if lists:
        if cluster or project or role or global_role:
            raise click.UsageError("--list takes no role")
        rows = ask(kubeconfig, lambda client, _here: _roles(client, user))
        print_table(("SCOPE", "ROLE", "SUBJECT", "BINDING"), rows)
        return
    _check(cluster, project, role, global_role)

    async def granted(client: Client) -> str:
        wanted = await _wanted(client, user, cluster, project, role, global_role)
        if await _matching(client, wanted):
            return f"{user} already has {wanted.text}"
        created = await _create(client, wanted)
        if not await _is_effective(client, wanted.kind, created):
            click.echo(f"{created['metadata']['name']} is not in effect yet; is the manager running?", err=True)
        return f"{user} has {wanted.text}"

    click.echo(ask(kubeconfig, lambda client, _here: granted(client)))


@click.command(epilog=REVOKE_EXAMPLES)
@role_options
def revoke(user: str, cluster: str, project: str, role: str, global_role: str, kubeconfig: str | None) -> None:
    """Revoke a role of the user USER (name or ID)."""
    _check(cluster, project, role, global_role)

    async def revoked(client: Client) -> str:
        wanted = await _wanted(client, user, cluster, project, role, global_role)
        found = await _matching(client, wanted)
        if not found:
            raise click.ClickException(f"{user} has no {wanted.text}; list roles with: herder grant {user} --list")
        for each in found:
            meta = each["metadata"]
            await client.delete(wanted.kind.resource, meta["name"], namespace=wanted.namespace, uid=meta["uid"])
        place = f" in {wanted.place}" if wanted.place else ""
        return f"{'role' if wanted.place else 'global role'} {wanted.role} of {user}{place} revoked"

    click.echo(ask(kubeconfig, lambda client, _here: revoked(client)))


def _check(cluster: str, project: str, role: str, global_role: str) -> None:
    if bool(global_role) == bool(cluster):
        raise click.UsageError("pass either --global-role, or --cluster with --role")
    if cluster and not role:
        raise click.UsageError("--cluster requires --role, such as member or owner")
    if global_role and (role or project):
        raise click.UsageError("--global-role cannot be used with --role or --project")


# --- bindings -------------------------------------------------------------------------------------------------------


async def _wanted(client: Client, user: str, cluster: str, project: str, role: str, global_role: str) -> RoleBinding:
    name = (await user_named(client, user))["metadata"]["name"]
    if global_role:
        await _require(client, GLOBAL_ROLE, global_role)
        fields = {"globalRoleName": global_role, "userName": name}
        return RoleBinding(GLOBAL_ROLE_BINDING, "", fields, global_role, "")
    id_, shown = await cluster_named(client, cluster)
    template = f"{'project' if project else 'cluster'}-{role}" if role in SHORT_ROLES else role
    await _require(client, ROLE_TEMPLATE, template)
    fields = {"roleTemplateName": template, "userName": name}
    if not project:
        return RoleBinding(CLUSTER_BINDING, id_, {**fields, "clusterName": id_}, template, f"cluster {shown}")
    key = project_key(await _project(client, id_, project))
    place = f"project {project} of cluster {shown}"
    return RoleBinding(PROJECT_BINDING, key.namespace, {**fields, "projectName": key.id}, template, place)


async def _require(client: Client, kind: Kind, name: str) -> None:
    try:
        await client.get(kind.resource, name)
    except NotFound:
        hint = f"list them with: herder get {kind.resource.group_resource}"
        raise click.ClickException(f"{kind.kind} {name} not found; {hint}") from None
    except Forbidden:
        return  # The API server checks the binding itself.


async def _project(client: Client, cluster: str, name: str) -> Object:
    """Members of the cluster choose the names of projects, and could lead an owner into their own project."""
    projects = (await client.list_all(PROJECT.resource, namespace=cluster)).items
    by_id = {str(each["metadata"]["name"]): each for each in projects}
    found = {id_ for id_, each in by_id.items() if name in (id_, (each.get("spec") or {}).get("displayName"))}
    if len(found) > 1:
        raise click.ClickException(
            f"{name} is the name or ID of several projects ({', '.join(sorted(found))}); pass an ID that is no name"
        )
    if found:
        return by_id[found.pop()]
    known = ", ".join(str((each.get("spec") or {}).get("displayName") or each["metadata"]["name"]) for each in projects)
    raise click.ClickException(f"cluster {cluster} has no project {name}; its projects are: {known or 'none'}")


async def _matching(client: Client, wanted: RoleBinding) -> list[Object]:
    """Bindings that grant the role, also those that name the user by principal."""
    fields = dict(wanted.fields)
    user = fields.pop("userName")
    listed = (await client.list_all(wanted.kind.resource, namespace=wanted.namespace)).items
    same = (each for each in listed if all(each.get(name) == value for name, value in fields.items()))
    return [each for each in same if is_of_user(each, user)]


async def _create(client: Client, wanted: RoleBinding) -> Object:
    binding = {
        "apiVersion": wanted.kind.api_version,
        "kind": wanted.kind.kind,
        "metadata": {"generateName": BINDINGS[wanted.kind].prefix},
        **wanted.fields,
    }
    return await client.create(wanted.kind.resource, binding, namespace=wanted.namespace)


async def _is_effective(client: Client, kind: Kind, binding: Object) -> bool:
    """Wait until the manager has translated the binding to RBAC; True if that cannot be read."""
    try:
        async with asyncio.timeout(EFFECTIVE_SECONDS):
            while True:
                if await _has_rbac(client, kind, binding):
                    return True
                await asyncio.sleep(0.1)
    except TimeoutError:
        return False
    except Forbidden:
        return True


async def _has_rbac(client: Client, kind: Kind, binding: Object) -> bool:
    resource = CLUSTER_ROLE_BINDING.resource
    if kind == GLOBAL_ROLE_BINDING:
        fields = f"metadata.name={global_binding_name(binding['metadata']['name'])}"
        return bool((await client.list(resource, fields=fields)).items)
    return bool((await client.list(resource, labels=f"{OWNED_BY}={owner_label(binding)}")).items)


# --- list -----------------------------------------------------------------------------------------------------------


async def _roles(client: Client, user: str) -> list[tuple[str, str, str, str]]:
    found = await user_named(client, user)
    name, shown = found["metadata"]["name"], found.get("username") or found["metadata"]["name"]
    rows = []
    for kind in BINDINGS:
        for each in (await client.list_all(kind.resource)).items:
            if is_of_user(each, name):
                role = each.get("globalRoleName") or each.get("roleTemplateName") or ""
                rows.append((_scope(each), role, shown, each["metadata"]["name"]))
    return rows


def _scope(binding: Object) -> str:
    if "projectName" in binding:
        return f"project {binding['projectName']}"
    return f"cluster {binding['clusterName']}" if "clusterName" in binding else "global"
