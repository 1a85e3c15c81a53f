"""Secret path segment of webhooks that look objects up.

API servers do not authenticate to webhooks. A client that reaches the port, such as a pod, could otherwise post reviews
in the name of any user and learn which objects exist, and their UIDs. Only administrators can read the paths in webhook
configurations.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable

from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists
from herder.gateway.webhooks.configurations import Configuration

NAME, KEY = "herder-webhook-path", "path"
_BYTES = 16


async def secret_part(client: Client, namespace: str, entropy: Callable[[int], bytes]) -> str:
    """The segment shared by all replicas; the first one creates it."""
    meta = {"name": NAME, "namespace": namespace}
    wanted = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {KEY: entropy(_BYTES).hex()}}
    try:
        current = await client.create(SECRET.resource, wanted, namespace=namespace)
    except AlreadyExists:
        current = await client.get(SECRET.resource, NAME, namespace=namespace)
    part = base64.b64decode((current.get("data") or {}).get(KEY) or "").decode()
    if not part:
        raise ValueError(f"Secret {namespace}/{NAME}: data.{KEY} is missing; delete the Secret")
    return part


def hidden(path: str, part: str) -> str:
    return f"{path}/{part}"


def with_hidden_paths(
    configurations: Iterable[Configuration], paths: Iterable[str], part: str
) -> tuple[Configuration, ...]:
    """The configurations with the secret segment in these paths."""
    known = {path: hidden(path, part) for path in paths}
    return tuple(
        each._replace(webhooks=tuple(hook._replace(path=known.get(hook.path, hook.path)) for hook in each.webhooks))
        for each in configurations
    )
