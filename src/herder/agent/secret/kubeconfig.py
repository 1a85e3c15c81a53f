"""Parse the server and credentials of a kubeconfig."""

import base64
import binascii
from typing import Any, Dict, List, NamedTuple

from herder.agent import yaml


class KubeconfigError(Exception):
    """The kubeconfig is invalid; the message names the field."""


class Access(NamedTuple):
    server: str
    tls_name: str
    ca: bytes  # PEM; empty: the system's CAs
    insecure: bool
    token: str
    username: str
    password: str
    client_cert: bytes  # PEM
    client_key: bytes
    proxy: str  # empty: from the environment


def parse(text: str) -> Access:
    try:
        config = yaml.load(text)
    except ValueError as error:
        raise KubeconfigError(f"kubeconfig: {error}") from error
    if not isinstance(config, dict):
        raise KubeconfigError("kubeconfig: must be a mapping of keys to values")
    context = _named(config, "contexts", "context", str(config.get("current-context") or ""))
    cluster = _named(config, "clusters", "cluster", str(context.get("cluster") or ""))
    user = _named(config, "users", "user", str(context.get("user") or ""))
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith("https://"):
        raise KubeconfigError(
            "kubeconfig: clusters[].cluster.server must be an https URL; the agent sends credentials only over TLS"
        )
    for unsupported in ("exec", "auth-provider"):
        if unsupported in user:
            raise KubeconfigError(
                f"kubeconfig: users[].user.{unsupported} is not supported; use a token or certificate"
            )
    token = str(user.get("token") or "")
    if not token and user.get("tokenFile"):
        token = _file(str(user["tokenFile"])).decode().strip()
    return Access(
        server=server.rstrip("/"),
        tls_name=str(cluster.get("tls-server-name") or ""),
        ca=_data_or_file(cluster, "certificate-authority"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        token=token,
        username=str(user.get("username") or ""),
        password=str(user.get("password") or ""),
        client_cert=_data_or_file(user, "client-certificate"),
        client_key=_data_or_file(user, "client-key"),
        proxy=str(cluster.get("proxy-url") or ""),
    )


def _named(config: Dict[str, Any], plural: str, singular: str, name: str) -> Dict[str, Any]:
    """Find an entry by name; a single entry needs none."""
    entries: List[Any] = config.get(plural) or []
    for entry in entries:
        if isinstance(entry, dict) and (entry.get("name") == name or (not name and len(entries) == 1)):
            found = entry.get(singular) or {}
            if isinstance(found, dict):
                return found
    if plural == "users" and not name:
        return {}
    raise KubeconfigError(f"kubeconfig: {plural} has no entry named {name!r}")


def _data_or_file(values: Dict[str, Any], name: str) -> bytes:
    data = values.get(name + "-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error as error:
            raise KubeconfigError(f"kubeconfig: {name}-data is not base64") from error
    return _file(str(values[name])) if values.get(name) else b""


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise KubeconfigError(f"kubeconfig: {error}") from error
