"""From the fields of a machine's spec to the words by which the machine CLI is called, upstream's byte for byte."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from herder.api.machines.known import SSH_KEY_FIELDS, ZONE_FIELD, flag_name
from herder.engine.meta.kinds import Object

BOOTSTRAP_DIRECTORY = "/run/secrets/machine"
FILES_DIRECTORY = "/path/to/machine/files"

_NOT_FLAGS = frozenset({"common", "providerID"})

CLUSTER_TAG = "kubernetes.io/cluster/"
OWN_SECURITY_GROUP = "rancher-nodes"


class Download(NamedTuple):
    """Where a driver that is not built in comes from; both empty for one that is."""

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
    """Sorted; `cluster` is the name by which the provider's resources are marked as the cluster's."""
    wanted = dict(fields)
    if driver == "amazonec2":
        wanted = _tagged(wanted, cluster)
    if driver == "harvester":
        wanted["clusterName"] = cluster
    flags = [word for field, value in wanted.items() if field not in _NOT_FLAGS for word in _flag(driver, field, value)]
    if driver == "amazonec2" and _has_security_group_of_others(wanted):
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
    """AWS finds a cluster's resources by this tag; whoever sets one of the kind knows better."""
    tags = fields.get("tags") or ""
    if CLUSTER_TAG in tags:
        return fields
    own = f"{CLUSTER_TAG}{cluster},owned"
    return {**fields, "tags": f"{tags},{own}" if tags else own}


def _has_security_group_of_others(fields: Mapping[str, Any]) -> bool:
    """The rules of a group that a user names are the user's, unless the user says otherwise."""
    groups = fields.get("securityGroup")
    first = groups[0] if isinstance(groups, list) and groups else groups
    return bool(first) and first != OWN_SECURITY_GROUP and fields.get("securityGroupReadonly") is None


# --- where the machine is put ---------------------------------------------------------------------------------------


def in_zone(driver: str, fields: Mapping[str, Any], domain: str) -> dict[str, Any]:
    """With the failure domain that the Machine asks for; amazonec2 wants the zone without its region, except where an
    endpoint of one's own is asked."""
    if not domain or driver not in ZONE_FIELD:
        return dict(fields)
    if driver == "amazonec2" and not fields.get("endpoint"):
        domain = domain.removeprefix(fields.get("region") or "us-east-1") or domain
    return {**fields, ZONE_FIELD[driver]: domain}


# --- files ----------------------------------------------------------------------------------------------------------


class WithFiles(NamedTuple):
    fields: dict[str, Any]  # what was content is the path of a file now
    files: dict[str, str]  # name → content


def with_files(fields: Mapping[str, Any], aliases: Mapping[str, str]) -> WithFiles:
    """Contents that the driver wants as files; `aliases` are field of the schema → field of the driver."""
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
"""By driver: fields of which a path, or a file:// URL, would be read where the Job runs."""


def path_of_the_host(driver: str, fields: Mapping[str, Any]) -> str:
    """The field that would have the driver hand a file of the Job's own container, and of its host, to a machine."""
    urls = ("https://", "http://")
    given = ((field, fields.get(field)) for field in _FETCHED.get(driver, ()))
    return next((field for field, value in given if value and not str(value).startswith(urls)), "")


_NAMES_FILE = re.compile(r"(path|file|dir|directory|user-?data|custom-?data|cloud-?(config|init))$", re.IGNORECASE)
_LOCAL = ("/", "~", "./", "../", "file:")


def file_of_the_host(fields: Mapping[str, Any], contents: Container[str]) -> str:
    """The same for a driver that is downloaded, of whose flags only the names are known: a field that is named like a
    file and holds a path. `contents` are fields that hold the content of a file."""
    named = ((field, value) for field, value in fields.items() if _NAMES_FILE.search(field) and field not in contents)
    return next((field for field, value in named if str(value).startswith(_LOCAL)), "")


def spec_fields(infra: Object) -> dict[str, Any]:
    """What the spec says to the driver."""
    return {field: value for field, value in (infra.get("spec") or {}).items() if field not in _NOT_FLAGS}
