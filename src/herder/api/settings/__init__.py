"""Settings: their definitions, defaults and precedence.

Precedence, highest first: command-line flags, environment (`CATTLE_<NAME>`), `Setting` objects, the configuration file,
defaults. Settings that may change at run time are read with `Settings.get` on each use, so an edited `Setting` object
takes effect at the next use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from herder.api.settings.definitions import (
    AGENT_IMAGE,
    AGENT_TLS_MODE,
    ARCHIVE_RETENTION,
    DEFAULT_REGISTRY,
    DEFINITIONS,
    DELETE_FAILED_MACHINES_AFTER,
    IMAGE_ARCHIVES,
    INSTALLER_IMAGE,
    INTERNAL_SERVER_CERTIFICATES,
    INTERNAL_SERVER_URL,
    JOB_ENVIRONMENT,
    KUBECONFIG_DEFAULT_TTL,
    KUBECONFIG_GENERATE_TOKEN,
    KUBECONFIG_MAX_TTL,
    LOCAL_CLUSTER_ADDRESSES,
    MACHINE_IMAGE,
    MACHINE_IMAGE_PULL_POLICY,
    MACHINE_TAINT_PROPAGATION,
    MIN_GRACE_MINUTES,
    MIN_TTL_MINUTES,
    NODE_AGENT_VERSION,
    NODE_ASSETS,
    NODE_TOKEN_UNUSED_TTL,
    NODE_TOKEN_USED_TTL,
    NODE_TOKENS_EXPIRE,
    RANCHER_MACHINE_IMAGE,
    RANCHER_MACHINE_PATH,
    REGISTRATION_GRACE,
    REGISTRATION_TTL,
    RKE2_PRIME_DEFAULT,
    SERVED_NODE_AGENT,
    SERVER_CERTIFICATES,
    SERVER_URL,
    SERVER_VERSION,
    SESSION_IDLE_TTL,
    SESSION_TTL,
    SYNC_MACHINE_ANNOTATIONS,
    SYNC_MACHINE_LABELS,
    TOKEN_DEFAULT_TTL,
    TOKEN_MAX_TTL,
    TRUSTED_PROXIES,
)
from herder.api.settings.values import parse_duration, split_networks, split_patterns
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Kind, Object

__all__ = [
    "AGENT_IMAGE",
    "AGENT_TLS_MODE",
    "ARCHIVE_RETENTION",
    "DEFAULT_REGISTRY",
    "DEFINITIONS",
    "DELETE_FAILED_MACHINES_AFTER",
    "IMAGE_ARCHIVES",
    "INSTALLER_IMAGE",
    "INTERNAL_SERVER_CERTIFICATES",
    "INTERNAL_SERVER_URL",
    "JOB_ENVIRONMENT",
    "KUBECONFIG_DEFAULT_TTL",
    "KUBECONFIG_GENERATE_TOKEN",
    "KUBECONFIG_MAX_TTL",
    "LOCAL_CLUSTER_ADDRESSES",
    "MACHINE_IMAGE",
    "MACHINE_IMAGE_PULL_POLICY",
    "MACHINE_TAINT_PROPAGATION",
    "MIN_GRACE_MINUTES",
    "MIN_TTL_MINUTES",
    "NODE_AGENT_VERSION",
    "NODE_ASSETS",
    "NODE_TOKENS_EXPIRE",
    "NODE_TOKEN_UNUSED_TTL",
    "NODE_TOKEN_USED_TTL",
    "RANCHER_MACHINE_IMAGE",
    "RANCHER_MACHINE_PATH",
    "REGISTRATION_GRACE",
    "REGISTRATION_TTL",
    "RKE2_PRIME_DEFAULT",
    "SERVED_NODE_AGENT",
    "SERVER_CERTIFICATES",
    "SERVER_URL",
    "SERVER_VERSION",
    "SESSION_IDLE_TTL",
    "SESSION_TTL",
    "SETTING",
    "SYNC_MACHINE_ANNOTATIONS",
    "SYNC_MACHINE_LABELS",
    "TOKEN_DEFAULT_TTL",
    "TOKEN_MAX_TTL",
    "TRUSTED_PROXIES",
    "Settings",
    "internal_address",
    "parse_duration",
    "setting_objects",
    "split_networks",
    "split_patterns",
    "validate_value",
]

SETTING = Kind("management.cattle.io", "v3", "Setting", "settings", namespaced=False)


def internal_address(setting: Callable[[str], str]) -> tuple[str, str]:
    """Return the URL and CA certificates under which clients on this host or in this cluster reach the manager."""
    url = setting(INTERNAL_SERVER_URL) or setting(SERVER_URL)
    certificates = setting(INTERNAL_SERVER_CERTIFICATES) or setting(SERVER_CERTIFICATES)
    return url.rstrip("/"), certificates.strip()


@dataclass
class Settings:
    """The layers of configuration; see the module docstring for their precedence.

    `objects` looks up a `Setting` object by name on every read, so it can be backed by a watch. `detected` are defaults
    that the process finds out at startup.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    objects: Callable[[str], Object | None] = lambda _name: None
    file: Mapping[str, str] = field(default_factory=dict)
    detected: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str:
        return self.look(name)[0]

    def problems(self) -> list[str]:
        """Return what is wrong in the layers that cannot change at run time, each problem with its source."""
        problems = []
        layers: list[tuple[str, Mapping[str, str]]] = [("flag", self.flags), ("file", self.file)]
        for source, layer in layers:
            problems += [f'{source}: no setting named "{name}"' for name in layer if name not in DEFINITIONS]
        layers.append(("environment", {d.name: self.environment.get(d.environment, "") for d in DEFINITIONS.values()}))
        for source, layer in layers:
            for name, value in layer.items():
                problems += [f"{source}: {name}: {error}" for error in validate_value(name, value)]
        return problems

    def look(self, name: str) -> tuple[str, str]:
        """Return the value and the layer it comes from: flag, env, object, file or default."""
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise KeyError(f'no setting named "{name}"')
        if definition.is_fixed:
            return self.detected.get(name, definition.default), "default"
        if name in self.flags:
            return self.flags[name], "flag"
        if self.environment.get(definition.environment):
            return self.environment[definition.environment], "env"
        stored = (self.objects(name) or {}).get("value")
        if stored and not validate_value(name, stored):
            return stored, "object"
        if name in self.file:
            return self.file[name], "file"
        return self.detected.get(name, definition.default), "default"


def validate_value(name: str, value: object) -> list[FieldError]:
    """Validate a setting's value. Unknown settings may hold anything, because other programs store theirs here."""
    definition = DEFINITIONS.get(name)
    if not isinstance(value, str):
        return [invalid_value("value", value, "must be a string")]
    if definition is None or definition.check is None or not value:
        return []
    problem = definition.check(value)
    return [invalid_value("value", value, problem)] if problem else []


def setting_objects(settings: Settings) -> list[Object]:
    """Build the `Setting` object of each definition, applied at startup so that users can list all settings.

    `value` belongs to the user, except when the environment sets it: then it shows that value, because other programs
    read it there, and it is removed once the environment variable is. `source` names the layer that overrides the
    object.
    """
    objects = []
    for definition in DEFINITIONS.values():
        value, source = settings.look(definition.name)
        obj: Object = {
            "apiVersion": SETTING.api_version,
            "kind": SETTING.kind,
            "metadata": {"name": definition.name},
            "default": settings.detected.get(definition.name, definition.default),
            "source": source if source in {"flag", "env"} else "",
            **({"value": value} if source == "env" else {}),
        }
        objects.append(obj)
    return objects
