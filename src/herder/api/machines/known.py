"""What is known of drivers without asking them, and how a NodeDriver object is read.

The annotations are upstream's: lists with commas between, and pairs `name:value` with commas between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from herder.api.machines.flags import Flag
from herder.engine.meta.kinds import Object

NATIVE_DRIVERS = ("amazonec2", "generic", "local", "process")
"""Those that our own machine program has; `rancher-machine` runs all others."""

PROGRAM_ANNOTATION = "machine.herder.io/program"
OWN_PROGRAM, GO_PROGRAM = "herder-machine", "rancher-machine"
PROGRAMS = (OWN_PROGRAM, GO_PROGRAM)

DRIVER_LABEL = "io.cattle.node_driver.name"  # of schemas and definitions: the driver that they were made for

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
"""Where a driver takes a Machine's failureDomain; drivers that are not here know no zones."""

_PREFIXES = {
    "amazonec2": "AWS",
    "openstack": "OS",
    "rackspace": "OS",
    "vmwarefusion": "FUSION",
    "vmwarevcloudair": "VCLOUDAIR",
    "vmwarevsphere": "VSPHERE",
}
_USER_DATA_WORDS = ("user-data", "userdata", "custom-data", "cloud-config")
_WORD_BOUNDARY = re.compile(r"([a-z0-9])([A-Z])")
_DRIVER_NAME = re.compile(r"[a-z][a-z0-9]{0,46}")


def environment_prefix(driver: str) -> str:
    """Of the variables in which a cloud credential reaches the driver."""
    return _PREFIXES.get(driver, driver.upper())


def credential_variable(driver: str, field: str) -> str:
    """The variable for a field of a cloud credential: `accessToken` → DIGITALOCEAN_ACCESS_TOKEN."""
    return f"{environment_prefix(driver)}_{_separated(field, '_').upper()}"


def flag_name(driver: str, field: str) -> str:
    """The flag that a field of a machine's spec becomes: `sshKeypath` → amazonec2-ssh-keypath."""
    return f"{driver}-{_separated(field, '-').lower()}"


def _separated(field: str, mark: str) -> str:
    return _WORD_BOUNDARY.sub(rf"\1{mark}\2", field)


def user_data_flag(flags: Iterable[Flag]) -> Flag | None:
    """The flag by which a driver takes a file for cloud-init; without one, scripts are brought by SSH."""
    return next((flag for flag in flags if any(word in flag.name for word in _USER_DATA_WORDS)), None)


# --- a NodeDriver object ------------------------------------------------------------------------------------------


def driver_name(node_driver: Object) -> str:
    """What its kinds are named after; a NodeDriver that people add is often named at random."""
    return (node_driver.get("spec") or {}).get("displayName") or str(node_driver["metadata"]["name"])


def age(node_driver: Object) -> tuple[str, str]:
    """Where two bring the same driver, the older one does, and the other one nothing."""
    return node_driver["metadata"].get("creationTimestamp", ""), node_driver["metadata"]["name"]


def name_problem(driver: str) -> str:
    """Flags are named `<driver>-<flag>`, kinds and schemas after the driver: so it can only be one plain word."""
    if _DRIVER_NAME.fullmatch(driver):
        return ""
    return (
        f'"{driver}" cannot name a driver: set spec.displayName to the driver\'s name in at most 47 lower-case letters '
        "and digits, a letter first"
    )


def is_built_in(node_driver: Object) -> bool:
    """Whether the machine program has the driver itself, so that there is nothing to download."""
    spec = node_driver.get("spec") or {}
    return bool(spec.get("builtin")) or str(spec.get("url", "")).startswith(BUILT_IN_URL)


def program_of(node_driver: Object) -> str:
    """Which machine program makes its machines: what the annotation says, else ours where it has the driver."""
    asked = annotations_of(node_driver).get(PROGRAM_ANNOTATION, "")
    if asked in PROGRAMS:
        return asked
    return OWN_PROGRAM if driver_name(node_driver) in NATIVE_DRIVERS and is_built_in(node_driver) else GO_PROGRAM


@dataclass(frozen=True, slots=True)
class CredentialFields:
    """What a cloud credential for a driver holds."""

    public: tuple[str, ...]
    private: tuple[str, ...]
    optional: frozenset[str]
    defaults: Mapping[str, str]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.public, *self.private)

    @property
    def required(self) -> tuple[str, ...]:
        """What a person must fill in."""
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
    """The fields of a cloud credential that reach the driver.

    Fields become variables, and programs have others besides those of credentials: AWS_CONFIG_FILE names a file with
    a command that the SDK runs. So the author of a credential does not choose variables.
    """
    declared = credential_fields(node_driver)
    further = _FURTHER_CREDENTIAL_FIELDS.get(driver_name(node_driver), ())
    return frozenset((*declared.all, *declared.optional, *declared.defaults, *file_aliases(node_driver), *further))


def password_fields(node_driver: Object) -> frozenset[str]:
    """Fields that are not to be shown, whether part of a credential or not."""
    annotations = annotations_of(node_driver)
    named = listed(annotations.get(PASSWORD_FIELDS, "")) + listed(annotations.get(PRIVATE_FIELDS, ""))
    return frozenset((*named, *SSH_KEY_FIELDS))


def file_aliases(node_driver: Object) -> dict[str, str]:
    """Field of the schema, which holds a file's content → field of the driver, which takes the file's path."""
    return paired(annotations_of(node_driver).get(FILE_ALIASES, ""))


def annotations_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def paired(text: str) -> dict[str, str]:
    pairs = (part.partition(":") for part in listed(text))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}
