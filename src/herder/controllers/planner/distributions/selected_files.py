"""machineSelectorFiles: files from Secrets and ConfigMaps for the machines that a selector matches."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import AUTHORIZED_CLUSTERS
from herder.api.rke.node.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Reference, Referenced
from herder.controllers.planner.distributions.selector_config import selector

_PERMISSIONS = re.compile(r"[0-7]{1,5}")
_ON_WINDOWS = re.compile(r"[A-Za-z]:[\\/]")
_SOURCES = (("secret", "Secret"), ("configMap", "ConfigMap"))


def references(spec: Mapping[str, Any], namespace: str) -> list[Reference]:
    return [
        Reference(kind, namespace, source[part]["name"])
        for entry in spec.get("machineSelectorFiles") or ()
        for source in entry.get("fileSources") or ()
        for part, kind in _SOURCES
        if (source.get(part) or {}).get("name")
    ]


def selected_files(cluster: ClusterInputs, machine: MachineInputs) -> Iterator[File]:
    for index, entry in enumerate(cluster.spec.get("machineSelectorFiles") or ()):
        label_selector = selector(f"machineSelectorFiles[{index}]", entry)
        if label_selector is not None and not label_selector.matches(machine.labels):
            continue
        for number, source in enumerate(entry.get("fileSources") or ()):
            field = f"rkeConfig.machineSelectorFiles[{index}].fileSources[{number}]"
            for each in _from_source(cluster, source, field):
                _check(each, machine, field)
                yield each


def _check(wanted: File, machine: MachineInputs, field: str) -> None:
    """Reject paths and permissions that the node agent cannot apply."""
    if not (wanted.path.startswith("/") or (machine.windows and _ON_WINDOWS.match(wanted.path))):
        raise ConfigError(f'{field}: path "{wanted.path}" must be absolute')
    if wanted.permissions and not _PERMISSIONS.fullmatch(wanted.permissions):
        raise ConfigError(f'{field}: permissions "{wanted.permissions}" must be octal digits such as 0644')


def _from_source(cluster: ClusterInputs, source: Mapping[str, Any], field: str) -> Iterator[File]:
    named = [(part, kind, source[part]) for part, kind in _SOURCES if (source.get(part) or {}).get("name")]
    if len(named) > 1:
        raise ConfigError(f"{field}: names a Secret and a ConfigMap; use two entries")
    for part, kind, given in named:
        reference = Reference(kind, cluster.namespace, given["name"])
        found = _authorized(cluster, reference, f"{field}.{part}.name")
        for item in given.get("items") or ():
            yield _file(item, found, given.get("defaultPermissions") or "", f"{field}.{part}.items", reference)


def _authorized(cluster: ClusterInputs, reference: Reference, field: str) -> Referenced:
    found = cluster.referenced.get(reference)
    if found is None:
        raise ConfigError(f"{field}: {reference} does not exist")
    allowed = [name.strip() for name in found.annotations.get(AUTHORIZED_CLUSTERS, "").split(",")]
    if cluster.name not in allowed:
        raise ConfigError(
            f"{field}: {reference} is not for this cluster: its annotation {AUTHORIZED_CLUSTERS} must name "
            f"{cluster.name}"
        )
    return found


def _file(item: Mapping[str, Any], found: Referenced, permissions: str, field: str, reference: Reference) -> File:
    key = str(item.get("key", ""))
    if key not in found.data:
        raise ConfigError(f"{field}: {reference} has no key {key}")
    content = found.data[key]
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    if item.get("hash") and item["hash"] != digest:
        # Members of the cluster read this in conditions: by the hash, they could guess short contents.
        raise ConfigError(f"{field}: {reference} does not contain the expected content under {key}: correct the hash")
    dynamic = bool(item.get("dynamic"))
    return file(str(item.get("path", "")), content, permissions=item.get("permissions") or permissions, dynamic=dynamic)
