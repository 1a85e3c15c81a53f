"""/openapi/v2 and /openapi/v3: the schemas of everything served, built when somebody asks."""

from __future__ import annotations

from herder.engine.apiserver.resources import Registry
from herder.engine.client.wire import Request, Response


class OpenApi:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def handle(self, request: Request) -> Response | None:
        """The answer for paths under /openapi, None for others and unknown ones."""
        return None
