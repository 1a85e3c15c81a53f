"""Where images come from: told to the node agent, which pulls the installer, and to containerd."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from herder.api.rke.names import AUTH_SECRET_TYPE
from herder.api.rke.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, Reference
from herder.controllers.planner.distributions.kubeadm.places import as_json
from herder.engine.meta.kinds import Object


def registry_configs(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return (spec.get("registries") or {}).get("configs") or {}


def registry_files(cluster: ClusterInputs) -> Iterator[File]:
    """For the agent, which pulls the installer, in its own form; for containerd a directory for each host."""
    registries = cluster.spec.get("registries") or {}
    mirrors, configs = registries.get("mirrors") or {}, registry_configs(cluster.spec)
    told = {"mirrors": mirrors, "configs": {host: _for_agent(cluster, host, each) for host, each in configs.items()}}
    if mirrors or configs:
        yield file("/etc/rancher/agent/registries.yaml", as_json(told), dynamic=True)
    for host, each in configs.items():
        if each.get("caBundle"):
            yield file(_authority_file(host), each["caBundle"], dynamic=True)
    for host in dict.fromkeys((*mirrors, *configs)):
        yield file(
            f"/etc/containerd/certs.d/{_directory(host)}/hosts.toml", _hosts(host, mirrors, configs), dynamic=True
        )


def _for_agent(cluster: ClusterInputs, host: str, config: Mapping[str, Any]) -> Object:
    tls: Object = {"insecure_skip_verify": bool(config.get("insecureSkipVerify"))}
    if config.get("caBundle"):
        tls["ca_file"] = _authority_file(host)
    return {"auth": _login(cluster, config), "tls": tls}


def _login(cluster: ClusterInputs, config: Mapping[str, Any]) -> Object | None:
    name = config.get("authConfigSecretName")
    if not name:
        return None
    secret = cluster.referenced.get(Reference("Secret", cluster.namespace, name))
    if secret is None or secret.type != AUTH_SECRET_TYPE:
        raise ConfigError(
            f"registries.configs: Secret {cluster.namespace}/{name} of type {AUTH_SECRET_TYPE} is not there"
        )
    return {key: secret.data[key].decode() for key in ("username", "password", "auth") if key in secret.data}


def _hosts(host: str, mirrors: Mapping[str, Any], configs: Mapping[str, Any]) -> str:
    """TOML's strings are JSON's, for what is in them here."""
    lines = []
    for endpoint in (mirrors.get(host) or {}).get("endpoint") or [f"https://{host}"]:
        config = configs.get(urlsplit(endpoint).netloc) or {}
        lines += [f"[host.{json.dumps(endpoint)}]", '  capabilities = ["pull", "resolve"]']
        if config.get("caBundle"):
            lines.append(f"  ca = {json.dumps(_authority_file(urlsplit(endpoint).netloc))}")
        if config.get("insecureSkipVerify"):
            lines.append("  skip_verify = true")
    return "\n".join(lines) + "\n"


def _authority_file(host: str) -> str:
    return f"/etc/rancher/agent/registry-{hashlib.sha256(host.encode()).hexdigest()[:12]}-ca.crt"


def _directory(host: str) -> str:
    if "/" in host or host in {"", ".", ".."}:
        raise ConfigError(f"registries: {host!r} is not a registry's host")
    return "_default" if host == "*" else host
