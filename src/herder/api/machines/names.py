"""Names, labels and annotations of the generic machine provider.

Both functions that shorten names are byte-compatible with upstream: other programs compute the same names.
"""

from __future__ import annotations

import hashlib

from herder.api.numbers import parse_int64

MAX_LABEL = 63
MAX_OBJECT_NAME = 253

PROVISION_ROLE, CREDENTIAL_ROLE = "machine-provision", "cloud-credential"
"""Suffixes of the Roles of machine Jobs and of the creators of cloud credentials."""

STATE_SECRET_TYPE = "rke.cattle.io/machine-state"
STATE_KEY = "extractedConfig"
BACKUP_LABEL = "resources.cattle.io/backup"

HOSTNAME_LIMIT = "rke.cattle.io/hostname-length-limit"
FORCE_REMOVE = "provisioning.cattle.io/force-machine-remove"

MACHINE_NAME_LABEL = "rke.cattle.io/capi-machine-name"
INFRA_GROUP_LABEL = "rke.cattle.io/infra-machine-group"
INFRA_VERSION_LABEL = "rke.cattle.io/infra-machine-version"
INFRA_KIND_LABEL = "rke.cattle.io/infra-machine-kind"
INFRA_NAME_LABEL = "rke.cattle.io/infra-machine-name"
INFRA_REMOVE_LABEL = "rke.cattle.io/infra-remove"

DRIVER_VARIABLE = "HERDER_MACHINE_DRIVER"
"""Environment variable of a Job: the driver of its machine, which overrides the record in the state Secret."""

ARCHIVE_NAMESPACE = "herder-archive"
ARCHIVE_LABEL = "herder.io/archive"
CREATE_LOG, REMOVE_LOG = "create.log", "remove.log"


def safe_concat(*parts: str) -> str:
    """Join with `-`; truncate to a label's length and add a hash if it does not fit."""
    joined = "-".join(parts)
    if len(joined) <= MAX_LABEL:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()
    if _is_alphanumeric(joined[56]):
        return f"{joined[:57]}-{digest[:5]}"
    return f"{joined[:56]}-{digest[:6]}"


def limited_concat(limit: int, *parts: str) -> str:
    """Join like safe_concat, with another length."""
    joined = "-".join(parts)
    if len(joined) <= limit:
        return joined
    if limit <= 5:
        return joined[:limit]
    digest = hashlib.sha256(joined.encode()).hexdigest()
    if _is_alphanumeric(joined[limit - 7]):
        return f"{joined[: limit - 6]}-{digest[:5]}"
    return f"{joined[: limit - 7]}-{digest[:6]}"


def granted_role(suffix: str, *parts: str) -> str:
    """Name of a Role that the manager fills, and of its RoleBinding. It ends in the suffix even if it is truncated.

    Users cannot create Roles with these suffixes (`GRANTED_ROLE` in `api/identity/tenancy/rules.py`). Otherwise they
    could create one first and bind it while it is empty. The binding would stay without its Role, and grant what the
    manager puts into the next one of that name.
    """
    joined = "-".join((*parts, suffix))
    if len(joined) <= MAX_OBJECT_NAME:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()
    return f"{joined[: MAX_OBJECT_NAME - len(digest) - len(suffix) - 2].rstrip('.-')}-{digest}-{suffix}"


def _is_alphanumeric(character: str) -> bool:
    return character.isascii() and (character.islower() or character.isdigit())


def state_secret(infra: str) -> str:
    return safe_concat(infra, "machine", "state")


def environment_secret(infra: str) -> str:
    return safe_concat(infra, "machine", "driver", "secret")


def provision_job(infra: str) -> str:
    """Name of the Job, and of its ServiceAccount and files Secret."""
    return safe_concat(infra, "machine", "provision")


def provision_role(infra: str) -> str:
    return granted_role(PROVISION_ROLE, infra)


def instance_name(infra: str) -> str:
    """Name of the machine at its provider."""
    return safe_concat(infra.replace(".", "-"))


def hostname(infra: str, limit_annotation: str | None) -> str:
    """Host name of the machine; an annotation may limit its length."""
    requested = parse_int64(limit_annotation or "")
    limit = requested if 10 <= requested <= MAX_LABEL else MAX_LABEL
    return limited_concat(limit, infra.replace(".", "-"))


def archived_log(namespace: str, infra: str) -> str:
    """Name of the ConfigMap with the archived logs of its Jobs."""
    return _archived(namespace, infra, "log")


def archived_state(namespace: str, infra: str) -> str:
    """Name of the Secret with the state of a machine whose namespace was deleted."""
    return _archived(namespace, infra, "state")


def archived_log_before(namespace: str, infra: str) -> str:
    """Name of an archived log in version 0.1, which machines of several namespaces may share."""
    return safe_concat(namespace, infra, "log")


def _archived(namespace: str, infra: str, what: str) -> str:
    """A namespace contains no dots, so machines of two namespaces never share a name."""
    joined = f"{namespace}.{infra}-{what}"
    if len(joined) <= MAX_OBJECT_NAME:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()
    return f"{joined[: MAX_OBJECT_NAME - len(digest) - 1].rstrip('.-')}-{digest}"
