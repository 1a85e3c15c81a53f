"""Facts about node drivers that need no query, and how to read a NodeDriver object.

The annotations are upstream's: comma-separated lists, and comma-separated `name:value` pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from herder.api.machines.drivers.flags import Flag
from herder.engine.meta.kinds import Object

NATIVE_DRIVERS = ("amazonec2", "generic", "local", "process")
"""Drivers built into herder-machine; `rancher-machine` runs all others."""

PROGRAM_ANNOTATION = "machine.herder.io/program"
OWN_PROGRAM, GO_PROGRAM = "herder-machine", "rancher-machine"
PROGRAMS = (OWN_PROGRAM, GO_PROGRAM)

DRIVER_LABEL = "io.cattle.node_driver.name"  # on schemas and definitions: the driver they were generated for

PUBLIC_FIELDS = "publicCredentialFields"
PRIVATE_FIELDS = "privateCredentialFields"
OPTIONAL_FIELDS = "optionalCredentialFields"
PASSWORD_FIELDS = "passwordFields"
CREDENTIAL_DEFAULTS = "defaults"
FILE_ALIASES = "nodedriver.cattle.io/file-to-field-aliases"
FIELD_HINTS = "io.cattle.nodedriver/ui-field-hints"

SSH_KEY_FIELDS = ("sshKeyContents", "sshKey", "privateKeyFile")
BUILT_IN_URL = "local://"

ZONE_FIELD = {
    "amazonec2": "zone",
    "azure": "availabilityZone",
    "exoscale": "availabilityZone",
    "google": "zone",
    "local": "zone",
    "openstack": "availabilityZone",
    "process": "zone",
}
"""Field that receives a Machine's failureDomain; drivers that are not listed have no zones."""

_PREFIXES = {
    "amazonec2": "AWS",
    "openstack": "OS",
    "rackspace": "OS",
    "vmwarefusion": "FUSION",
    "vmwarevcloudair": "VCLOUDAIR",
    "vmwarevsphere": "VSPHERE",
}
_USER_DATA_FLAGS = ("user-data", "userdata", "custom-data", "cloud-config")
_WORD_BOUNDARY = re.compile(r"([a-z0-9])([A-Z])")
_DRIVER_NAME = re.compile(r"[a-z][a-z0-9]{0,46}")


def environment_prefix(driver: str) -> str:
    """Return the prefix of the environment variables with a cloud credential."""
    return _PREFIXES.get(driver, driver.upper())


def credential_variable(driver: str, field: str) -> str:
    """Return the variable for a field of a cloud credential: `accessToken` → DIGITALOCEAN_ACCESS_TOKEN."""
    return f"{environment_prefix(driver)}_{_separated(field, '_').upper()}"


def flag_name(driver: str, field: str) -> str:
    """Return the flag for a field of a machine's spec: `sshKeypath` → amazonec2-ssh-keypath."""
    return f"{driver}-{_separated(field, '-').lower()}"


def _separated(field: str, mark: str) -> str:
    return _WORD_BOUNDARY.sub(rf"\1{mark}\2", field)


def user_data_flag(flags: Iterable[Flag]) -> Flag | None:
    """Return the flag that takes a cloud-init file; without one, scripts are copied by SSH."""
    return next((flag for flag in flags if any(word in flag.name for word in _USER_DATA_FLAGS)), None)


# --- a NodeDriver object ------------------------------------------------------------------------------------------


def driver_name(node_driver: Object) -> str:
    """Return the name its kinds are derived from; NodeDrivers added by users often have generated names."""
    return (node_driver.get("spec") or {}).get("displayName") or str(node_driver["metadata"]["name"])


def age(node_driver: Object) -> tuple[str, str]:
    """Sort key: if two NodeDrivers have the same driver name, only the older one is active."""
    return node_driver["metadata"].get("creationTimestamp", ""), node_driver["metadata"]["name"]


def name_problem(driver: str) -> str:
    """Flags are named `<driver>-<flag>`, kinds and schemas after the driver, so the name must be a single word."""
    if _DRIVER_NAME.fullmatch(driver):
        return ""
    return (
        f'"{driver}" cannot name a driver: set spec.displayName to the driver\'s name in at most 47 lower-case letters '
        "and digits, a letter first"
    )


def is_built_in(node_driver: Object) -> bool:
    """Whether the driver is built into the machine CLI, so that nothing is downloaded."""
    spec = node_driver.get("spec") or {}
    return bool(spec.get("builtin")) or str(spec.get("url", "")).startswith(BUILT_IN_URL)


def program_of(node_driver: Object) -> str:
    """Return the machine CLI for its machines: from the annotation, else herder-machine if the driver is built in."""
    asked = annotations_of(node_driver).get(PROGRAM_ANNOTATION, "")
    if asked in PROGRAMS:
        return asked
    return OWN_PROGRAM if driver_name(node_driver) in NATIVE_DRIVERS and is_built_in(node_driver) else GO_PROGRAM


@dataclass(frozen=True, slots=True)
class CredentialFields:
    """Fields of a cloud credential of a driver."""

    public: tuple[str, ...]
    private: tuple[str, ...]
    optional: frozenset[str]
    defaults: Mapping[str, str]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.public, *self.private)

    @property
    def required(self) -> tuple[str, ...]:
        """Fields that a user must fill in."""
        return tuple(field for field in self.all if field not in self.optional and field not in self.defaults)


def credential_fields(node_driver: Object) -> CredentialFields:
    annotations = annotations_of(node_driver)
    return CredentialFields(
        public=listed(annotations.get(PUBLIC_FIELDS, "")),
        private=listed(annotations.get(PRIVATE_FIELDS, "")),
        optional=frozenset(listed(annotations.get(OPTIONAL_FIELDS, ""))),
        defaults=paired(annotations.get(CREDENTIAL_DEFAULTS, "")),
    )


_FURTHER_CREDENTIAL_FIELDS: Mapping[str, tuple[str, ...]] = {"amazonec2": ("defaultRegion", "sessionToken")}


def usable_credential_fields(node_driver: Object) -> frozenset[str]:
    """Return the fields of a cloud credential that are passed to the driver.

    Fields become environment variables, and some variables are dangerous: AWS_CONFIG_FILE names a file with a command
    that the SDK runs. So a credential cannot set arbitrary ones.
    """
    declared = credential_fields(node_driver)
    further = _FURTHER_CREDENTIAL_FIELDS.get(driver_name(node_driver), ())
    return frozenset((*declared.all, *declared.optional, *declared.defaults, *file_aliases(node_driver), *further))


def password_fields(node_driver: Object) -> frozenset[str]:
    """Return fields that must not be shown, whether part of a credential or not."""
    annotations = annotations_of(node_driver)
    named = listed(annotations.get(PASSWORD_FIELDS, "")) + listed(annotations.get(PRIVATE_FIELDS, ""))
    return frozenset((*named, *SSH_KEY_FIELDS))


def file_aliases(node_driver: Object) -> dict[str, str]:
    """Map schema fields that hold a file's content to driver fields that take the file's path."""
    return paired(annotations_of(node_driver).get(FILE_ALIASES, ""))


def annotations_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def paired(text: str) -> dict[str, str]:
    pairs = (part.partition(":") for part in listed(text))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}
