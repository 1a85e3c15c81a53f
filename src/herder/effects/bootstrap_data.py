"""Effect `bootstrap-data`: render the bootstrap script of a machine, so that controllers never see its token."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.rke.names import BOOTSTRAP_SECRET_TYPE
from herder.api.rke.node.bootstrap_token import machine_token
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object
from herder.gateway.nodes.install_script import ScriptInputs, cloud_config, powershell_script, shell_script

FIELD_MANAGER = "rke-bootstrap"


class BootstrapData:
    """Executor of `bootstrap-data`."""

    def __init__(self, client: Client, setting: Callable[[str], str]) -> None:
        self._client = client
        self._setting = setting

    async def __call__(self, arguments: Mapping[str, Any]) -> None:
        """Idempotent. The result contains no token."""
        namespace = arguments["metadata"]["namespace"]
        secret = await self._client.get(SECRET.resource, arguments["token"], namespace=namespace)
        account_token = base64.b64decode((secret.get("data") or {}).get("token") or "")
        if not account_token:
            raise LookupError(f"Secret {namespace}/{arguments['token']} has no token yet")
        script = self._script(arguments, machine_token(account_token))
        await self._client.apply(SECRET.resource, _secret(arguments["metadata"], script), field_manager=FIELD_MANAGER)

    def _script(self, arguments: Mapping[str, Any], token: str) -> str:
        inputs = ScriptInputs.of(self._setting, arguments["variables"], token)
        if arguments["windows"]:
            return powershell_script(inputs)
        script = shell_script(inputs)
        userdata = arguments["userdata"]
        return script if userdata is None else cloud_config(script, userdata)


def _secret(metadata: Object, script: str) -> Object:
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": metadata,
        "type": BOOTSTRAP_SECRET_TYPE,
        "data": {"value": base64.b64encode(script.encode()).decode()},
    }
