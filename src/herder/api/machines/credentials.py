"""Cloud credentials: which Secret a machine uses, its fields, how they reach the driver, and redaction."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from herder.api.machines.drivers.known import PRIVATE_FIELDS, credential_variable
from herder.engine.meta.kinds import Object

CREDENTIAL_TYPE = "provisioning.cattle.io/cloud-credential"
GLOBAL_NAMESPACE = "cattle-global-data"
OPAQUE = "Opaque"
CREATOR = "field.cattle.io/creatorId"
CREATED_BY = "machine.herder.io/created-by"
"""Of a credential: the user who got rights on it as its creator. Others do not write what that user would read."""
USED_BY = "machine.herder.io/used-by"
RIGHTS_FINALIZER = "machine.herder.io/creator-rights"
"""Finalizer of a credential: the name stays reserved until the creator's permissions, which are granted by name, are
revoked.
"""

REDACTED = "***"
NOT_REDACTED = "(not shown: there are too many values to redact)"
MIN_SECRET_LENGTH = 6  # shorter values are no secrets, and redacting them would garble the text
MIN_LINE_LENGTH = 16  # minimum length of a line of a multi-line value, which is redacted line by line

# Each value is searched in the whole text, on the event loop. Editors of a namespace can write its Secrets.
_MAX_SECRETS = 256 << 10  # characters of all values
_MAX_REDACTED = 256  # values and lines; a private key has about 50 lines
_MAX_SEARCHED = 32 << 20  # characters, once for each value

_DRIVER_SUFFIX = "credentialConfig"


class Problem(Exception):
    """Why a Job cannot be created, such as a credential that lacks a field, and what to do."""


class SecretKey(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def credential_key(infra: Object) -> SecretKey | None:
    """Return the Secret named in the machine's spec: `name` in its own namespace, or `cattle-global-data:name`.

    None if it names none. The status is ignored, because admission does not check who writes it.
    """
    named = ((infra.get("spec") or {}).get("common") or {}).get("cloudCredentialSecretName")
    if not named:
        return None
    namespace, colon, name = named.partition(":")
    if not colon:
        return SecretKey(infra["metadata"]["namespace"], named)
    return SecretKey(namespace, name)


def check_credential_namespace(place: SecretKey, infra: Object) -> None:
    """Machines of one namespace must not use the Secrets of another."""
    own = infra["metadata"]["namespace"]
    if place.namespace not in (own, GLOBAL_NAMESPACE):
        raise Problem(
            f"spec.common.cloudCredentialSecretName: Secret {place} is in another namespace; "
            f"name one of namespace {own}, or {GLOBAL_NAMESPACE}:<name>"
        )


def fields_of(secret: Object, driver: str) -> dict[str, str]:
    """Return the credential's fields, from keys `<driver>credentialConfig-<field>` or `<field>`."""
    meta = secret["metadata"]
    place, type_ = SecretKey(meta.get("namespace", ""), meta["name"]), secret.get("type") or OPAQUE
    if type_ != CREDENTIAL_TYPE and not (type_ == OPAQUE and place.namespace == GLOBAL_NAMESPACE):
        raise Problem(f"Secret {place}: its type is {type_}; a cloud credential has type {CREDENTIAL_TYPE}")
    found = {}
    for key, encoded in sorted((secret.get("data") or {}).items()):
        prefix, _, field = key.rpartition("-")
        if prefix.endswith(_DRIVER_SUFFIX) and prefix != f"{driver}{_DRIVER_SUFFIX}":
            continue  # for another driver
        found[field] = _text(place, key, encoded)
    return found


def _text(place: SecretKey, key: str, encoded: str) -> str:
    try:
        return base64.b64decode(encoded).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Problem(f'Secret {place}: key "{key}" is not valid UTF-8 text') from None


def check_fields(place: SecretKey, fields: Mapping[str, str], required: Iterable[str], driver: str) -> None:
    for field in required:
        if not fields.get(field):
            raise Problem(
                f'Secret {place}: driver {driver} requires field "{field}"; add key {driver}{_DRIVER_SUFFIX}-{field}'
            )


def usable(
    place: SecretKey, fields: Mapping[str, str], known: Container[str], driver: str, *, strict: bool
) -> dict[str, str]:
    """Return the fields that the driver accepts; others are dropped, or rejected if `strict`."""
    for field in fields:
        if strict and field not in known:
            raise Problem(
                f'Secret {place}: field "{field}" is unknown to driver {driver}; remove its key, or list '
                f"the field in an annotation of NodeDriver {driver}, such as {PRIVATE_FIELDS}"
            )
    return {field: value for field, value in fields.items() if field in known}


def variables(driver: str, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables in which the driver reads them."""
    return {credential_variable(driver, field): value for field, value in fields.items()}


# --- redaction ------------------------------------------------------------------------------------------------------


def redact(text: str, secrets: Iterable[str], *, known: Iterable[str] = ()) -> str:
    """Redact these values in the text, except those that are public (`known`).

    Returns NOT_REDACTED in place of the text if that would take too long.
    """
    values = [*secrets]
    if sum(map(len, values)) > _MAX_SECRETS:
        return NOT_REDACTED
    found = _redacted_strings(values) - set(known)
    if len(found) > _MAX_REDACTED or len(found) * len(text) > _MAX_SEARCHED:
        return NOT_REDACTED
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


def _redacted_strings(secrets: Iterable[str]) -> set[str]:
    pieces = set()
    for secret in secrets:
        if len(secret.strip()) >= MIN_SECRET_LENGTH:
            pieces.add(secret.strip())
        pieces.update(line for line in map(str.strip, secret.splitlines()) if len(line) >= MIN_LINE_LENGTH)
    return pieces
