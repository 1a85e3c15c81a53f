"""Render registries.yaml, which both the node agent and the distribution read, and its certificates."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import AUTH_SECRET_TYPE
from herder.api.rke.node.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, Reference, Referenced
from herder.controllers.planner.distributions.rancher.runtime import AGENT_REGISTRIES
from herder.controllers.planner.distributions.rancher.text import as_text, compact

_BASIC, _DOCKER, _TLS = "kubernetes.io/basic-auth", "kubernetes.io/dockerconfigjson", "kubernetes.io/tls"


def registries(cluster: ClusterInputs, directory: str) -> tuple[str, list[File]]:
    """Content of registries.yaml, empty if nothing is configured, and the files that it needs.

    Certificates are placed in `directory`.
    """
    wanted = cluster.spec.get("registries")
    if wanted is None and not cluster.default_registry:
        return "", []
    wanted = wanted or {}
    certificates: list[File] = []
    configs = {
        host: _config(host, config or {}, cluster, directory, certificates)
        for host, config in sorted((wanted.get("configs") or {}).items())
    }
    mirrors = {host: _mirror(mirror or {}) for host, mirror in sorted((wanted.get("mirrors") or {}).items())}
    content = compact({"configs": configs, "mirrors": mirrors})
    own = file(AGENT_REGISTRIES, content, dynamic=True)
    return content, [own, *sorted(certificates, key=lambda each: each.path)]


def with_manager(cluster: ClusterInputs) -> ClusterInputs:
    """Add the manager, which may serve installer images, as a registry with its private CA."""
    if not cluster.manager or not cluster.server_certificates:
        return cluster
    wanted: Mapping[str, Any] = cluster.spec.get("registries") or {}
    manager = {"caBundle": base64.b64encode(cluster.server_certificates.encode()).decode()}
    # The scheme is explicit because agents use plain HTTP for registries with a private address.
    mirrors = {cluster.manager: {"endpoint": [f"https://{cluster.manager}"]}, **(wanted.get("mirrors") or {})}
    configs = {cluster.manager: manager, **(wanted.get("configs") or {})}
    return replace(cluster, spec={**cluster.spec, "registries": {"mirrors": mirrors, "configs": configs}})


def references(spec: Mapping[str, Any], namespace: str) -> list[Reference]:
    configs = ((spec.get("registries") or {}).get("configs") or {}).values()
    fields = ("authConfigSecretName", "tlsSecretName")
    named = [config[field] for config in configs if config for field in fields if config.get(field)]
    return [Reference("Secret", namespace, name) for name in named]


def _mirror(mirror: Mapping[str, Any]) -> dict[str, Any]:
    rewrites = dict(sorted((mirror.get("rewrite") or {}).items()))
    return {name: value for name, value in (("endpoint", mirror.get("endpoint")), ("rewrite", rewrites)) if value}


def _config(
    host: str, config: Mapping[str, Any], cluster: ClusterInputs, directory: str, certificates: list[File]
) -> dict[str, Any]:
    tls = _tls(host, config, cluster, directory, certificates)
    name = config.get("authConfigSecretName")
    auth = _auth(host, _secret(cluster, host, "authConfigSecretName", name)) if name else None
    return {"auth": auth, "tls": tls}


def _tls(
    host: str, config: Mapping[str, Any], cluster: ClusterInputs, directory: str, certificates: list[File]
) -> dict[str, Any] | None:
    insecure, name = bool(config.get("insecureSkipVerify")), config.get("tlsSecretName")
    bundle = _bundle(host, config.get("caBundle") or "")
    if not (insecure or name or bundle):
        return None
    contents = {"ca_file": ("ca.crt", bundle), "cert_file": ("tls.crt", b""), "key_file": ("tls.key", b"")}
    if name:
        secret = _secret(cluster, host, "tlsSecretName", name)
        if secret.type != _TLS:
            raise ConfigError(
                f"rkeConfig.registries.configs[{host}].tlsSecretName: Secret {name} must be of type {_TLS}"
            )
        contents["cert_file"] = ("tls.crt", secret.data.get("tls.crt", b""))
        contents["key_file"] = ("tls.key", secret.data.get("tls.key", b""))
    paths = dict.fromkeys(contents, "")
    for part, (leaf, content) in contents.items():
        if content:
            paths[part] = f"{directory}/{host}/{leaf}"
            certificates.append(file(paths[part], content))
    return {**paths, "insecure_skip_verify": insecure}


def _bundle(host: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ConfigError(
            f"rkeConfig.registries.configs[{host}].caBundle: must be certificates in PEM, in base64"
        ) from None


def _auth(host: str, secret: Referenced) -> dict[str, str]:
    field = f"rkeConfig.registries.configs[{host}].authConfigSecretName"
    data = {key: as_text(value, field) for key, value in secret.data.items()}
    if secret.type == _DOCKER:
        data = _from_docker(host, data.get(".dockerconfigjson", ""))
    elif secret.type not in (AUTH_SECRET_TYPE, _BASIC):
        raise ConfigError(f"{field}: the Secret must be of type {AUTH_SECRET_TYPE}, {_BASIC} or {_DOCKER}")
    return {
        "username": data.get("username", ""),
        "password": data.get("password", ""),
        "auth": base64.b64encode(data.get("auth", "").encode()).decode(),
        "identity_token": data.get("identityToken", ""),
    }


def _from_docker(host: str, config: str) -> dict[str, str]:
    try:
        known: Any = msgspec.json.decode(config or "{}")
        entry = (known.get("auths") or {}).get(host) or {}
        return {**entry, "auth": base64.b64decode(entry.get("auth") or "").decode()}
    except (ValueError, AttributeError):
        raise ConfigError(
            f"rkeConfig.registries.configs[{host}].authConfigSecretName: .dockerconfigjson cannot be parsed"
        ) from None


def _secret(cluster: ClusterInputs, host: str, field: str, name: str) -> Referenced:
    found = cluster.referenced.get(Reference("Secret", cluster.namespace, name))
    if found is None:
        raise ConfigError(f"rkeConfig.registries.configs[{host}].{field}: Secret {name} does not exist")
    return found
