"""Credentials for endpoints without any in registries.yaml: from credential provider plugins, then from docker's
config.
"""

import json
import os
from typing import Any, Callable, Dict, Optional

from herder.agent.images import plugins, registries
from herder.agent.images.reference import DEFAULT_REGISTRY
from herder.agent.images.registries import Credentials, Endpoint


class Keychain:
    def __init__(
        self, plugin_config: str, plugin_directory: str, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """Configure plugins like the kubelet. Without a configuration there are none."""
        self._plugin_config = plugin_config
        self._plugin_directory = plugin_directory
        self._say = say

    def completed(self, endpoint: Endpoint) -> Endpoint:
        if endpoint.credentials != Credentials():
            return endpoint
        found = self._from_plugins(endpoint) or _from_docker(endpoint)
        return endpoint._replace(credentials=found) if found else endpoint

    def _from_plugins(self, endpoint: Endpoint) -> Optional[Credentials]:
        """Ask the plugins; a failing plugin means no credentials, which may suffice."""
        if not self._plugin_config or not os.path.exists(self._plugin_config):
            return None
        image = f"{_host(endpoint)}/{endpoint.repository}"
        for provider in plugins.load(self._plugin_config, self._plugin_directory):
            if provider.serves(image):
                try:
                    found = plugins.ask(provider, image)
                except plugins.PluginError as error:
                    self._say(f"{image}: {error}")
                    continue
                if found is not None:
                    return found
        return None


def _from_docker(endpoint: Endpoint) -> Optional[Credentials]:
    home = os.environ.get("HOME", "")
    if not home:
        return None
    path = os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json")
    try:
        with open(path, encoding="utf-8") as stream:
            known: Dict[str, Any] = json.load(stream).get("auths") or {}
    except (OSError, ValueError, AttributeError):
        return None
    host = _host(endpoint)
    keys = [host, f"https://{host}", *([f"https://{host}/v1/"] if host == DEFAULT_REGISTRY else [])]
    found = next((known[key] for key in keys if isinstance(known.get(key), dict)), None)
    return None if found is None else registries.credentials(found, f"{path}: auths.{host}")


def _host(endpoint: Endpoint) -> str:
    return endpoint.url.split("/")[2]
