"""clusterctl's provider inventory; with it, clusterctl works here without `clusterctl init`."""

from __future__ import annotations

import re

from herder import __version__
from herder.api.capi.crds.definition import AGE, column, definition
from herder.api.capi.crds.labels import CLUSTERCTL
from herder.api.capi.crds.schema import string
from herder.api.capi.names import PROVIDER
from herder.engine.meta.kinds import Kind, Object

NAMESPACE = "herder-system"
PROVIDERS = Kind(CLUSTERCTL, "v1alpha3", "Provider", "providers")
CORE_PROVIDER = "CoreProvider"
CLUSTER_API_VERSION = "v1.13.4"
"""The Cluster API release that the built-in core implements; clusterctl compares versions before it moves clusters."""

PART_OF, US = "app.kubernetes.io/part-of", "herder"
INSIDE = "cluster.herder.io/inside-api-server"
"""Annotation: this core runs in the process of the embedded API server."""
_INVENTORY = {f"{CLUSTERCTL}/core": "inventory"}

PROVIDER_CRD = definition(
    PROVIDERS,
    "A provider installed on this cluster.",
    schema={
        "providerName": string(),
        "type": string("CoreProvider, BootstrapProvider, ControlPlaneProvider or InfrastructureProvider."),
        "version": string(),
        "watchedNamespace": string("Namespace that the provider watches; all if empty."),
    },
    labels=_INVENTORY,
    columns=[
        AGE,
        column("Type", ".type"),
        column("Provider", ".providerName"),
        column("Version", ".version"),
    ],
)


def is_ours(obj: Object) -> bool:
    """Whether Herder wrote the object to record one of its own components."""
    return bool((obj["metadata"].get("labels") or {}).get(PART_OF) == US)


def core_provider(*, inside: bool = False) -> Object:
    """Return the core provider's inventory entry; it exists only while the built-in core runs.

    clusterctl installs no second core if it finds one.
    """
    provider = _provider("cluster-api", "cluster-api", CORE_PROVIDER, CLUSTER_API_VERSION)
    return {**provider, "metadata": {**provider["metadata"], "annotations": {INSIDE: "true"} if inside else {}}}


def in_memory_providers() -> tuple[Object, ...]:
    version = own_version()
    return (
        _provider("infrastructure-inmemory", "inmemory", "InfrastructureProvider", version),
        _provider("bootstrap-inmemory", "inmemory", "BootstrapProvider", version),
        _provider("control-plane-inmemory", "inmemory", "ControlPlaneProvider", version),
    )


def own_version(version: str = __version__) -> str:
    """Return Herder's version in clusterctl's format: `v` and three numbers."""
    numbers = re.match(r"\d+\.\d+\.\d+", version)
    if numbers is None:
        raise ValueError(f"version {version!r} must begin with three numbers")
    return f"v{numbers.group()}"


def _provider(name: str, provider: str, type_: str, version: str) -> Object:
    return {
        "apiVersion": PROVIDERS.api_version,
        "kind": PROVIDERS.kind,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {PROVIDER: name, CLUSTERCTL: "", **_INVENTORY, PART_OF: US},
        },
        "providerName": provider,
        "type": type_,
        "version": version,
        "watchedNamespace": "",
    }
