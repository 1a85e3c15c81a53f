"""Registry configuration of kubeadm machines: for the node agent, which pulls the installer, and for containerd."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs
from herder.controllers.planner.distributions.kubeadm.paths import CONFIG_DIR
from herder.controllers.planner.distributions.rancher.registries import registries, with_manager

CONTAINERD = "/etc/containerd/certs.d"


def registry_files(cluster: ClusterInputs) -> Iterator[File]:
    """All files are dynamic: the agent and containerd read them for each pull, so nothing restarts."""
    configuration, files = registries(with_manager(cluster), f"{CONFIG_DIR}/registries")
    for each in files:
        yield msgspec.structs.replace(each, dynamic=True)
    known = json.loads(configuration or "{}")
    mirrors, configs = known.get("mirrors") or {}, known.get("configs") or {}
    for host in dict.fromkeys((*mirrors, *configs)):
        content = _hosts(host, mirrors.get(host) or {}, configs)
        yield file(f"{CONTAINERD}/{_directory(host)}/hosts.toml", content, dynamic=True)


def _hosts(host: str, mirror: Mapping[str, Any], configs: Mapping[str, Any]) -> str:
    """A containerd hosts.toml. JSON strings are valid TOML strings for these values."""
    if mirror.get("rewrite"):
        raise ConfigError(
            f"registries.mirrors[{host}].rewrite: containerd cannot rewrite image names; mirror the images under "
            "their original names"
        )
    lines = []
    for endpoint in mirror.get("endpoint") or [f"https://{host}"]:
        url = _parse_endpoint(f"registries.mirrors[{host}].endpoint", endpoint)
        config = configs.get(url.netloc) or {}
        tls = config.get("tls") or {}
        lines += [f"[host.{json.dumps(endpoint)}]", '  capabilities = ["pull", "resolve"]']
        if url.path not in {"", "/", "/v2"}:
            lines.append("  override_path = true")
        if tls.get("ca_file"):
            lines.append(f"  ca = {json.dumps(tls['ca_file'])}")
        if tls.get("cert_file"):
            lines.append(f"  client = {json.dumps([[tls['cert_file'], tls['key_file']]])}")
        if tls.get("insecure_skip_verify"):
            lines.append("  skip_verify = true")
        if config.get("auth"):
            lines += [
                f"  [host.{json.dumps(endpoint)}.header]",
                f"    Authorization = {_basic(url.netloc, config['auth'])}",
            ]
    return "\n".join(lines) + "\n"


def _basic(host: str, auth: Mapping[str, str]) -> str:
    """Basic authentication. A registry that issues tokens must accept it too: containerd passes the header on."""
    plain = base64.b64encode(f"{auth['username']}:{auth['password']}".encode()).decode() if auth["username"] else ""
    credentials = plain or auth["auth"]
    if not credentials:
        raise ConfigError(
            f"rkeConfig.registries.configs[{host}].authConfigSecretName: containerd needs username and password, or "
            "auth, in the Secret"
        )
    return json.dumps(f"Basic {credentials}")


def _parse_endpoint(field: str, endpoint: str) -> SplitResult:
    try:
        return urlsplit(endpoint)
    except ValueError as error:
        raise ConfigError(f"{field}: {endpoint!r} is no address: {error}") from None


def _directory(host: str) -> str:
    if "/" in host or host in {"", ".", ".."}:
        raise ConfigError(f"registries: {host!r} is not a registry's host")
    return "_default" if host == "*" else host
