"""Cloud credentials: where a machine's is, what is in it, how it reaches the driver, what of it must not be told."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from herder.api.machines.known import PRIVATE_FIELDS, credential_variable
from herder.engine.meta.kinds import Object

CREDENTIAL_TYPE = "provisioning.cattle.io/cloud-credential"
GLOBAL_NAMESPACE = "cattle-global-data"
OPAQUE = "Opaque"
CREATOR = "field.cattle.io/creatorId"
USED_BY = "machine.herder.io/used-by"
RIGHTS_FINALIZER = "machine.herder.io/creator-rights"
"""Of a credential: its name is free for another user once the rights of its creator, which go by name, have ended."""

HIDDEN = "***"
SHORTEST_HIDDEN = 6  # what is shorter is no secret, and would blot out half of a text
SHORTEST_LINE = 16  # of a value of several lines, which may be told line by line

_OF_DRIVER = "credentialConfig"


class Problem(Exception):
    """What keeps a Job from being made, such as a credential that lacks a field, and what to do."""


class Place(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def place_of(infra: Object) -> Place | None:
    """The Secret that the machine's spec names: `name` in its own namespace, or `cattle-global-data:name`; None where
    it names none. The status counts for nothing, since admission does not see who writes it."""
    named = ((infra.get("spec") or {}).get("common") or {}).get("cloudCredentialSecretName")
    if not named:
        return None
    namespace, colon, name = named.partition(":")
    if not colon:
        return Place(infra["metadata"]["namespace"], named)
    return Place(namespace, name)


def check_place(place: Place, infra: Object) -> None:
    """Whoever may make machines in one namespace must not get at the Secrets of another."""
    own = infra["metadata"]["namespace"]
    if place.namespace not in (own, GLOBAL_NAMESPACE):
        raise Problem(
            f"spec.common.cloudCredentialSecretName: Secret {place} is in another namespace; "
            f"name one of namespace {own}, or {GLOBAL_NAMESPACE}:<name>"
        )


def fields_of(secret: Object, driver: str) -> dict[str, str]:
    """The credential's fields, from keys `<driver>credentialConfig-<field>` or `<field>`."""
    meta = secret["metadata"]
    place, type_ = Place(meta.get("namespace", ""), meta["name"]), secret.get("type") or OPAQUE
    if type_ != CREDENTIAL_TYPE and not (type_ == OPAQUE and place.namespace == GLOBAL_NAMESPACE):
        raise Problem(f"Secret {place}: its type is {type_}; a cloud credential has type {CREDENTIAL_TYPE}")
    found = {}
    for key, encoded in sorted((secret.get("data") or {}).items()):
        prefix, _, field = key.rpartition("-")
        if prefix.endswith(_OF_DRIVER) and prefix != f"{driver}{_OF_DRIVER}":
            continue  # for another driver
        found[field] = _text(place, key, encoded)
    return found


def _text(place: Place, key: str, encoded: str) -> str:
    try:
        return base64.b64decode(encoded).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Problem(f'Secret {place}: key "{key}" is not text') from None


def check_fields(place: Place, fields: Mapping[str, str], required: Iterable[str], driver: str) -> None:
    for field in required:
        if not fields.get(field):
            raise Problem(
                f'Secret {place}: field "{field}" is required by driver {driver}; add key {driver}{_OF_DRIVER}-{field}'
            )


def usable(
    place: Place, fields: Mapping[str, str], known: Container[str], driver: str, *, strict: bool
) -> dict[str, str]:
    """The fields that the driver takes. Others are left out, or refused where `strict`."""
    for field in fields:
        if strict and field not in known:
            raise Problem(
                f'Secret {place}: field "{field}" is none of a credential for driver {driver}; remove its key, or name '
                f"the field in an annotation of NodeDriver {driver}, such as {PRIVATE_FIELDS}"
            )
    return {field: value for field, value in fields.items() if field in known}


def variables(driver: str, fields: Mapping[str, str]) -> dict[str, str]:
    """As the driver reads them from its environment."""
    return {credential_variable(driver, field): value for field, value in fields.items()}


# --- what must not be told ------------------------------------------------------------------------------------------


def hidden(text: str, secrets: Iterable[str], *, known: Iterable[str] = ()) -> str:
    """The text without these values; those that anybody can read elsewhere (`known`) stay."""
    public = set(known)
    for secret in sorted(_pieces(secrets), key=len, reverse=True):
        if secret not in public:
            text = text.replace(secret, HIDDEN)
    return text


def _pieces(secrets: Iterable[str]) -> set[str]:
    pieces = set()
    for secret in secrets:
        if len(secret.strip()) >= SHORTEST_HIDDEN:
            pieces.add(secret.strip())
        pieces.update(line for line in map(str.strip, secret.splitlines()) if len(line) >= SHORTEST_LINE)
    return pieces
