"""Kubeconfig files: parse them into a connection, and build them."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from herder.engine.meta.kinds import Object
from herder.engine.meta.yaml_limits import TooComplex, check_yaml

_MAX_BYTES, _MAX_EVENTS = 256 << 10, 2_000
"""Limits for a kubeconfig from a user. One with a single cluster has about 50 tokens."""


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used; the message names the field."""


class _UnusableEntry(KubeconfigError):
    """An entry that is missing or incomplete; `unquoted` is the message without its name."""

    def __init__(self, message: str, unquoted: str) -> None:
        super().__init__(message)
        self.unquoted = unquoted


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """Exec credential plugin (client.authentication.k8s.io)."""

    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    api_version: str
    install_hint: str = ""


@dataclass(frozen=True, slots=True)
class RestConfig:
    """Everything needed to reach one API server as one user, as client-go's rest.Config."""

    server: str
    ca: bytes | None = None  # PEM
    client_certificate: bytes | None = None  # PEM
    client_key: bytes | None = None  # PEM
    token: str = ""
    token_file: str = ""
    exec_plugin: ExecPlugin | None = None
    username: str = ""
    password: str = ""
    skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    namespace: str = "default"


def load(path: Path, *, context: str = "") -> RestConfig:
    try:
        text = path.read_text()
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"kubeconfig {path}: not text") from error
    try:
        return parse(text, context=context, base=path.parent)
    except KubeconfigError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error}") from error


def parse(text: str, *, context: str = "", base: Path | None = None) -> RestConfig:
    """Return the connection of a context (default: current-context). Relative file names are relative to `base`."""
    try:
        config = _mapping(text)
    except yaml.YAMLError as error:
        raise KubeconfigError(f"not YAML: {yaml_problem(error)}") from error
    return _connection(config, context, base or Path.cwd())


def yaml_problem(error: yaml.YAMLError) -> str:
    """The error in one line, with its place. PyYAML's own text has several, and quotes the content."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark and problem else "unreadable"


def parse_untrusted(text: str) -> RestConfig:
    """Return the connection of the current context of a kubeconfig that a user provided.

    It must not reference files, commands or proxies, nor disable TLS verification, and the server must use https.
    Errors do not quote its contents.
    """
    try:
        check_yaml(text, max_bytes=_MAX_BYTES, max_events=_MAX_EVENTS)
        config = _mapping(text)
    except TooComplex as limit:
        raise KubeconfigError(f"kubeconfig {limit}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise KubeconfigError(f"not YAML (line {mark.line + 1})" if mark else "not YAML") from None
    except KubeconfigError:
        raise
    except (ValueError, OverflowError, TypeError):
        raise KubeconfigError("not YAML") from None
    for section, what, fields in _UNTRUSTED_FIELDS:
        for entry in _entries(config, section, what):
            for field in fields:
                if entry.get(field):
                    raise KubeconfigError(
                        f"{section}.{what}.{field}: not allowed in this kubeconfig; embed the data instead"
                    )
    try:
        found = _connection(config, "", Path())
    except _UnusableEntry as error:
        raise KubeconfigError(error.unquoted) from None
    _check_server(found.server)
    return found


def _check_server(server: str) -> None:
    """Require https: TLS ensures that only an API server with a trusted certificate is reached."""
    try:
        parts = urlsplit(server)
        usable = parts.scheme == "https" and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise KubeconfigError("clusters.cluster.server: must be an https URL without credentials")


_UNTRUSTED_FIELDS = (
    ("clusters", "cluster", ("certificate-authority", "proxy-url", "insecure-skip-tls-verify")),
    ("users", "user", ("exec", "auth-provider", "tokenFile", "client-certificate", "client-key")),
)


def _entries(config: Object, section: str, what: str) -> list[Object]:
    entries = config.get(section)
    found = [entry.get(what) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [entry for entry in found if isinstance(entry, dict)]


def _mapping(text: str) -> Object:
    config = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    if not isinstance(config, dict):
        raise KubeconfigError("empty, or not a mapping")
    return config


def _connection(config: Object, context: str, base: Path) -> RestConfig:
    context_name = context or config.get("current-context") or ""
    chosen = _named(config, "contexts", str(context_name), "context")
    cluster = _named(config, "clusters", chosen.get("cluster", ""), "cluster")
    user = _named(config, "users", chosen["user"], "user") if chosen.get("user") else {}
    files = _Files(base)
    if not cluster.get("server"):
        message = f'clusters: cluster "{chosen.get("cluster")}" has no server'
        raise _UnusableEntry(message, "clusters: the cluster has no server")
    return RestConfig(
        server=str(cluster["server"]).rstrip("/"),
        ca=files.content(cluster, "certificate-authority"),
        client_certificate=files.content(user, "client-certificate"),
        client_key=files.content(user, "client-key"),
        token=str(user.get("token") or ""),
        token_file=files.path(user["tokenFile"]) if user.get("tokenFile") else "",
        exec_plugin=_exec_plugin(user.get("exec")),
        username=str(user.get("username") or ""),
        password=str(user.get("password") or ""),
        skip_tls_verify=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=str(cluster.get("tls-server-name") or ""),
        proxy_url=_proxy(str(cluster.get("proxy-url") or "")),
        namespace=str(chosen.get("namespace") or "default"),
    )


def in_cluster() -> RestConfig:
    """Return the in-cluster connection of a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    if not host or not port or not (account / "token").exists():
        raise KubeconfigError("not in a pod: KUBERNETES_SERVICE_HOST or the service-account token is missing")
    literal = f"[{host}]" if ":" in host else host
    return RestConfig(
        server=f"https://{literal}:{port}",
        ca=(account / "ca.crt").read_bytes(),
        token_file=str(account / "token"),
        namespace=(account / "namespace").read_text().strip() or "default",
    )


def build(
    *,
    server: str,
    ca: bytes,
    name: str = "herder",
    user: str = "",
    token: str = "",
    certificate: bytes = b"",
    key: bytes = b"",
) -> Object:
    """Build a kubeconfig with one cluster, one user and one context and embedded data. Without a `ca`, system CAs
    are trusted."""
    credentials: Object = {}
    if token:
        credentials["token"] = token
    if certificate:
        credentials["client-certificate-data"] = base64.b64encode(certificate).decode()
        credentials["client-key-data"] = base64.b64encode(key).decode()
    authority = {"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {}
    user, context = (user, f"{user}@{name}") if user else (name, name)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, **authority}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": context, "context": {"cluster": name, "user": user}}],
        "current-context": context,
    }


def _named(config: Object, section: str, name: str, what: str) -> Object:
    entries = config.get(section) or []
    if not isinstance(entries, list):
        raise KubeconfigError(f"{section}: must be a list")
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name:
            found: Any = entry.get(what) or {}
            if not isinstance(found, dict):
                message = f'{section}: {what} "{name}" must be a mapping'
                raise _UnusableEntry(message, f"{section}: the {what} must be a mapping")
            return found
    if not name:
        raise KubeconfigError(f"current-context: no {what} is chosen")
    raise _UnusableEntry(f'{section}: no {what} named "{name}"', f"{section}: the {what} that is referenced is missing")


def _exec_plugin(config: Any) -> ExecPlugin | None:
    if not config:
        return None
    if not isinstance(config, dict) or not config.get("command"):
        raise KubeconfigError("users.user.exec.command: required")
    try:
        return ExecPlugin(
            command=str(config["command"]),
            arguments=tuple(str(argument) for argument in config.get("args") or ()),
            environment=tuple((str(e["name"]), str(e["value"])) for e in config.get("env") or ()),
            api_version=str(config.get("apiVersion") or "client.authentication.k8s.io/v1"),
            install_hint=str(config.get("installHint") or ""),
        )
    except (KeyError, TypeError) as error:
        raise KubeconfigError("users.user.exec: args and env must be lists, env of names and values") from error


def _proxy(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        scheme = url.partition("://")[0] if "://" in url else "no scheme"  # the rest may contain a password
        raise KubeconfigError(f"clusters.cluster.proxy-url: {scheme}: only http and https proxies are supported")
    return url


class _Files:
    """Reads values that are embedded (`X-data`, base64) or in a referenced file (`X`)."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def path(self, name: str) -> str:
        return str(self.base / name)

    def content(self, section: Object, field: str) -> bytes | None:
        if section.get(f"{field}-data"):
            try:
                return base64.b64decode(section[f"{field}-data"], validate=True)
            except (ValueError, TypeError) as error:
                raise KubeconfigError(f"{field}-data: not base64") from error
        if section.get(field):
            try:
                return Path(self.base / str(section[field])).read_bytes()
            except OSError as error:
                raise KubeconfigError(f"{field}: {section[field]}: {error.strerror}") from error
        return None
