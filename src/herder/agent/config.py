"""Configuration and connection files of the agent, which must be readable only by its user."""

import json
import os
import stat
from typing import Any, Dict, NamedTuple

from herder.agent import yaml

DEFAULT_PATH = "/etc/rancher/agent/config.yaml"
_BASE = "/var/lib/rancher/agent"


class ConfigError(Exception):
    """The configuration is invalid; the message names the file, the field and what to do."""


class Config(NamedTuple):
    work_directory: str
    state_directory: str  # of the agent itself; next to the work directory unless `stateDirectory` is set
    applied_plan_directory: str
    local_enabled: bool
    local_plan_directory: str
    remote_enabled: bool
    connection_info_file: str
    preserve_work_directory: bool
    images_directory: str
    registries_file: str
    credential_provider_config: str
    credential_provider_directory: str
    interlock_directory: str


class Connection(NamedTuple):
    kubeconfig: str
    namespace: str
    secret_name: str


def load(path: str) -> Config:
    values = _Values(path)
    work = values.text("workDirectory", _BASE + "/work")
    config = Config(
        work_directory=work,
        state_directory=values.text("stateDirectory", os.path.join(os.path.dirname(work.rstrip("/")), "herder-agent")),
        applied_plan_directory=values.text("appliedPlanDirectory", ""),
        local_enabled=values.flag("localEnabled"),
        local_plan_directory=values.text("localPlanDirectory", _BASE + "/plans"),
        remote_enabled=values.flag("remoteEnabled"),
        connection_info_file=values.text("connectionInfoFile", ""),
        preserve_work_directory=values.flag("preserveWorkDirectory"),
        images_directory=values.text("imagesDirectory", _BASE + "/images"),
        registries_file=values.text("agentRegistriesFile", "/etc/rancher/agent/registries.yaml"),
        credential_provider_config=values.text(
            "imageCredentialProviderConfig", "/var/lib/rancher/credentialprovider/config.yaml"
        ),
        credential_provider_directory=values.text(
            "imageCredentialProviderBinDirectory", "/var/lib/rancher/credentialprovider/bin"
        ),
        interlock_directory=values.text("interlockDirectory", ""),
    )
    if not config.local_enabled and not config.remote_enabled:
        raise ConfigError(f"{path}: remoteEnabled and localEnabled are both false; set one of them to true")
    if config.remote_enabled and not config.connection_info_file:
        raise ConfigError(f"{path}: connectionInfoFile is missing; remoteEnabled requires it")
    return config


def load_connection(path: str) -> Connection:
    values = _Values(path)
    connection = Connection(values.text("kubeConfig", ""), values.text("namespace", ""), values.text("secretName", ""))
    for name, value in zip(("kubeConfig", "namespace", "secretName"), connection):
        if not value:
            raise ConfigError(f"{path}: {name} is missing; the manager's install script writes this file")
    return connection


class _Values:
    def __init__(self, path: str) -> None:
        self._path = path
        self._values = _read(path)

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name)
        if value is None or value == "":
            return default
        if not isinstance(value, str):
            raise ConfigError(f"{self._path}: {name} must be a string; quote it")
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{self._path}: {name} must be true or false")
        return bool(value)


def _read(path: str) -> Dict[str, Any]:
    name = os.path.basename(path)
    if ".json" not in name and ".yaml" not in name:
        raise ConfigError(f"{path}: the file name must contain .json or .yaml")
    try:
        with open(path, "rb") as stream:
            _check_private(path, os.fstat(stream.fileno()))
            text = stream.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error
    try:
        value = json.loads(text) if ".json" in name else yaml.load(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values")
    return value


def _check_private(path: str, found: os.stat_result) -> None:
    if os.name == "nt":
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode != 0o600:
        raise ConfigError(f"{path}: has mode {mode:04o} instead of 0600; run: chmod 0600 {path}")
    if (found.st_uid, found.st_gid) != (os.getuid(), os.getgid()):
        owner, caller = f"{found.st_uid}:{found.st_gid}", f"{os.getuid()}:{os.getgid()}"
        raise ConfigError(f"{path}: is owned by {owner} instead of {caller}; run: chown {caller} {path}")
