"""Credential provider plugins, with the kubelet's configuration and protocol."""

import fnmatch
import json
import os
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional
from urllib.parse import SplitResult, urlsplit

from herder.agent import yaml
from herder.agent.images.reference import ImageError
from herder.agent.images.registries import Credentials

_CONFIG_KIND, _REQUEST_KIND, _RESPONSE_KIND = (
    "CredentialProviderConfig",
    "CredentialProviderRequest",
    "CredentialProviderResponse",
)
_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_CONFIG_GROUP, _GROUP = "kubelet.config.k8s.io", "credentialprovider.kubelet.k8s.io"
_SECONDS = 60.0


class PluginError(Exception):
    """A plugin failed; the message names it, and never includes its output, which may be secret."""


class Provider(NamedTuple):
    name: str
    program: str
    version: str
    patterns: List[str]
    args: List[str]
    env: Dict[str, str]

    def serves(self, image: str) -> bool:
        return any(matches(pattern, image) for pattern in self.patterns)


# --- configuration --------------------------------------------------------------------------------------------------


def load(path: str, directory: str) -> List[Provider]:
    try:
        with open(path, encoding="utf-8") as stream:
            content = yaml.load(stream.read())
    except (OSError, ValueError) as error:
        raise ImageError(f"{path}: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != _CONFIG_KIND:
        raise ImageError(f"{path}: kind must be {_CONFIG_KIND}")
    _check_version(path, "apiVersion", content.get("apiVersion"), _CONFIG_GROUP)
    providers = content.get("providers")
    if not isinstance(providers, list) or not providers:
        raise ImageError(f"{path}: providers must be a list with at least one entry")
    return [_provider(each, f"{path}: providers[{index}]", directory) for index, each in enumerate(providers)]


def _provider(value: Any, where: str, directory: str) -> Provider:
    if not isinstance(value, dict):
        raise ImageError(f"{where}: expected keys and values")
    name = value.get("name")
    if not isinstance(name, str) or name in ("", ".", "..") or any(char in name for char in "/\\ \t"):
        raise ImageError(f"{where}.name: {name!r} is no name of a program in {directory}")
    _check_version(where, "apiVersion", value.get("apiVersion"), _GROUP)
    patterns = value.get("matchImages")
    if not isinstance(patterns, list) or not patterns:
        raise ImageError(f"{where}.matchImages: must be a list with at least one entry")
    return Provider(
        name=name,
        program=os.path.join(directory, name),
        version=value["apiVersion"],
        patterns=[str(each) for each in patterns],
        args=[str(each) for each in value.get("args") or []],
        env={str(each.get("name")): str(each.get("value") or "") for each in value.get("env") or []},
    )


def _check_version(where: str, field: str, found: Any, group: str) -> None:
    allowed = [f"{group}/{version}" for version in _VERSIONS]
    if found not in allowed:
        raise ImageError(f"{where}: {field} must be one of {', '.join(allowed)}; found {found!r}")


def matches(pattern: str, image: str) -> bool:
    """Match like the kubelet: host name parts with wildcards, equal ports, and a path prefix."""
    wanted, found = _split(pattern), _split(image)
    wanted_parts, found_parts = (wanted.hostname or "").split("."), (found.hostname or "").split(".")
    if len(wanted_parts) != len(found_parts) or _port(wanted) != _port(found):
        return False
    return found.path.startswith(wanted.path) and all(map(fnmatch.fnmatchcase, found_parts, wanted_parts))


def _split(text: str) -> SplitResult:
    return urlsplit(text if "://" in text else "https://" + text)


def _port(target: SplitResult) -> str:
    return target.netloc.rpartition(":")[2] if ":" in target.netloc else ""


# --- execution ------------------------------------------------------------------------------------------------------


def ask(provider: Provider, image: str) -> Optional[Credentials]:
    """Return the credentials for an image; None if the plugin has none."""
    request = {"kind": _REQUEST_KIND, "apiVersion": provider.version, "image": image}
    answer = _answer(provider, json.dumps(request).encode())
    if answer.get("kind") != _RESPONSE_KIND or answer.get("apiVersion") != provider.version:
        raise PluginError(f"credential provider {provider.name}: its answer is no {_RESPONSE_KIND} {provider.version}")
    known = answer.get("auth") or {}
    for pattern in sorted(known, reverse=True):  # the more specific first, like the kubelet
        found = known[pattern]
        if matches(pattern, image) and isinstance(found, dict):
            return Credentials(str(found.get("username") or ""), str(found.get("password") or ""))
    return None


def _answer(provider: Provider, request: bytes) -> Dict[str, Any]:
    environment = dict(os.environ)
    environment.update(provider.env)
    try:
        done = subprocess.run(
            [provider.program, *provider.args],
            input=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_SECONDS,
            check=True,
        )
        value = json.loads(done.stdout.decode("utf-8"))
    except subprocess.CalledProcessError as error:
        raise PluginError(f"credential provider {provider.name}: exit code {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise PluginError(f"credential provider {provider.name}: no answer within {_SECONDS:.0f} s") from None
    except OSError as error:
        raise PluginError(f"credential provider {provider.name}: cannot be started: {error}") from None
    except ValueError:
        raise PluginError(f"credential provider {provider.name}: its answer is not JSON") from None
    if not isinstance(value, dict):
        raise PluginError(f"credential provider {provider.name}: its answer is no object")
    return value
