"""Build the arguments of the machine CLI from a machine's spec, byte-compatible with upstream."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from herder.api.machines.drivers.known import SSH_KEY_FIELDS, ZONE_FIELD, flag_name
from herder.engine.meta.kinds import Object

BOOTSTRAP_DIRECTORY = "/run/secrets/machine"
FILES_DIRECTORY = "/path/to/machine/files"

_NOT_FLAGS = frozenset({"common", "providerID"})

CLUSTER_TAG = "kubernetes.io/cluster/"
OWN_SECURITY_GROUP = "rancher-nodes"


class Download(NamedTuple):
    """Download of a driver that is not built in; both fields are empty otherwise."""

    url: str = ""
    checksum: str = ""


def create_arguments(
    *, download: Download, namespace: str, state: str, driver: str, instance: str, hostname: str, flags: list[str]
) -> list[str]:
    override = [f"--hostname-override={hostname}"] if hostname != instance else []
    return [
        *_global_arguments(download, namespace, state),
        "create",
        f"--driver={driver}",
        f"--custom-install-script={BOOTSTRAP_DIRECTORY}/value",
        *override,
        *flags,
        instance,
    ]


def remove_arguments(*, download: Download, namespace: str, state: str, instance: str) -> list[str]:
    return [*_global_arguments(download, namespace, state), "rm", "-y", "--update-config", instance]


def _global_arguments(download: Download, namespace: str, state: str) -> list[str]:
    return [
        f"--driver-download-url={download.url}",
        f"--driver-hash={download.checksum}",
        f"--secret-namespace={namespace}",
        f"--secret-name={state}",
    ]


# --- the driver's own flags -----------------------------------------------------------------------------------------


def driver_flags(driver: str, fields: Mapping[str, Any], *, cluster: str) -> list[str]:
    """Return the driver's flags, sorted; `cluster` tags the provider's resources as belonging to the cluster."""
    wanted = dict(fields)
    if driver == "amazonec2":
        wanted = _tagged(wanted, cluster)
    if driver == "harvester":
        wanted["clusterName"] = cluster
    flags = [flag for field, value in wanted.items() if field not in _NOT_FLAGS for flag in _flag(driver, field, value)]
    if driver == "amazonec2" and _has_custom_security_group(wanted):
        flags.append("--amazonec2-security-group-readonly")
    return sorted(flags)


def _flag(driver: str, field: str, value: object) -> list[str]:
    name = f"--{flag_name(driver, field)}"
    match value:
        case bool():
            return [name] if value else []
        case str() if value:
            return [f"{name}={value}"]
        case int():
            return [f"{name}={value}"]
        case float():
            return [f"{name}={int(value) if value.is_integer() else value}"]
        case list():
            return [f"{name}={item}" for item in value if isinstance(item, str)]
    return []


def _tagged(fields: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Add the tag by which AWS cloud providers find a cluster's resources, unless the user sets one."""
    tags = fields.get("tags") or ""
    if CLUSTER_TAG in tags:
        return fields
    own = f"{CLUSTER_TAG}{cluster},owned"
    return {**fields, "tags": f"{tags},{own}" if tags else own}


def _has_custom_security_group(fields: Mapping[str, Any]) -> bool:
    """Whether the user names a security group, whose rules are then not changed unless the user says so."""
    groups = fields.get("securityGroup")
    first = groups[0] if isinstance(groups, list) and groups else groups
    return bool(first) and first != OWN_SECURITY_GROUP and fields.get("securityGroupReadonly") is None


# --- failure domains ------------------------------------------------------------------------------------------------


def in_zone(driver: str, fields: Mapping[str, Any], domain: str) -> dict[str, Any]:
    """Set the Machine's failure domain.

    amazonec2 expects the zone without its region, unless a custom endpoint is set.
    """
    if not domain or driver not in ZONE_FIELD:
        return dict(fields)
    if driver == "amazonec2" and not fields.get("endpoint"):
        domain = domain.removeprefix(fields.get("region") or "us-east-1") or domain
    return {**fields, ZONE_FIELD[driver]: domain}


# --- files ----------------------------------------------------------------------------------------------------------


class WithFiles(NamedTuple):
    fields: dict[str, Any]  # file contents are replaced by paths
    files: dict[str, str]  # name → content


def with_files(fields: Mapping[str, Any], aliases: Mapping[str, str]) -> WithFiles:
    """Extract contents that the driver expects as files; `aliases` maps schema fields to driver fields."""
    left, files = dict(fields), {}
    for schema_field, driver_field in aliases.items():
        content = left.get(schema_field)
        if not isinstance(content, str) or not content:
            continue
        name = driver_field
        if schema_field in SSH_KEY_FIELDS:
            name, content = "id_rsa", content if content.endswith("\n") else content + "\n"
        del left[schema_field]
        files[name] = content
        left[driver_field] = f"{FILES_DIRECTORY}/{name}"
    return WithFiles(left, files)


_FETCHED = {"vmwarevsphere": ("boot2dockerUrl", "cloudinit")}
"""By driver: fields whose path or file:// URL would be read on the host of the Job."""

_DOWNLOADED = {"vmwarevsphere": ("boot2dockerUrl",)}
"""By driver: fields whose URL the Job itself downloads. The driver uploads the content to a server of the user, who
would read what only the host can reach, such as the metadata service of its cloud."""


def host_path_field(driver: str, fields: Mapping[str, Any]) -> str:
    """Return the field that would make the driver send a file of the Job's host to a machine; "" if there is none."""
    urls = ("https://", "http://")
    given = ((field, fields.get(field)) for field in _FETCHED.get(driver, ()))
    return next((field for field, value in given if value and not str(value).startswith(urls)), "")


def downloaded(driver: str, fields: Mapping[str, Any]) -> str:
    """The field that would have the Job download something for a machine."""
    return next((field for field in _DOWNLOADED.get(driver, ()) if fields.get(field)), "")


def option_of_ssh(fields: Mapping[str, Any]) -> str:
    """The field that ssh would take for an option: `rancher-machine` passes it on as `<user>@<host>`."""
    return next((field for field in ("sshUser",) if str(fields.get(field) or "").startswith("-")), "")


_NAMES_FILE = re.compile(r"(path|file|dir|directory|user-?data|custom-?data|cloud-?(config|init))$", re.IGNORECASE)
_LOCAL = ("/", "~", "./", "../", "file:")


def host_file_field(fields: Mapping[str, Any], contents: Container[str]) -> str:
    """Return the same for a downloaded driver, of whose flags only names are known: a field named like a file that
    holds a path.

    `contents` are fields that hold file contents.
    """
    named = ((field, value) for field, value in fields.items() if _NAMES_FILE.search(field) and field not in contents)
    return next((field for field, value in named if str(value).startswith(_LOCAL)), "")


def spec_fields(infra: Object) -> dict[str, Any]:
    """Return the fields of the spec that are passed to the driver."""
    return {field: value for field, value in (infra.get("spec") or {}).items() if field not in _NOT_FLAGS}
