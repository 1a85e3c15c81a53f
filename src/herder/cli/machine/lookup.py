"""Find a machine by name, and read its state Secret."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import click

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import labels_of
from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.machines.names import INFRA_NAME_LABEL, STATE_KEY, STATE_SECRET_TYPE, safe_concat, state_secret
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Object

OTHERS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A machine of our provider."""

    namespace: str
    name: str  # name of the infrastructure object; Job, state and log are named after it
    machine: Object | None  # its Machine, if it still exists


@dataclass(frozen=True, slots=True)
class State:
    """Content of the state Secret."""

    uid: str  # UID of the Secret
    archive: bytes


async def find_machine(client: Client, namespaces: Sequence[str], name: str) -> list[Found]:
    """Find by the name of the Machine or of its infrastructure object, which are usually equal.

    If no such Machine exists, returns all places where something may still be known of it.
    """
    if not name:
        raise click.ClickException("machine name is empty; list machines with: kubectl get machines -A")
    for namespace in namespaces:
        with suppress(NotFound, Forbidden):
            machine = await client.get(MACHINE.resource, name, namespace=namespace)
            return [_found(namespace, machine)]
    return [Found(namespace, name, None) for namespace in namespaces]


def _found(namespace: str, machine: Object) -> Found:
    reference = machine["spec"].get("infrastructureRef") or {}
    if reference.get("apiGroup", "") != MACHINE_GROUP:
        raise click.ClickException(
            f'machine "{machine["metadata"]["name"]}" belongs to another provider ({reference.get("kind")}); '
            "this command supports only machines that Herder created with a node driver"
        )
    return Found(namespace, reference["name"], machine)


async def read_state(client: Client, places: Sequence[Found]) -> State:
    """The archive in the state Secret; access to the Secret is access to the machine."""
    for found in places:
        with suppress(NotFound):
            return await _state(client, found)
    raise click.ClickException(await _nothing_saved(client, places))


async def _state(client: Client, found: Found) -> State:
    secret_name = state_secret(found.name)
    try:
        secret = await client.get(SECRET.resource, secret_name, namespace=found.namespace)
    except Forbidden as error:
        raise click.ClickException(
            f'access to machine "{found.name}" is denied: it requires the verb get on '
            f"Secret {found.namespace}/{secret_name} ({error})"
        ) from None
    _check_owner(found, secret)
    encoded = (secret.get("data") or {}).get(STATE_KEY)
    if not encoded:
        raise click.ClickException(
            f'machine "{found.name}" is not created yet; check its log with: herder logs machine {found.name}'
        )
    return State(secret["metadata"]["uid"], base64.b64decode(encoded))


def _check_owner(found: Found, secret: Object) -> None:
    """Refuse a state that names another host.

    Long names of state Secrets are truncated, so a user's Secret or the state of another machine can have this one.
    """
    own = safe_concat(found.name)
    if secret.get("type") == STATE_SECRET_TYPE and labels_of(secret).get(INFRA_NAME_LABEL, own) == own:
        return
    raise click.ClickException(
        f"Secret {found.namespace}/{state_secret(found.name)} is not the state of machine {found.name}; delete it if "
        "it belongs to a user, or rename one of the machines"
    )


async def _nothing_saved(client: Client, places: Sequence[Found]) -> str:
    name = places[0].name
    if places[0].machine is not None:
        return f'machine "{name}" is not created yet; check its log with: herder logs machine {name}'
    message = f'machine "{name}" not found in namespace {" or ".join(found.namespace for found in places)}'
    others = [other for found in places for other in await _others(client, found.namespace)]
    return f"{message}; existing machines: {', '.join(others[:OTHERS_SHOWN])}" if others else message


async def _others(client: Client, namespace: str) -> list[str]:
    try:
        page = await client.list(MACHINE.resource, namespace=namespace, limit=OTHERS_SHOWN)
    except (NotFound, Forbidden):
        return []
    return [machine["metadata"]["name"] for machine in page.items]
