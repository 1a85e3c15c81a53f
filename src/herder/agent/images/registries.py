"""registries.yaml: mirrors, rewrites, credentials and TLS of registries."""

import base64
import binascii
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import SplitResult, urlsplit

from herder.agent import yaml
from herder.agent.images.reference import DEFAULT_REGISTRY, ImageError, Reference

FALLBACKS = ("/etc/rancher/rke2/registries.yaml", "/etc/rancher/k3s/registries.yaml")


class Credentials(NamedTuple):
    username: str = ""
    password: str = ""
    identity_token: str = ""


class Tls(NamedTuple):
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False


class Endpoint(NamedTuple):
    """A registry endpoint, and the repository's name there."""

    url: str  # including /v2
    repository: str
    credentials: Credentials
    tls: Tls


class Registries:
    def __init__(self, content: Dict[str, Any], path: str = "registries.yaml") -> None:
        self._path = path
        self._mirrors = self._section(content, "mirrors")
        self._configs = self._section(content, "configs")

    def endpoints(self, image: Reference) -> List[Endpoint]:
        """Return the endpoints: mirrors in order, with rewritten names, then the registry itself."""
        found = []
        mirror = self._mirror(image.registry)
        for address in mirror.get("endpoint") or []:
            found.append(self._endpoint(str(address), self._rewritten(image.repository, mirror)))
        found.append(self._endpoint(image.registry, image.repository))
        return found

    def _section(self, content: Dict[str, Any], name: str) -> Dict[str, Dict[str, Any]]:
        section = content.get(name)
        if section is None:
            return {}
        if not isinstance(section, dict):
            raise ImageError(f"{self._path}: {name} must have registries as keys")
        for key, value in section.items():
            if value is not None and not isinstance(value, dict):
                raise ImageError(f"{self._path}: {name}.{key} must have keys and values")
        return {key: value or {} for key, value in section.items()}

    def _mirror(self, registry: str) -> Dict[str, Any]:
        keys = [registry]
        if registry == DEFAULT_REGISTRY:
            keys.append("docker.io")
        elif ":" not in registry:
            keys += [registry + ":443", registry + ":80"]
        return _first(self._mirrors, [*keys, "*"]) or {}

    def _rewritten(self, repository: str, mirror: Dict[str, Any]) -> str:
        """Apply the first pattern that changes the name; `$1` refers to a group, as in Go."""
        for pattern, replacement in (mirror.get("rewrite") or {}).items():
            try:
                new = re.sub(pattern, _python_groups(str(replacement)), repository)
            except re.error as error:
                raise ImageError(f"{self._path}: the rewrite {pattern!r} is no regular expression: {error}") from error
            if new != repository:
                return new
        return repository

    def _endpoint(self, address: str, repository: str) -> Endpoint:
        target = _normal(address)
        host = target.netloc
        config = _first(self._configs, [host, *(["docker.io"] if host == DEFAULT_REGISTRY else []), "*"]) or {}
        auth, tls = config.get("auth"), config.get("tls")
        return Endpoint(
            url=f"{target.scheme}://{host}{target.path}",
            repository=repository,
            credentials=credentials(auth if isinstance(auth, dict) else {}, f"{self._path}: configs.{host}.auth"),
            tls=self._tls(tls if isinstance(tls, dict) else {}, host),
        )

    def _tls(self, values: Dict[str, Any], host: str) -> Tls:
        tls = Tls(
            ca_file=str(values.get("ca_file") or ""),
            cert_file=str(values.get("cert_file") or ""),
            key_file=str(values.get("key_file") or ""),
            insecure=values.get("insecure_skip_verify") is True,
        )
        if bool(tls.cert_file) != bool(tls.key_file):
            raise ImageError(f"{self._path}: configs.{host}.tls needs both cert_file and key_file, or none of them")
        return tls


def find(path: str) -> Registries:
    """Load the first file that exists; a missing one is equivalent to an empty one."""
    for candidate in (path, *FALLBACKS):
        if candidate and os.path.exists(candidate):
            try:
                with open(candidate, encoding="utf-8") as stream:
                    content = yaml.load(stream.read())
            except (OSError, ValueError) as error:
                raise ImageError(f"{candidate}: {error}") from error
            if content is not None and not isinstance(content, dict):
                raise ImageError(f"{candidate}: expected keys and values")
            return Registries(content or {}, candidate)
    return Registries({})


def _first(section: Dict[str, Dict[str, Any]], keys: List[str]) -> Optional[Dict[str, Any]]:
    return next((section[key] for key in keys if key in section), None)


def _python_groups(replacement: str) -> str:
    escaped = replacement.replace("\\", "\\\\")
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: rf"\g<{match.group(1) or match.group(2)}>", escaped)


def _normal(address: str) -> SplitResult:
    """Non-default ports of localhost use HTTP; everything else HTTPS unless specified."""
    target = urlsplit(address if "://" in address else "//" + address)
    if not target.hostname:
        raise ImageError(f"registry endpoint {address!r}: no host")
    scheme = target.scheme
    if not scheme:
        scheme = "http" if _is_here(target.hostname) and target.port not in (None, 443) else "https"
    path = target.path.rstrip("/") if target.path not in ("", "/", "/v2", "/v2/") else "/v2"
    return target._replace(scheme=scheme, path=path)


def _is_here(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def credentials(values: Dict[str, Any], where: str) -> Credentials:
    """Parse credentials of registries.yaml and docker."""
    for name in ("username", "password", "auth"):
        if isinstance(values.get(name), (bool, list, dict)):
            raise ImageError(f"{where}.{name} must be text; put it in quotes")
    username, password = str(values.get("username") or ""), str(values.get("password") or "")
    if values.get("auth"):
        username, password = _pair(str(values["auth"]), f"{where}.auth")
    token = values.get("identity_token") or values.get("identitytoken") or ""
    return Credentials(username, password, str(token))


def _pair(encoded: str, where: str) -> Tuple[str, str]:
    try:
        username, colon, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise ImageError(f"{where} must be base64 of user:password")
    return username, password
