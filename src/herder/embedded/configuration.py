"""Configuration of a server or node: YAML files, merged in the order of their names.

The format is that of k3s and RKE2: `config.yaml`, then `config.yaml.d/*.yaml`; a later file replaces a key, and `key+`
appends to a list.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml

CONFIG_DIR = Path("/etc/rancher/herder")
DATA_DIR = Path("/var/lib/rancher/herder")
SECURE_PORT, NODE_PORT = 6443, 10248

_TEXTS = ("token", "agent-token", "server", "node-name", "data-dir", "version", "log-level")
_LISTS = ("node-ip", "node-external-ip", "node-label", "node-taint", "tls-san")
HIDDEN = "********"
LEVELS = ("debug", "info", "warning", "error")
KEYS = (*_TEXTS, *_LISTS)
_EFFECTS = {"NoSchedule", "PreferNoSchedule", "NoExecute"}


class ConfigurationError(Exception):
    """The configuration is invalid; the message names file, key and problem."""


@dataclass(frozen=True, slots=True)
class Configuration:
    node_name: str
    addresses: tuple[str, ...]  # its own addresses; it serves on the first
    external_addresses: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    taints: tuple[tuple[str, str, str], ...]  # key, value, effect
    names: tuple[str, ...]  # additional SANs of the serving certificate
    server: str  # URL that a node joins; "" on the server itself
    token: str  # join token of this machine
    agent_token: str  # join token for other machines; on a server
    data_dir: Path
    version: str
    log_level: str

    def __repr__(self) -> str:
        return f"Configuration(node_name={self.node_name!r}, server={self.server!r})"

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def arguments(self) -> list[str]:
        """Return all settings as arguments for the Node's annotation, with secrets hidden."""
        reported: list[tuple[str, str]] = [
            ("node-name", self.node_name),
            *(("node-ip", each) for each in self.addresses),
            *(("node-external-ip", each) for each in self.external_addresses),
            *(("node-label", f"{key}={value}") for key, value in self.labels),
            *(("node-taint", f"{key}={value}:{effect}") for key, value, effect in self.taints),
            *(("tls-san", each) for each in self.names),
            ("data-dir", str(self.data_dir)),
            ("server", self.server),
            ("token", HIDDEN if self.token else ""),
            ("agent-token", HIDDEN if self.agent_token else ""),
        ]
        return [word for key, value in reported if value for word in (f"--{key}", value)]


def read(directory: Path, *, version: str = "") -> Configuration:
    merged: dict[str, Any] = {}
    for file in (directory / "config.yaml", *sorted((directory / "config.yaml.d").glob("*.yaml"))):
        if file.exists():
            _merge(merged, _mapping(file), file)
    return _checked(merged, version)


def _mapping(file: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        # the file contains secrets: report only the position of the error
        mark = getattr(problem, "problem_mark", None)
        raise ConfigurationError(f"{file}: not YAML{f', line {mark.line + 1}' if mark else ''}") from None
    if found is not None and not isinstance(found, dict):
        raise ConfigurationError(f"{file}: must be a mapping of keys to values")
    return found or {}


def _merge(into: dict[str, Any], found: Mapping[str, Any], file: Path) -> None:
    for key, value in found.items():
        name = str(key).removesuffix("+")
        if name not in KEYS:
            raise ConfigurationError(f"{file}: {name}: unknown key; the keys are {', '.join(KEYS)}")
        if str(key).endswith("+"):
            into[name] = [*_list(into.get(name)), *_list(value)]
        else:
            into[name] = value


def _checked(reported: Mapping[str, Any], version: str) -> Configuration:
    for key in _TEXTS:
        if not isinstance(reported.get(key, ""), str):
            raise ConfigurationError(f"{key}: must be a string")
    addresses = tuple(_address("node-ip", each) for each in _list(reported.get("node-ip")))
    if not addresses:
        raise ConfigurationError("node-ip is required; set it to the IP address of this machine")
    if not reported.get("token"):
        raise ConfigurationError("token is required; set it to the cluster token")
    return Configuration(
        node_name=reported.get("node-name") or platform.node().lower(),
        addresses=addresses,
        external_addresses=tuple(
            _address("node-external-ip", each) for each in _list(reported.get("node-external-ip"))
        ),
        labels=tuple(_label(each) for each in _list(reported.get("node-label"))),
        taints=tuple(_taint(each) for each in _list(reported.get("node-taint"))),
        names=tuple(str(each) for each in _list(reported.get("tls-san"))),
        server=reported.get("server", ""),
        token=reported["token"],
        agent_token=reported.get("agent-token", ""),
        data_dir=Path(reported.get("data-dir") or DATA_DIR),
        version=reported.get("version") or version,
        log_level=_level(reported.get("log-level") or "info"),
    )


def _level(text: str) -> str:
    if text not in LEVELS:
        raise ConfigurationError(f"log-level: unknown level {text!r}; use {', '.join(LEVELS)}")
    return text


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _address(key: str, text: Any) -> str:
    try:
        return str(ip_address(str(text)))
    except ValueError:
        raise ConfigurationError(f"{key}: {text!r} is not an IP address") from None


def _label(text: Any) -> tuple[str, str]:
    key, equals, value = str(text).partition("=")
    if not key or not equals:
        raise ConfigurationError(f"node-label: {text!r} must be key=value")
    return key, value


def _taint(text: Any) -> tuple[str, str, str]:
    words, _, effect = str(text).rpartition(":")
    key, _, value = words.partition("=")
    if not key or effect not in _EFFECTS:
        raise ConfigurationError(f"node-taint: {text!r} must be key[=value]:Effect, Effect of {', '.join(_EFFECTS)}")
    return key, value, effect
