"""Secrets and ConfigMaps that a pod references."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runner.kinds import CONFIG_MAPS, SECRETS


class NotReady(Exception):
    """A container cannot start yet and is retried. `reason` is shown in its waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Sources:
    """Reads each object once per preparation, so that a pod sees one state of it.

    `is_approved` is called with the name and contents of each Secret before it is used.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        is_approved: Callable[[str, Mapping[str, bytes]], bool] = lambda _name, _data: True,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._is_approved = is_approved
        self._found: dict[tuple[GroupVersionResource, str], dict[str, bytes] | None] = {}

    async def secret(self, name: str, *, optional: bool = False) -> dict[str, bytes]:
        return await self._content(SECRETS, "secret", name, optional)

    async def config_map(self, name: str, *, optional: bool = False) -> dict[str, bytes]:
        return await self._content(CONFIG_MAPS, "configmap", name, optional)

    async def _content(self, resource: GroupVersionResource, kind: str, name: str, optional: bool) -> dict[str, bytes]:
        key = resource, name
        if key not in self._found:
            try:
                self._found[key] = _decode_data(await self._client.get(resource, name, namespace=self._namespace))
            except NotFound:
                self._found[key] = None
            except StatusError as error:
                raise NotReady("CreateContainerConfigError", f'cannot read {kind} "{name}": {error}') from error
        content = self._found[key]
        if content is None:
            if optional:
                return {}
            raise NotReady("CreateContainerConfigError", f'{kind} "{name}" not found')
        if resource == SECRETS and not self._is_approved(name, content):
            raise NotReady("CreateContainerConfigError", f'secret "{name}" has changed since Herder created the Job')
        return content


def _decode_data(obj: Object) -> dict[str, bytes]:
    if obj.get("kind") == "Secret":
        return {key: base64.b64decode(value or "") for key, value in (obj.get("data") or {}).items()}
    content = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
    return content | {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}
