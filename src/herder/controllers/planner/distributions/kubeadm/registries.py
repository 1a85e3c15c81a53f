"""Where images come from: told to the node agent, which pulls the installer, and to containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from herder.api.rke.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError
from herder.controllers.planner.distributions.kubeadm.places import HERE
from herder.controllers.planner.distributions.rancher.registries import registries, with_manager

CONTAINERD = "/etc/containerd/certs.d"


def registry_files(cluster: ClusterInputs) -> Iterator[File]:
    """None of them makes anything start again: both look at them each time."""
    configuration, files = registries(with_manager(cluster), f"{HERE}/registries")
    for each in files:
        yield msgspec.structs.replace(each, dynamic=True)
    known = json.loads(configuration or "{}")
    mirrors, configs = known.get("mirrors") or {}, known.get("configs") or {}
    for host in dict.fromkeys((*mirrors, *configs)):
        content = _hosts(host, mirrors.get(host) or {}, configs)
        yield file(f"{CONTAINERD}/{_directory(host)}/hosts.toml", content, dynamic=True)


def _hosts(host: str, mirror: Mapping[str, Any], configs: Mapping[str, Any]) -> str:
    """TOML's strings are JSON's, for what is in them here."""
    if mirror.get("rewrite"):
        raise ConfigError(
            f"registries.mirrors[{host}].rewrite: containerd cannot rewrite the names of images: have them in the "
            "mirror by the names that they are asked for"
        )
    lines = []
    for endpoint in mirror.get("endpoint") or [f"https://{host}"]:
        place = _place(f"registries.mirrors[{host}].endpoint", endpoint)
        tls = (configs.get(place.netloc) or {}).get("tls") or {}
        lines += [f"[host.{json.dumps(endpoint)}]", '  capabilities = ["pull", "resolve"]']
        if place.path not in {"", "/", "/v2"}:
            lines.append("  override_path = true")
        if tls.get("ca_file"):
            lines.append(f"  ca = {json.dumps(tls['ca_file'])}")
        if tls.get("cert_file"):
            lines.append(f"  client = {json.dumps([[tls['cert_file'], tls['key_file']]])}")
        if tls.get("insecure_skip_verify"):
            lines.append("  skip_verify = true")
    return "\n".join(lines) + "\n"


def _place(field: str, endpoint: str) -> SplitResult:
    try:
        return urlsplit(endpoint)
    except ValueError as error:
        raise ConfigError(f"{field}: {endpoint!r} is no address: {error}") from None


def _directory(host: str) -> str:
    if "/" in host or host in {"", ".", ".."}:
        raise ConfigError(f"registries: {host!r} is not a registry's host")
    return "_default" if host == "*" else host
