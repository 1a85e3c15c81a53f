"""Names that the generic machine provider and those beside it agree on, each in one place.

The two ways to shorten a name are upstream's, byte for byte: other programs compute the same names.
"""

from __future__ import annotations

import hashlib

from herder.api.numbers import integer

LONGEST = 63
LONGEST_OBJECT_NAME = 253

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
"""Of a Job: the driver of its machine, whatever the record in the state Secret says."""

ARCHIVE_NAMESPACE = "herder-archive"
ARCHIVE_LABEL = "herder.io/archive"
CREATE_LOG, REMOVE_LOG = "create.log", "remove.log"


def safe_concat(*parts: str) -> str:
    """Joined with `-`; what does not fit into a label is cut, and told apart by a hash."""
    whole = "-".join(parts)
    if len(whole) <= LONGEST:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()
    if _is_alphanumeric(whole[56]):
        return f"{whole[:57]}-{digest[:5]}"
    return f"{whole[:56]}-{digest[:6]}"


def limited_concat(limit: int, *parts: str) -> str:
    """The same for another length."""
    whole = "-".join(parts)
    if len(whole) <= limit:
        return whole
    if limit <= 5:
        return whole[:limit]
    digest = hashlib.sha256(whole.encode()).hexdigest()
    if _is_alphanumeric(whole[limit - 7]):
        return f"{whole[: limit - 6]}-{digest[:5]}"
    return f"{whole[: limit - 7]}-{digest[:6]}"


def _is_alphanumeric(character: str) -> bool:
    return character.isascii() and (character.islower() or character.isdigit())


def state_secret(infra: str) -> str:
    return safe_concat(infra, "machine", "state")


def environment_secret(infra: str) -> str:
    return safe_concat(infra, "machine", "driver", "secret")


def provision_job(infra: str) -> str:
    """Of the Job, and of its ServiceAccount, Role, RoleBinding and files Secret too."""
    return safe_concat(infra, "machine", "provision")


def instance_name(infra: str) -> str:
    """What the machine is called at its provider."""
    return safe_concat(infra.replace(".", "-"))


def hostname(infra: str, limit_annotation: str | None) -> str:
    """What the machine calls itself: shorter where an annotation asks for it."""
    asked = integer(limit_annotation or "")
    limit = asked if 10 <= asked <= LONGEST else LONGEST
    return limited_concat(limit, infra.replace(".", "-"))


def archived_log(namespace: str, infra: str) -> str:
    """Of the ConfigMap that keeps what its Jobs said."""
    return _archived(namespace, infra, "log")


def archived_state(namespace: str, infra: str) -> str:
    """Of the Secret that keeps the record of a machine whose namespace was deleted."""
    return _archived(namespace, infra, "state")


def archived_log_before(namespace: str, infra: str) -> str:
    """The name of a log in version 0.1, which machines of several namespaces may share."""
    return safe_concat(namespace, infra, "log")


def _archived(namespace: str, infra: str, what: str) -> str:
    """A namespace has no dots, so machines of two namespaces never share a name, whatever their users call them."""
    whole = f"{namespace}.{infra}-{what}"
    if len(whole) <= LONGEST_OBJECT_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return f"{whole[: LONGEST_OBJECT_NAME - len(digest) - 1].rstrip('.-')}-{digest}"
